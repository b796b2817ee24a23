"""The same texts to a stock llama-server and to this one: the same fields, and the same vectors but
for what another build of the library rounds otherwise.
"""

import importlib.util
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from loopback import served
from models import ModelShelf
from stock_client import stock_client
from test_service import Running, settings

from spillcache.serve.app import create_app

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp, a stock llama-server, is not installed",
)
TEXTS = ["hello", "Two words.", "three " * 30]


def ask(client: httpx.Client, **body: Any) -> Any:
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_embeddings_are_a_stock_servers(gguf_model: ModelShelf) -> None:
    model = gguf_model("llama")
    made = settings(model, None)
    made = replace(made, engine=replace(made.engine, embeddings=True, pooling="mean", threads=1))
    with (
        stock_client(model, "embeddings") as stock,
        Running(made) as run,
        served(create_app(run.service)) as url,
        httpx.Client(base_url=url, timeout=60) as ours,
    ):
        for text in TEXTS:
            theirs, mine = (ask(client, input=text) for client in (stock, ours))
            assert theirs.keys() == mine.keys()
            assert theirs["usage"] == mine["usage"]
            assert mine["data"][0].keys() <= theirs["data"][0].keys()
            vectors = [answer["data"][0]["embedding"] for answer in (theirs, mine)]
            assert np.allclose(*vectors, atol=2e-3), text
        theirs, mine = (ask(client, input=TEXTS) for client in (stock, ours))
        assert [one["index"] for one in theirs["data"]] == [one["index"] for one in mine["data"]]
        assert theirs["usage"] == mine["usage"]
        for body in ({"input": "hello"}, {"input": [20, 21, 22]}, {"input": [[20, 21], [22]]}):
            theirs, mine = (
                ask(client, **body, encoding_format="base64") for client in (stock, ours)
            )
            assert len(theirs["data"]) == len(mine["data"])
            assert len(theirs["data"][0]["embedding"]) == len(mine["data"][0]["embedding"])
        answers = [client.post("/v1/embeddings", json={}) for client in (stock, ours)]
        assert [answer.status_code for answer in answers] == [400, 400]

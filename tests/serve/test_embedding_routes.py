"""OpenAI's own client asks for embeddings: of a scripted service, and of a real engine."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import openai
import pytest
from loopback import served
from models import ModelShelf
from test_service import Running, settings

from spillcache.config import EngineConfig, ServeConfig, Settings
from spillcache.errors import NotReady, PromptTooLong
from spillcache.serve.app import create_app


@pytest.fixture
def service(service):
    engine = EngineConfig(Path("/models/tiny-fake.gguf"), embeddings=True)
    service.settings = Settings(engine, ServeConfig(port=0))
    return service


def test_one_text(ai):
    answer = ai.embeddings.create(model="any", input="hello", encoding_format="float")
    assert (answer.object, answer.model) == ("list", "tiny-fake")
    (one,) = answer.data
    assert (one.object, one.index, one.embedding) == ("embedding", 0, [6.0, 256.0, -0.5])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (6, 6)


def test_the_client_asks_for_base64_by_itself(ai, http):
    assert ai.embeddings.create(model="any", input="hello").data[0].embedding == [6.0, 256.0, -0.5]
    body = {"input": "hello", "encoding_format": "base64"}
    told = http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(told), "<f4").tolist() == [6.0, 256.0, -0.5]


@pytest.mark.parametrize(
    ("given", "firsts"),
    [
        (["a", "bc"], [[2, 256], [3, 256]]),
        ([7, 8, 9], [[3, 7]]),
        ([[7], [8, 9]], [[1, 7], [2, 8]]),
    ],
)
def test_several_texts_and_tokens(ai, given, firsts):
    answer = ai.embeddings.create(model="any", input=given)
    assert [one.embedding[:2] for one in answer.data] == firsts
    assert [one.index for one in answer.data] == list(range(len(firsts)))
    assert answer.usage.prompt_tokens == sum(count for count, _ in firsts)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [1, 999]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_is_wrong_is_said(http, body, param):
    response = http.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


def test_a_failure_is_told(http, service):
    service.script.refuse = PromptTooLong("a text has 600 tokens", "input")
    response = http.post("/v1/embeddings", json={"input": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    service.script.refuse = NotReady("the server stops")
    assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 503


def test_they_are_off_by_default(http, service):
    engine = replace(service.settings.engine, embeddings=False)
    service.settings = replace(service.settings, engine=engine)
    response = http.post("/v1/embeddings", json={"input": "a"})
    assert response.status_code == 501
    assert "--embeddings" in response.json()["error"]["message"]
    assert http.post("/embedding", json={"content": "a"}).status_code == 501


def test_beside_answers_of_a_real_engine(gguf_model: ModelShelf) -> None:
    """Vectors are the same alone and beside an answer, and the answer is the same, too."""
    made = settings(gguf_model("llama"), None)
    made = replace(made, engine=replace(made.engine, embeddings=True, pooling="mean", threads=1))
    texts = ["one", "two words", "three " * 20]
    asked = {"model": "any", "prompt": "Go on: " * 9, "max_tokens": 200, "temperature": 0}
    with (
        Running(made) as run,
        served(create_app(run.service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as ai,
    ):
        alone = [one.embedding for one in ai.embeddings.create(model="any", input=texts).data]
        quiet = ai.completions.create(**asked, extra_body={"ignore_eos": True})
        stream = ai.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
        said = next(stream).choices[0].text
        beside = [one.embedding for one in ai.embeddings.create(model="any", input=texts).data]
        said += "".join(chunk.choices[0].text for chunk in stream)
        assert said == quiet.choices[0].text
        assert beside == alone
        assert np.allclose(np.linalg.norm(np.array(alone), axis=1), 1.0, atol=1e-5)
        assert len({tuple(vector) for vector in alone}) == 3
        with pytest.raises(openai.BadRequestError, match="512 at most"):
            ai.embeddings.create(model="any", input="x" * 600)


def test_a_model_that_names_no_pooling(gguf_model: ModelShelf) -> None:
    made = settings(gguf_model("llama"), None)
    made = replace(made, engine=replace(made.engine, embeddings=True))
    with (
        Running(made) as run,
        served(create_app(run.service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as ai,
        pytest.raises(openai.BadRequestError, match="--pooling mean"),
    ):
        ai.embeddings.create(model="any", input="x")

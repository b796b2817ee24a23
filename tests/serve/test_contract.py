"""The same requests to a stock llama-server and to this one give the same fields and types; what
differs is meant to, and told in docs/api.md.

The first of each route are the examples of llama-server's own documentation.
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from loopback import served
from models import ModelShelf
from stock_client import stock_client
from test_service import Running

from spillcache.config import CacheConfig, EngineConfig, ServeConfig, Settings
from spillcache.serve.app import create_app

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp, a stock llama-server, is not installed",
)

PROMPT = "Building a website can be done in 10 simple steps:"
OURS_ALONE = {
    "timings": {
        "cache", "cache_decision", "parted", "queue_ms", "refused", "restore_ms", "restored",
        "restored_bytes",
    },
    "": {"cache"},  # of /health
}  # fmt: skip
STOCK_ALONE = {
    # Interface, router, capabilities of templates: see docs/api.md.
    "": {
        "cors_proxy_enabled", "media_marker", "model_ftype", "ui", "ui_settings",
        "chat_template_caps",
    },
    "slot": {
        "id_task", "n_prompt_tokens", "n_prompt_tokens_cache", "n_prompt_tokens_processed",
        "next_token", "params",
    },
}  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": PROMPT, "n_predict": 12},
    {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "return_tokens": True},
    {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "n_probs": 2},
    {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "n_probs": 2, "post_sampling_probs": True},
    {"prompt": PROMPT, "n_predict": 0},
    {"prompt": [PROMPT], "n_predict": 2},
    {"prompt": [12, 34, 56], "n_predict": 2},
    {"prompt": [12, 34, "string", 56, 78], "n_predict": 2},
    {"prompt": PROMPT, "n_predict": 3, "grammar": 'root ::= "yes" | "no"'},
    {"prompt": PROMPT, "n_predict": 30, "json_schema": {"type": "array", "maxItems": 1}},
    {"prompt": PROMPT, "n_predict": 3, "logit_bias": [[15, 1.0], ["Hello", -0.5], [16, 2]]},
    {"prompt": PROMPT, "n_predict": 3, "logit_bias": {"15": 1.0, "Hello": -0.5}},
    {"prompt": PROMPT, "n_predict": 3, "samplers": ["top_k", "temperature"], "seed": 42},
    {"prompt": PROMPT, "n_predict": 3, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2},
    {"prompt": PROMPT, "n_predict": 3, "dry_multiplier": 0.8, "dry_sequence_breakers": ["x"]},
    {"prompt": PROMPT, "n_predict": 3, "stop": ["a", "e"], "cache_prompt": True, "id_slot": 0},
    {"prompt": PROMPT, "n_predict": 3, "response_fields": ["content", "timings/prompt_n", "x"]},
    {"prompt": PROMPT, "n_predict": 3, "typical_p": 0.9, "xtc_probability": 0.5, "min_keep": 1},
    {"prompt": PROMPT, "n_predict": 3, "n_keep": 5, "repeat_penalty": 1.1, "top_n_sigma": 2.0},
]
INFILLS: list[dict[str, Any]] = [
    {"input_prefix": "def add(a, b):", "input_suffix": "return c", "n_predict": 2},
    {
        "input_prefix": "int main() {",
        "input_suffix": "}",
        "input_extra": [{"filename": "a.c", "text": "int f();\n"}],
        "prompt": "  f(<|im_end|>",
        "n_predict": 2,
    },
    {
        "input_prefix": "a" * 3000,
        "input_suffix": "b" * 3000,
        "input_extra": [{"text": "c" * 900, "filename": "a.c"}],
        "n_predict": 20,
    },
]


@pytest.fixture(scope="module")
def model(gguf_model: ModelShelf) -> Path:
    return gguf_model("llama", fim=True)


@pytest.fixture(scope="module")
def stock(model: Path) -> Iterator[httpx.Client]:
    with stock_client(model) as client:
        yield client


@pytest.fixture(scope="module")
def ours(model: Path) -> Iterator[httpx.Client]:
    engine = EngineConfig(model, context_tokens=4096, slots=2, threads=1)
    settings = Settings(engine, ServeConfig(port=0), CacheConfig(ram_bytes=1 << 26))
    with (
        Running(settings) as run,
        served(create_app(run.service)) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def types(value: Any, name: str = "") -> Any:
    """Fields and types; numbers are numbers."""
    if isinstance(value, Mapping):
        return {key: types(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [types(value[0])] if value and name != "tokens" else []
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


def without(value: Any, leave_out: Mapping[str, set[str]], name: str = "") -> Any:
    if not isinstance(value, dict):
        return value
    gone = leave_out.get(name, set())
    return {key: without(one, leave_out, key) for key, one in value.items() if key not in gone}


def compare(stock: Any, ours: Any) -> None:
    assert without(types(ours), OURS_ALONE) == without(types(stock), STOCK_ALONE)


def ask(client: httpx.Client, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("body", COMPLETIONS, ids=lambda body: " ".join([*body][1:]))
def test_completion(stock: httpx.Client, ours: httpx.Client, body: dict[str, Any]) -> None:
    theirs, mine = (ask(client, "/completion", body) for client in (stock, ours))
    if isinstance(theirs, list):  # a list of one prompt has a list of one answer there
        (theirs,) = theirs
    compare(theirs, mine)
    for name in ("prompt", "tokens_evaluated"):
        assert mine.get(name) == theirs.get(name)


@pytest.mark.parametrize("extra", [{}, {"n_probs": 1}, {"return_tokens": True}], ids=str)
def test_completion_as_a_stream(
    stock: httpx.Client, ours: httpx.Client, extra: dict[str, Any]
) -> None:
    body = {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "stream": True, **extra}
    theirs, mine = (stream(client, "/completion", body) for client in (stock, ours))
    compare(theirs[0], mine[0])
    compare(theirs[-1], mine[-1])


def stream(client: httpx.Client, path: str, body: Any) -> list[Any]:
    with client.stream("POST", path, json=body) as response:
        lines = response.read().decode().split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def test_greedy_answers_are_the_same(stock: httpx.Client, ours: httpx.Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "return_tokens": True}
    body |= {"repeat_penalty": 1.3, "logit_bias": [[40, False], [300, -2]], "n_probs": 1}
    theirs, mine = (ask(client, "/completion", body) for client in (stock, ours))
    assert mine["tokens"] == theirs["tokens"][: len(mine["tokens"])]
    assert len(mine["tokens"]) >= 30
    # What it tells of tokens that are parts of characters is another matter.
    one, other = (answer["completion_probabilities"][0] for answer in (mine, theirs))
    assert one["id"] == other["id"]
    assert one["logprob"] == pytest.approx(other["logprob"], abs=0.02)


@pytest.mark.parametrize("body", INFILLS, ids=["documented", "more", "long"])
def test_infill(stock: httpx.Client, ours: httpx.Client, body: dict[str, Any]) -> None:
    theirs, mine = (ask(client, "/infill", body) for client in (stock, ours))
    compare(theirs, mine)
    assert mine["prompt"] == theirs["prompt"]
    assert mine["tokens_evaluated"] == theirs["tokens_evaluated"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "Hello, wörld"}),
        ("/tokenize", {"content": "Hello", "add_special": True}),
        ("/tokenize", {"content": "<|im_start|>x", "parse_special": False}),
        ("/tokenize", {"content": "<|im_start|>é", "with_pieces": True, "add_special": True}),
        ("/tokenize", {"content": ["a", 50, "b"]}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": [1, 3, 109, 110, 4]}),
        ("/detokenize", {}),
        ("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}),
        (
            "/apply-template",
            {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False},
        ),
    ],
)
def test_text_is_the_same(
    stock: httpx.Client, ours: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    assert ask(ours, path, body) == ask(stock, path, body)


def test_properties(stock: httpx.Client, ours: httpx.Client) -> None:
    theirs, mine = stock.get("/props").json(), ours.get("/props").json()
    compare(theirs, mine)
    for name in ("bos_token", "eos_token", "chat_template", "total_slots"):
        assert mine[name] == theirs[name]
    params = [props["default_generation_settings"]["params"] for props in (mine, theirs)]
    for name, value in params[1].items():
        if isinstance(value, float):
            assert params[0][name] == pytest.approx(value)
        elif name != "reasoning_format":
            assert params[0][name] == value, name


def test_slots(stock: httpx.Client, ours: httpx.Client) -> None:
    theirs, mine = stock.get("/slots").json(), ours.get("/slots").json()
    assert len(mine) == len(theirs) == 2
    for one, other in zip(mine, theirs, strict=True):
        assert types(one) == without({"slot": types(other)}, STOCK_ALONE)["slot"]


def test_the_rest(stock: httpx.Client, ours: httpx.Client) -> None:
    compare(stock.get("/health").json(), ours.get("/health").json())
    assert ours.get("/lora-adapters").json() == stock.get("/lora-adapters").json() == []
    for client in (stock, ours):
        assert client.get("/metrics").headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embedding", {"content": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/props", {}),
    ],
)
def test_what_there_is_not(
    stock: httpx.Client, ours: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    theirs, mine = (client.post(path, json=body) for client in (stock, ours))
    assert mine.status_code == theirs.status_code == 501
    assert mine.json()["error"]["type"] == theirs.json()["error"]["type"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": PROMPT, "grammar": "root ::= foo"},
        {"prompt": PROMPT, "grammar": "root ::= ("},
    ],
    ids=["no prompt", "no rule", "no end"],
)
def test_what_is_wrong(stock: httpx.Client, ours: httpx.Client, body: dict[str, Any]) -> None:
    theirs, mine = (client.post("/completion", json=body) for client in (stock, ours))
    assert mine.status_code == theirs.status_code == 400
    assert mine.json()["error"]["type"] == theirs.json()["error"]["type"]
    assert set(theirs.json()["error"]) - {"code"} <= set(mine.json()["error"])


def test_chats_have_logprobs(stock: httpx.Client, ours: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        # Neither an empty answer nor bytes that are no text yet have any.
        "grammar": "root ::= [a-z]+",
        "logprobs": True,
        "top_logprobs": 2,
    }
    theirs, mine = (ask(client, "/v1/chat/completions", body) for client in (stock, ours))
    assert types(mine["choices"][0]["logprobs"]) == types(theirs["choices"][0]["logprobs"])
    body["stream"] = True
    theirs, mine = (stream(client, "/v1/chat/completions", body) for client in (stock, ours))
    one, other = (next(filter(None, map(logprobs_of, chunks))) for chunks in (mine, theirs))
    assert types(one) == types(other)


def logprobs_of(chunk: dict[str, Any]) -> Any:
    return chunk["choices"][0].get("logprobs") if chunk["choices"] else None


def test_chats_follow_a_schema(ours: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 200,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}},
        },
    }
    answer = ask(ours, "/v1/chat/completions", body)["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert json.loads(answer["message"]["content"])["n"] in {1, 2}


def test_a_grammar_that_fails_on_its_way_fails_alone(ours: httpx.Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 5, "grammar": "root ::= x\nx ::= x"}
    response = ours.post("/completion", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "grammar"
    assert ask(ours, "/completion", {"prompt": PROMPT, "n_predict": 5})["tokens_predicted"] > 0

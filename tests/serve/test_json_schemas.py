"""1,000 answers through OpenAI's own client, each held to one of 20 JSON schemas: all are valid.

The model's weights are random, and it is asked to choose at random: so whatever a schema leaves
open is tried. White space where it means nothing is forbidden by ``logit_bias``, for a model that
knows no better spends most of its tokens on it; quotes and commas are made likelier, so that texts
end and objects go on.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import openai
import pytest
from json_schemas import SCHEMAS
from loopback import served
from models import FIRST_BYTE, ModelShelf
from test_service import Running

from spillcache.config import CacheConfig, EngineConfig, ServeConfig, Settings
from spillcache.serve.app import create_app

EACH = 50
SLOTS = 8
BIASES = {str(FIRST_BYTE + byte): -100 for byte in b" \t\r\n"} | {
    str(FIRST_BYTE + 256): -100,  # the tokeniser's own space
    str(FIRST_BYTE + ord('"')): 3,
    str(FIRST_BYTE + ord(",")): 3,
}


@pytest.fixture(scope="module")
def ai(gguf_model: ModelShelf) -> Iterator[openai.OpenAI]:
    engine = EngineConfig(gguf_model("llama"), context_tokens=8192, slots=SLOTS, threads=1)
    settings = Settings(engine, ServeConfig(port=0), CacheConfig(ram_bytes=1 << 24))
    with (
        Running(settings) as run,
        served(create_app(run.service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=120) as client,
    ):
        yield client


def ask(ai: openai.OpenAI, schema: dict[str, Any], seed: int) -> str:
    """An answer that ended by itself."""
    form: Any = {"name": "answer", "schema": schema, "strict": True}
    (choice,) = ai.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Go."}],
        response_format={"type": "json_schema", "json_schema": form},
        temperature=1.0,
        top_p=1.0,
        seed=seed,
        max_tokens=900,
        logit_bias=BIASES,
        extra_body={"top_k": 0, "min_p": 0.0},
    ).choices
    assert choice.finish_reason == "stop", choice.message.content
    return choice.message.content or ""


def test_there_are_enough() -> None:
    assert len(SCHEMAS) * EACH == 1000


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_follow_their_schema(ai: openai.OpenAI, name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    with ThreadPoolExecutor(SLOTS) as pool:
        answers = list(pool.map(lambda seed: ask(ai, schema, seed), range(EACH)))
    invalid = [text for text in answers if not validator.is_valid(json.loads(text))]
    assert not invalid
    assert len(answers) == EACH
    assert len(set(answers)) > 2, "they are chosen freely"


def test_the_validator_would_see_what_is_wrong() -> None:
    wrong = {
        "an object": {"name": "x"},
        "a list with bounds": {"tags": []},
        "numbers": {"share": 1.5, "degrees": 0},
        "patterns": {"plate": "a-1", "colour": "#fff"},
        "formats": {"day": "2026-13-01", "id": "x", "host": "1.2.3"},
        "tuples": {"pair": ["a", 1, True, 2]},
        "properties that may lack": {"b": "x", "z": 1},
        "a recursion": {"head": {"value": 1, "next": {"value": 100, "next": None}}},
    }
    for name, value in wrong.items():
        validator = jsonschema_rs.Draft202012Validator(SCHEMAS[name], validate_formats=True)
        assert not validator.is_valid(value), name

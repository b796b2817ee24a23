"""Answers that follow grammars, by the real library on a real vocabulary."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from models import BOS, EOS, FIRST_BYTE, IM_END, ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, Guide, SamplingParams
from spillcache.engine.guides import SCHEMA_CHARACTERS_MAX, Guides, TokenGuide
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import NotOffered, RequestError

PROMPT = np.array([BOS, *range(20, 40)], np.uint32)
JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" [a-z]{0,9} "\"" ws
number ::= "-"? [0-9]{1,3} ws
ws ::= | " "
"""


@pytest.fixture(scope="module")
def engine(gguf_model: ModelShelf) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(EngineConfig(gguf_model("llama"), context_tokens=1024, threads=1))
    yield engine
    engine.close()


def answer(engine: LlamaEngine, guide: Guide, steps: int = 200, **params: Any) -> tuple[str, bool]:
    """The text, and whether it was complete."""
    engine.clear(0)
    engine.decode([Chunk(0, PROMPT, logits=True)])
    sampler = engine.sampler(SamplingParams(guide=guide, **params), PROMPT)
    text = b""
    try:
        for _ in range(steps):
            token = sampler.sample(0)
            if engine.is_end(token):
                return text.decode(errors="replace"), True
            text += engine.token_bytes(token)
            if sampler.ended:
                return text.decode(errors="replace"), True
            engine.decode([Chunk(0, np.array([token], np.uint32), logits=True)])
    finally:
        sampler.close()
    return text.decode(errors="replace"), False


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 1}, {"seed": 2, "n_probs": 3}])
def test_an_answer_follows_its_schema(engine: LlamaEngine, params: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}, "b": {"enum": ["x"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    guide = engine.guide("json_schema", json.dumps(schema))
    text, complete = answer(engine, guide, **params)
    found = json.loads(text)
    assert complete
    assert found["b"] == "x"
    assert 3 <= found["a"] <= 5
    assert answer(engine, guide, **params) == (text, True), "a guide may be used again"


def test_an_answer_follows_its_grammar(engine: LlamaEngine) -> None:
    guide = engine.guide("gbnf", JSON)
    for seed in range(5):
        text, complete = answer(engine, guide, steps=400, seed=seed, temperature=2.0)
        if complete:
            json.loads(text)
        assert text.startswith("{")


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        # Characters mean what they mean, whatever stands beside them.
        ('root ::= [a-z]+ "b"', ["ab", "bb", "zzbb"], ["b", "a", "ba"]),
        ('root ::= "true" | [a-z]{3}', ["true", "trx", "tru"], ["tr", "trues"]),
        ('root ::= "a" root "b" | ""', ["", "ab", "aabb"], ["a", "abb", "ba"]),
        ('root ::= root "a" | "a"', ["a", "aaa"], ["", "b"]),
        ("root ::= [^a]", ["b", "\n", "é"], ["a", "bb"]),
        ("root ::= . .", ["a\n", "😀é"], ["a", "abc"]),
        (r"root ::= [\x00-\x1F]", ["\t"], [" "]),
        ('root ::= x{2,3}\nx ::= "ab" | "c"', ["abc", "ccc", "abab"], ["c", "cccc"]),
    ],
)
def test_grammars_mean_what_llama_cpp_means(
    engine: LlamaEngine, grammar: str, accepted: list[str], refused: list[str]
) -> None:
    guide = engine.guide("gbnf", grammar)
    assert all(fits(guide, text) for text in accepted)
    assert not any(fits(guide, text) for text in refused)


def fits(guide: Guide, text: str) -> bool:
    """Whether ``text`` and an end are what the guide allows."""
    assert isinstance(guide, TokenGuide)
    steps, complete = guide.start(), False
    for byte in text.encode():
        if complete or not steps.allows(FIRST_BYTE + byte):
            return False
        assert FIRST_BYTE + byte in steps.allowed()
        complete = steps.take(FIRST_BYTE + byte)
    assert complete or steps.allows(EOS) == steps.allows(IM_END)
    return complete or steps.allows(EOS)


def test_where_the_grammar_ends_the_answer_ends(engine: LlamaEngine) -> None:
    guide = engine.guide("gbnf", 'root ::= "yes"')
    assert answer(engine, guide, seed=1) == ("yes", True)
    assert answer(engine, guide, seed=1, ignore_eos=True) == ("yes", True)
    longer = engine.guide("gbnf", "root ::= [a-c]*")
    text, complete = answer(engine, longer, steps=30, seed=1, ignore_eos=True)
    assert (len(text), complete) == (30, False)
    assert set(text) <= set("abc")


def test_control_tokens_are_no_text(engine: LlamaEngine) -> None:
    guide = engine.guide("gbnf", "root ::= .*")
    assert isinstance(guide, TokenGuide)
    allowed = set(guide.start().allowed().tolist())
    assert not allowed & {0, BOS, 3}
    assert {EOS, IM_END, FIRST_BYTE + 97} <= allowed


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "banana"}, "banana"),
        ({"not": {}}, "not"),
        ({"$ref": "#/nope"}, "nope"),
        ({"$ref": "http://example.invalid/x"}, "example.invalid"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ],
)
def test_schemas_that_can_not_be_followed(
    engine: LlamaEngine, schema: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        engine.guide("json_schema", json.dumps(schema))
    assert says in str(caught.value)
    assert str(caught.value).startswith("json_schema: ")
    assert "\n" not in str(caught.value)


def test_a_schema_that_is_too_long(engine: LlamaEngine) -> None:
    with pytest.raises(RequestError, match="characters, and may have 262,144; make it smaller"):
        engine.guide("json_schema", json.dumps({"enum": ["x" * SCHEMA_CHARACTERS_MAX]}))


DEEP = 'root ::= r0 "x"\n' + "".join(f"r{i} ::= r{i + 1}? r{i + 1}?\n" for i in range(30))
HOSTILE = {
    "doubles": DEEP + 'r30 ::= "a"',
    "both ways": 'root ::= "a" root "b" | "a" root "c" | "a"',
    "repetitions": 'root ::= (("a"{0,90}){0,90}){0,90}',
    "nothing": 'root ::= (""*)*',
    "itself": "root ::= x\nx ::= x",
    "much": "root ::= (.{2000}){2000}",
    "many": "root ::= " + " | ".join(["[a-z]*"] * 5000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_grammar_keeps_the_engine_busy(engine: LlamaEngine, name: str) -> None:
    """Each of these ends the process, or lasts for minutes, with other implementations. Here it is
    followed, or refused in a sentence; the test's own time limit is the bound.
    """
    refusal = 'grammar: ""'
    try:
        guide = engine.guide("gbnf", HOSTILE[name])
        answer(engine, guide, steps=40, seed=1, ignore_eos=True)
    except RequestError as error:
        refusal = str(error)
    assert refusal.startswith("grammar: ")
    assert len(refusal) < 320


def test_a_grammar_that_leads_nowhere(engine: LlamaEngine) -> None:
    guide = engine.guide("gbnf", "root ::= x\nx ::= x")
    with pytest.raises(RequestError, match="grammar: "):
        answer(engine, guide, seed=1)


def test_several_threads_use_one_guide(engine: LlamaEngine) -> None:
    guide = engine.guide("gbnf", JSON)
    assert isinstance(guide, TokenGuide)

    def walk(_: int) -> bool:
        steps = guide.start()
        return not any(steps.take(FIRST_BYTE + byte) for byte in b'{"a":[1,2')

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(walk, range(200)))


def made_up(words: list[bytes], prefix: str = "") -> Guides:
    """Guides of a vocabulary that is made up; its tokeniser puts ``prefix`` before every text."""
    ids = {word: token for token, word in enumerate(words)}

    def tokenize(text: str) -> list[int]:
        data = (prefix + text).encode()
        return [ids[bytes([byte])] for byte in data if bytes([byte]) in ids]

    return Guides(lambda: words, lambda: [0], tokenize)


def test_text_that_a_tokeniser_spells_otherwise_is_cut_greedily() -> None:
    """SentencePiece puts a space before every text: what the grammar wants has none there."""
    words = [b"", b" ", *(bytes([n]) for n in range(97, 123)), b"yes", b"ye"]
    for prefix, said in (("", {b"y", b"ye", b"yes"}), (" ", {b"yes"})):
        guide = made_up(words, prefix).make("json_schema", '{"const": null}')
        assert isinstance(guide, TokenGuide)
        guide = made_up(words, prefix).make("gbnf", 'root ::= "yes"')
        assert isinstance(guide, TokenGuide)
        allowed = {words[token] for token in guide.start().allowed()}
        assert said & allowed
        assert guide.start().take(words.index(b"yes"))


def test_a_vocabulary_that_can_not_say_it() -> None:
    guide = made_up([b"", b"a"]).make("gbnf", 'root ::= "ab"')
    assert isinstance(guide, TokenGuide)
    steps = guide.start()
    assert steps.allowed().tolist() == [1]
    assert not steps.take(1)
    with pytest.raises(RequestError, match="no token of the model can go on from here"):
        steps.allowed()


def test_without_the_library_it_is_not_offered(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(NotOffered, match="pip install"):
        engine.guide("gbnf", "root ::= .")

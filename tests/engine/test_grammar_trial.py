"""Grammars that would keep the compiler busy, or end the process, are found out in a child."""

import json
import subprocess
import sys
import threading

import pytest

from spillcache.engine import grammar_trial
from spillcache.engine.grammar_trial import GrammarTrials, is_plain
from spillcache.errors import EngineError, Overloaded, RequestError

ENDLESS = {"allOf": [{"type": "string", "pattern": f"a{index}"} for index in range(20)]}
"""761 characters; the compiler does not come to an end within hours."""
REFERENCES = 3000
DEEP = {
    "$defs": {
        f"d{index}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{index + 1}"}}}
        for index in range(REFERENCES)
    }
    | {f"d{REFERENCES}": {"type": "string"}},
    "$ref": "#/$defs/d0",
}
RULES = 4000
CHAIN = "\n".join(
    ["root ::= r1", *(f"r{n} ::= r{n + 1}" for n in range(1, RULES)), f'r{RULES} ::= "a"']
)


def refusal(kind, text, trials=None):
    with pytest.raises(RequestError) as caught:
        (trials or GrammarTrials()).check(kind, text)
    assert caught.value.param == {"gbnf": "grammar"}.get(kind, kind)
    return str(caught.value)


def test_what_takes_too_long():
    assert refusal("json_schema", json.dumps(ENDLESS)) == (
        "json_schema: compiling it takes more than 1 s; use fewer alternatives (allOf, anyOf), "
        "patterns, and properties in one object"
    )


@pytest.mark.parametrize(("kind", "text"), [("json_schema", json.dumps(DEEP)), ("gbnf", CHAIN)])
def test_what_would_end_the_process(kind, text):
    assert "nest too deeply" in refusal(kind, text)


def test_what_is_known_is_not_tried_again(monkeypatch):
    tried = []
    answers = {"a" * 3000: "", "b" * 3000: "no"}
    monkeypatch.setattr(
        grammar_trial, "_tried", lambda kind, text: tried.append((kind, text)) or answers[text]
    )
    monkeypatch.setattr(grammar_trial, "_KNOWN_MAX", 2)
    trials = GrammarTrials()
    for _ in range(2):
        trials.check("gbnf", "a" * 3000)
        assert refusal("gbnf", "b" * 3000, trials) == "grammar: no"
    assert len(tried) == 2
    answers["c" * 3000] = ""
    trials.check("gbnf", "c" * 3000)
    trials.check("gbnf", "a" * 3000)
    assert len(tried) == 4


def test_few_wait_and_more_are_told_to_come_again(monkeypatch):
    go, began = threading.Event(), threading.Semaphore(0)

    tries = []

    def tried(*asked):
        tries.append(asked)
        began.release()
        assert go.wait(10)
        return ""

    monkeypatch.setattr(grammar_trial, "_tried", tried)
    trials, refused = GrammarTrials(), []
    over = threading.Semaphore(0)

    def ask(letter):
        try:
            trials.check("gbnf", letter * 3000)
        except Overloaded as error:
            refused.append(str(error))
        over.release()

    threads = [threading.Thread(target=ask, args=(letter,)) for letter in "aaaaabcdef"]
    for thread in threads:
        thread.start()
    assert began.acquire(timeout=10)
    assert all(over.acquire(timeout=10) for _ in range(2))
    go.set()
    for thread in threads:
        thread.join(10)
    assert refused == ["4 grammars are being tried, or wait for it; try again later"] * 2
    assert len(tries) == 4, "those who ask for the same one wait for the same trial"
    trials.check("gbnf", "g" * 3000)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"const": 1}}},
        {"type": "array", "items": {"enum": ["x", "y"]}},
        {"type": "object", "properties": {"pattern": {"type": "string"}}},
        {"items": 5, "properties": [], "$defs": None},
        {"anyOf": "x"},
    ],
)
def test_plain_schemas_are_not_tried(monkeypatch, schema):
    monkeypatch.setattr(grammar_trial, "_tried", lambda *_: pytest.fail("it was tried"))
    GrammarTrials().check("json_schema", json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        ENDLESS,
        {"items": {"type": "string", "pattern": "a"}},
        {"additionalProperties": {"patternProperties": {}}},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
        {"properties": {f"p{index}": {} for index in range(300)}},
        {"description": "x" * 20_000},
        {"$defs": {"a": {"format": "date"}}},
        {"anyOf": [{"oneOf": []}]},
        {"items": [ENDLESS]},
        {"$ref": "#/default", "default": ENDLESS},
        {"$ref": "#/$defs/a/default", "$defs": {"a": {"default": ENDLESS}}},
        {"$ref": 5},
    ],
)
def test_other_schemas_are(schema):
    assert not is_plain("json_schema", json.dumps(schema))


def test_gbnf_by_its_length():
    assert is_plain("gbnf", 'root ::= "a"')
    assert not is_plain("gbnf", 'root ::= "a"' + " " * 2048)


@pytest.mark.parametrize("text", ['{"type": "string", "pattern": "a+"}', '{"pattern": "("}'])
def test_what_comes_to_an_end(text):
    """Also where that is an error, which the server will meet itself."""
    GrammarTrials().check("json_schema", text)


def test_no_child_no_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="could not be tried before use: No such file"):
        GrammarTrials().check("json_schema", json.dumps(ENDLESS))


@pytest.mark.parametrize(("code", "found"), [(1, None), (-15, None), (-9, "too large")])
def test_how_a_child_ends(monkeypatch, code, found):
    done = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if found:
        assert found in refusal("json_schema", json.dumps(ENDLESS))
    else:
        with pytest.raises(EngineError, match=f"ended with {code}; "):
            GrammarTrials().check("json_schema", json.dumps(ENDLESS))


def test_a_child_that_is_not_heard_of(monkeypatch):
    def late(*_, **__):
        raise subprocess.TimeoutExpired("x", 1)

    monkeypatch.setattr(subprocess, "run", late)
    assert "more than 1 s" in refusal("json_schema", json.dumps(ENDLESS))


def test_the_childs_side(monkeypatch):
    """In this process, for what it counts: GBNF that is wrong is no fault of the trial."""
    import llguidance  # noqa: PLC0415

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(grammar_trial._Bytes()))
    grammar_trial._compile(llguidance, tokenizer, "gbnf", "root")
    grammar_trial._compile(llguidance, tokenizer, "json_schema", "{}")

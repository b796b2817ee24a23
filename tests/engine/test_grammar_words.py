"""The compiler's complaints, in words for who wrote the grammar: as the real one makes them."""

import json

import llguidance as api
import pytest

from spillcache.engine.grammar_trial import _Bytes, matcher_of
from spillcache.engine.grammar_words import reason_of

TOKENIZER = api.LLTokenizer(api.TokenizerWrapper(_Bytes()))
CASES = [
    ({"not": {}}, "these keywords can't be followed: not; leave them out"),
    (
        {"type": "array", "uniqueItems": True},
        "these keywords can't be followed: uniqueItems; leave them out",
    ),
    ({"type": "string", "pattern": "^(a$"}, "a pattern can't be followed: unclosed group; write"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around, including look-ahead"),
    ({"type": "string", "format": "odd"}, "the format 'odd' is not known; leave it out"),
    ({"type": "odd"}, "'odd' is no type; there are object, array, string"),
    ({"$ref": "#/$defs/a"}, "$ref: there is nothing at #/$defs/a in this schema"),
    ({"$ref": "http://x.example/y"}, "$ref: http://x.example/y is not fetched; put what it names"),
    (
        {"allOf": [{"type": "object", "properties": {f"p{n}": {}}} for n in range(600)]},
        "it is too large once its alternatives are worked out; make it smaller",
    ),
]


@pytest.mark.parametrize(("schema", "says"), CASES)
def test_words_of_the_library(schema, says):
    matcher = matcher_of(api, TOKENIZER, "json_schema", json.dumps(schema))
    assert matcher.is_error()
    assert says in reason_of(matcher.get_error())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("NoExtension(x)", "no token of the model can go on from here"),
        ("panic: assertion failed: x\n<backtrace>\n0: y", "it is too large once"),
        ("Unable to determine if regex is empty: (And", "can't be followed together"),
        ("Unimplemented keys: [odd]", "these keywords can't be followed: [odd]; leave"),
        (" other  words \n what was asked", "other words"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_words_that_are_rare(words, says):
    found = reason_of(words)
    assert found == says if says in ("other words", "x" * 300) else says in found

"""Thoughts, content and calls in one answer; and that no answer whatever raises."""

import json
import random

import pytest
from families import SCHEMAS
from pydantic_core import from_json
from reading import pieces_of

from spillcache.serve.answer_parser import AnswerParser, Thought, calls_of, words_of
from spillcache.serve.thinking import Thinking, thinking_of
from spillcache.serve.tool_call import CallBegun, ToolCall
from spillcache.serve.tool_formats import FORMATS, HARMONY, TAGGED

THINK = Thinking("<think>", "</think>")
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


WHOLE = (
    CALL,
    '{"name": "weather", "parameters": {"city": "x"}}',
    "[weather(city='x', days=1), plan(steps=[1, 2])]",
    '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]',
    '[TOOL_CALLS]f[ARGS]{"a": 1}',
    "<start_function_call>call:f{a:<escape>x<escape>,n:5}<end_function_call>",
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>',
    "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    "<tool_call>\n<function=plan>\n<parameter=dry>\ntrue\n</parameter>\n</function>\n</tool_call>",
    "```tool_code\nf(x=1)\n```",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.weather <|constrain|>json<|message|>{"city": "x"}<|call|>',
    "<|channel|>final<|message|>Some words.<|return|>",
    "Some words.\n\n",
)


def parts(text, size=None, *, format_=TAGGED, thinking=THINK, thinks=False):
    """Thoughts, content, and the names that are called."""
    pieces = pieces_of(text, format_, {}, thinking, size=size, thinks=thinks)
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, Thought)),
        words_of(pieces),
        [piece.name for piece in pieces if isinstance(piece, CallBegun)],
    )


@pytest.mark.parametrize("size", [None, 1, 2, 5])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nhm, a < b\n</think>\n\nYes.", ("hm, a < b", "Yes.", [])),
        ("\n<think>hm</think>" + CALL, ("hm", "", ["f"])),
        ("<think>\n\n</think>\n\nYes.", ("", "Yes.", [])),
        ("<think>\nhm </thin", ("hm </thin", "", [])),
        ("<think>\nhm \n", ("hm", "", [])),
        ("<thing>", ("", "<thing>", [])),
        ("  Yes. <think>no</think>", ("", "  Yes. <think>no</think>", [])),
        ("<think>" + CALL + "</think>\n" + CALL, (CALL, "", ["f"])),
        ("", ("", "", [])),
        ("Yes.\n\n" + CALL + "\n\nNo.\n", ("", "Yes.No.\n", ["f"])),
        ("a\n<tool", ("", "a\n<tool", [])),
    ],
)
def test_an_answer_in_parts(text, expected, size):
    assert parts(text, size) == expected


@pytest.mark.parametrize("size", [None, 1])
def test_thoughts_that_the_prompt_began(size):
    assert parts("hm\n</think>\n\nYes.", size, thinks=True) == ("hm", "Yes.", [])
    assert parts("hm", size, thinks=True) == ("hm", "", [])


@pytest.mark.parametrize("size", [None, 1])
def test_without_tools_calls_are_content(size):
    assert parts("<think>x</think>" + CALL, size, format_=None) == ("x", CALL, [])
    assert parts(" a\n", size, format_=None, thinking=None) == ("", " a\n", [])


@pytest.mark.parametrize(
    ("template", "opens"),
    [
        ("… </think> …", "<think>"),
        ("[THINK][/THINK]", "[THINK]"),
        ("<|END_THINKING|>", "<|START_THINKING|>"),
        ("chatml", None),
    ],
)
def test_thoughts_are_read_from_the_template(template, opens):
    thinking = thinking_of(template)
    assert (thinking and thinking.opens) == opens


def test_a_prompt_that_begins_the_thoughts():
    assert THINK.is_open("assistant\n<think>\n")
    assert not THINK.is_open("assistant\n<think>\n\n</think>\n\n")


def fuzzed(rng):
    """Marks of all families, JSON and code, in any order, cut and bent."""
    scraps = [mark for format_ in FORMATS for mark in format_.spelled]
    scraps += ['{"name": "weather", "arguments": {"city": "x"}}', '"name"', "weather", "plan(", ")"]
    scraps += ["{", "}", "[", "]", '"', "'", "\\", ",", ":", "=", " ", "\n", "\\u12", "\ud800", "é"]
    scraps += ["<function=f>", "<parameter=a>", "</parameter>", "<arg_key>k</arg_key>", "call:f{"]
    scraps += ["<arg_value>1", "</arg_value>", "-1e999", "NaN", "1e5", "true", "null", "\x00", "x"]
    scraps += ["<think>", "</think>", "f(a=[{'b': (1,)}])", "```json", "0" * 30, "[[[[", "}}}}"]
    if rng.random() < 0.5:
        return "".join(rng.choice(scraps) for _ in range(rng.randrange(1, 14)))
    text = "".join(rng.choice(WHOLE) for _ in range(rng.randrange(1, 4)))
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(["", *scraps]) + text[at + rng.randrange(4) :]
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text


def test_no_answer_raises_or_depends_on_where_it_is_cut():
    """10,000 outputs; and nothing that is not white space, a mark or a call is lost."""
    rng = random.Random(6)
    seen_calls = cut_off = 0
    for _ in range(10_000):
        format_ = rng.choice(FORMATS)
        text = fuzzed(rng)
        pieces = pieces_of(text, format_, SCHEMAS, THINK)
        split = pieces_of(text, format_, SCHEMAS, THINK, size=rng.randrange(1, 9))
        calls = calls_of(pieces)
        assert calls == calls_of(split)
        assert words_of(pieces) == words_of(split)
        assert thoughts_of(pieces) == thoughts_of(split)
        for call in calls:
            assert call.name.encode()
            assert call.arguments.encode()
            cut_off += not is_object(call.arguments)
        seen_calls += len(calls)
        if not calls and not thoughts_of(pieces) and not format_.channels:
            assert words_of(pieces) in (text, text.replace("<think>", "", 1).strip())
    assert seen_calls > 200
    assert 0 < cut_off < seen_calls / 2


def thoughts_of(pieces):
    return "".join(piece.text for piece in pieces if isinstance(piece, Thought))


def is_object(text):
    """Whether it is JSON; else it must be the beginning of an object."""
    assert text.startswith("{")
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        assert isinstance(from_json(text, allow_partial=True), dict)
        return False


def test_channels():
    def read(text, size=1):
        pieces = pieces_of(text, HARMONY, {}, size=size)
        return thoughts_of(pieces), words_of(pieces), calls_of(pieces)

    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    assert read(said + "Dry.<|return|>") == ("Hm.", "Dry.", [])
    assert read(said + "Dry") == ("Hm.", "Dry", [])
    assert read(said + " {<|x", None) == ("Hm.", " {<|x", [])
    # Words before a call are meant for the user; a call's channel may come before its receiver.
    look = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert read(look + call) == ("", "I look.", [ToolCall("f", "{}")])
    assert (
        read(look + " to=functions.f" + call.replace("to=functions.f ", ""))[1:]
        == read(look + call)[1:]
    )
    assert read(call + "<|start|>assistant" + call)[2] == [ToolCall("f", "{}")] * 2
    # What is in none of these forms is said as it is.
    for text in ("Dry.", '{"a": 1}', "<|channel|>final", "a to=b", "<|channel|>" + "x" * 600):
        assert read(text) == ("", text, [])
    assert read("to=functions.f<|message|>print()<|call|>")[1] == "to=functions.f<|message|>print()"


def test_calls_in_channels_are_words_where_none_are_read():
    call = "<|channel|>commentary to=functions.f<|message|>{}"
    parser = AnswerParser(None, {}, channels=True)
    assert words_of(parser.push(call + "<|call|>") + parser.finish()) == call

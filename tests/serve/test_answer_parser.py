"""Thoughts, content and calls in one answer; and that no answer whatever raises."""

import random

import pytest
from families import SCHEMAS

from spillcache.serve.answer_parser import AnswerParser, Thought
from spillcache.serve.thinking import Thinking, thinking_of
from spillcache.serve.tool_call import ToolCall
from spillcache.serve.tool_formats import FORMATS, TAGGED

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
    "Some words.\n\n",
)


def parts(text, size=None, *, format_=TAGGED, thinking=THINK, thinks=False):
    """Thoughts, content, and the names that are called."""
    size = size or max(1, len(text))
    parser = AnswerParser(format_, {}, thinking, thinks=thinks)
    pieces = [
        piece for at in range(0, len(text), size) for piece in parser.push(text[at : at + size])
    ]
    pieces += parser.finish()
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, Thought)),
        "".join(piece for piece in pieces if isinstance(piece, str)),
        [piece.name for piece in pieces if isinstance(piece, ToolCall)],
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
    seen_calls = 0
    for _ in range(10_000):
        format_ = rng.choice(FORMATS)
        text = fuzzed(rng)
        whole = AnswerParser(format_, SCHEMAS, THINK)
        pieces = whole.push(text) + whole.finish()
        split = AnswerParser(format_, SCHEMAS, THINK)
        cut = rng.randrange(len(text) + 1)
        pieces_split = split.push(text[:cut]) + split.push(text[cut:]) + split.finish()
        calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
        assert calls == [piece for piece in pieces_split if isinstance(piece, ToolCall)]
        assert said(pieces) == said(pieces_split)
        for call in calls:
            assert call.name.encode()
            assert call.arguments.encode()
        seen_calls += len(calls)
        if not calls and not any(isinstance(piece, Thought) for piece in pieces):
            assert said(pieces) in (text, text.replace("<think>", "", 1).strip())
    assert seen_calls > 200


def said(pieces):
    return "".join(piece for piece in pieces if isinstance(piece, str))

"""Every family's calls, rendered by its template and parsed back, whole, in pieces, and broken."""

import json

import pytest
from families import FAMILIES, SCHEMAS, TOOLS, called, source_of, template_of

from spillcache.serve.answer_parser import AnswerParser, parse_answer
from spillcache.serve.tool_call import ToolCall
from spillcache.serve.tool_formats import FORMATS, GENERIC, tool_format

ASKED = [{"role": "user", "content": "Rain?"}]
CALLS = [
    ("weather", {"city": "Örö", "days": 3}),
    ("write_file", {"path": "a.py", "text": "if x > 1:\n    print(\"}]) {\", '[')\n"}),
    ("plan", {"steps": [1, "two", {"three": None}], "options": {}, "dry": True, "share": -0.5}),
]


def answer_of(name, calls, content=""):
    """What the template says that the model wrote."""
    said = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            called(tool, json.dumps(given, ensure_ascii=False), f"functions.{tool}:{index}")
            if name == "kimi-k2"
            else called(tool, json.dumps(given, ensure_ascii=False), f"abcdefgh{index}")
            for index, (tool, given) in enumerate(calls)
        ],
    }
    template = template_of(name)
    prompt = template.render(ASKED, tools=TOOLS)
    text = template.render([*ASKED, said], add_generation_prompt=False, tools=TOOLS)
    assert text.startswith(prompt)
    return text.removeprefix(prompt).removesuffix(FAMILIES[name].end)


def in_pieces(text, format_, size):
    parser = AnswerParser(format_, SCHEMAS)
    pieces = [
        piece for at in range(0, len(text), size) for piece in parser.push(text[at : at + size])
    ]
    pieces += parser.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]


def understood(calls):
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_is_read_from_the_template(name):
    assert tool_format(source_of(name)).name == FAMILIES[name].format
    assert tool_format(source_of(name)).id_characters == (9 if name == "mistral" else 0)


@pytest.mark.parametrize("builtin", ["chatml", "gemma", "llama3", "{{ messages }}"])
def test_a_template_without_tools_has_the_generic_format(builtin):
    assert tool_format(builtin) is GENERIC


def test_a_template_with_unknown_marks_has_the_generic_format():
    assert tool_format("{{ tools }} <how_odd>") is GENERIC


@pytest.mark.parametrize("call", CALLS, ids=[call[0] for call in CALLS])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_template_renders_is_parsed_back(name, call):
    format_ = tool_format(source_of(name))
    text = answer_of(name, [call])
    assert "weather" in text or "file" in text or "plan" in text
    content, calls = parse_answer(text, format_, SCHEMAS)
    if name != "command-r7b":  # which thinks before it calls
        assert content == ""
    assert understood(calls) == [call]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.calls > 1])
def test_several_calls(name):
    _, calls = parse_answer(answer_of(name, CALLS), tool_format(source_of(name)), SCHEMAS)
    assert understood(calls) == CALLS


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.talks])
def test_words_before_a_call(name):
    text = answer_of(name, CALLS[:1], "I look.")
    content, calls = parse_answer(text, tool_format(source_of(name)), SCHEMAS)
    assert content == "I look."
    assert understood(calls) == CALLS[:1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("name", FAMILIES)
def test_pieces_say_what_the_whole_says(name, size):
    format_ = tool_format(source_of(name))
    text = answer_of(name, CALLS[: FAMILIES[name].calls])
    assert in_pieces(text, format_, size) == parse_answer(text, format_, SCHEMAS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_ends_too_soon_is_content(name):
    """Cut anywhere: a call is whole or it is content, to the letter but for white space."""
    format_ = tool_format(source_of(name))
    text = answer_of(name, CALLS[:1])
    whole = parse_answer(text, format_, SCHEMAS)[1]
    for end in range(len(text)):
        content, calls = parse_answer(text[:end], format_, SCHEMAS)
        assert calls in ([], whole)
        if not calls:
            assert content == text[:end]


@pytest.mark.parametrize("name", FAMILIES)
def test_json_arguments_are_the_models_own_text(name):
    """What is sent back must say what the model's tokens say."""
    source = source_of(name)
    if "arguments | items" in source or "value(call" in source:
        pytest.skip("this family writes no JSON")
    odd = '{"city":"\\u00d6r\\u00f6",   "days" :3}'
    text = answer_of(name, CALLS[:1]).replace('{"city": "Örö", "days": 3}', odd)
    assert odd in text
    assert parse_answer(text, tool_format(source), SCHEMAS)[1][0].arguments == odd


def test_ids_that_a_model_gives_are_kept():
    (call,) = parse_answer(answer_of("mistral", CALLS[:1]), tool_format("tools [TOOL_CALLS]"), {})[
        1
    ]
    assert call.id == "abcdefgh0"
    (call,) = parse_answer(
        answer_of("kimi-k2", CALLS[:1]), tool_format("tools <|tool_call_begin|>"), {}
    )[1]
    assert call.id == "functions.weather:0"


@pytest.mark.parametrize(
    ("format_name", "text", "names"),
    [
        (
            "mistral",
            '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]g[ARGS]{"a": 1}',
            ["f", "g"],
        ),
        ("mistral", "[TOOL_CALLS]f{}", ["f"]),
        ("llama", '<|python_tag|>{"name": "weather", "parameters": {}}', ["weather"]),
        (
            "llama",
            '{"name": "weather", "parameters": {}}; {"name": "plan", "parameters": {}}',
            ["weather", "plan"],
        ),
        ("llama", '{"type": "function", "function": "plan", "parameters": {}}', ["plan"]),
        ("llama", '<function=f>{"a": 1}</function><function=g>{}</function>', ["f", "g"]),
        ("llama", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>", ["f"]),
        ("pythonic", "[weather(city='x', days=1), plan()]", ["weather", "plan"]),
        ("pythonic", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>", ["f"]),
        ("command", 'Action: ```json\n[{"tool_name": "f", "parameters": {}}]\n```', ["f"]),
        ("gemma-code", "```tool_code\nf(x=1)\n```", ["f"]),
        ("gemma-code", '```tool_call\n{"name": "f", "arguments": {}}\n```', ["f"]),
        ("gemma4", '<|tool_call>call:f{a:<|"|>}{<|"|>,b:[1,true]}<tool_call|>', ["f"]),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', ["f"]),
        ("phi", 'functools[{"name": "f", "arguments": {}}]', ["f"]),
        ("phi", '<|tool_call|>[{"type":"function","function":{"name":"f","arguments":{}}}]', ["f"]),
        ("tagged", '<tool_call>```json\n{"name": "f"}\n```</tool_call>', ["f"]),
        ("tagged", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ["f"]),
        ("tagged", '<tool_call>{"name": "f", "arguments": null}</tool_call>', ["f"]),
        ("tagged", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', ["f", "g"]),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', ["f"]),
        ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", ["f"]),
        ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>", ["f"]),
    ],
)
def test_spellings_that_models_use(format_name, text, names):
    format_ = next(one for one in FORMATS if one.name == format_name)
    content, calls = parse_answer(text, format_, SCHEMAS)
    assert [call.name for call in calls] == names
    assert content == ""
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    assert in_pieces(text, format_, 1) == (content, calls)


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("tagged", "<tool_call>no such name</tool_call>"),
        ("tagged", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": "text"}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("tagged", "<tool_call>[]</tool_call>"),
        ("tagged", "<tool_call>[1]</tool_call>"),
        ("tagged", "<tool_call>{]</tool_call>"),
        ("tagged", "<tool_call>" + '{"a":' * 200 + "1" + "}" * 200),
        ("tagged", "<tool_call><function=>\n</function></tool_call>"),
        ("tagged", '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 80 + "1" + "}" * 81),
        ("llama", '{"name": "unknown", "parameters": {}}'),
        ("llama", '{"temperature": 5}'),
        ("llama", "{ not JSON"),
        ("pythonic", "[unknown(x=1)]"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[weather(x=1]"),
        ("pythonic", "[weather(x=y)]"),
        ("pythonic", "[weather(1)]"),
        ("pythonic", "[weather(x=" + "[" * 40 + "]" * 40 + ")]"),
        ("pythonic", "[weather(x=1) plan()]"),
        ("pythonic", "[weather(x='a)]"),
        ("pythonic", "[weather(x=" + "9" * 500 + ")]"),
        ("mistral", "[TOOL_CALLS]" + "x" * 600 + "{}"),
        ("mistral", "[TOOL_CALLS] [1]"),
        ("functiongemma", "<start_function_call>f{}<end_function_call>"),
        ("functiongemma", "<start_function_call>call:f{a:<escape>x}<end_function_call>"),
        ("functiongemma", "<start_function_call>call:f{}x<end_function_call>"),
        ("deepseek", "<｜tool▁calls▁begin｜>f"),
        ("internlm", "<|action_start|>f"),
        ("gemma-code", "```tool_code\nprint(open('x').read())\n```"),
        ("command", "Action: none"),
        ("phi", "import functools\nfunctools.wraps"),
    ],
)
def test_what_is_no_call_is_content(format_name, text):
    format_ = next(one for one in FORMATS if one.name == format_name)
    assert parse_answer(text, format_, SCHEMAS) == (text, [])
    assert in_pieces(text, format_, 1) == (text, [])


def test_values_have_the_types_of_the_schema():
    text = (
        "<tool_call><function=plan>\n<parameter=steps>\n[1]\n</parameter>\n<parameter=dry>\ntrue\n"
        "</parameter>\n<parameter=share>\nmuch\n</parameter>\n<parameter=more>\n5\n</parameter>\n"
        "</function></tool_call>"
    )
    (call,) = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS)[1]
    # What the schema does not know, and what is not of its type, stays text.
    assert json.loads(call.arguments) == {"steps": [1], "dry": True, "share": "much", "more": "5"}


def test_half_a_character_is_told_as_an_escape():
    text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d\n"}}</tool_call>'
    (call,) = parse_answer(text, tool_format("tools <tool_call>"), {})[1]
    assert json.loads(call.arguments.encode()) == {"a": "\ud83d\n"}

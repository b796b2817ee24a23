"""Every family's calls, rendered by its template and parsed back, whole, in pieces, and broken."""

import json

import pytest
from families import FAMILIES, SCHEMAS, TOOLS, called, source_of, template_of
from reading import parse_answer, pieces_of

from spillcache.serve.tool_call import CallBegun, CallEnd, CallPart
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
    assert parse_answer(text, format_, SCHEMAS, size) == parse_answer(text, format_, SCHEMAS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_ends_too_soon(name):
    """Cut anywhere: until its name is known it is content, to the letter but for white space;
    from then on a call, its arguments the beginning of the whole ones, and nothing is content.
    """
    format_ = tool_format(source_of(name))
    text = answer_of(name, CALLS[:1])
    (whole,) = parse_answer(text, format_, SCHEMAS)[1]
    called_yet = False
    for end in range(len(text) + 1):
        content, calls = parse_answer(text[:end], format_, SCHEMAS)
        assert calls or not called_yet
        called_yet = bool(calls)
        if not calls:
            assert content == text[:end] or name in {"command-r7b", "gpt-oss"}
            continue
        (call,) = calls
        assert (call.name, call.id) == (whole.name, whole.id)
        assert whole.arguments.startswith(call.arguments)
        assert call == whole or not content or name == "command-r7b"
    assert called_yet


STREAMED = {
    "qwen", "qwen-coder", "glm", "llama3", "devstral", "command-r7b", "deepseek-v3",
    "deepseek-v31", "phi4-mini", "granite", "kimi-k2", "internlm", "gpt-oss",
}  # fmt: skip
"""Families whose calls say their name before their arguments, and write those in texts or JSON."""


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_are_told_while_they_come(name):
    """And what is told at any time is the beginning of what is told in the end."""
    format_ = tool_format(source_of(name))
    text = answer_of(name, CALLS[1:2])
    pieces = pieces_of(text, format_, SCHEMAS, size=1)
    parts = [piece.text for piece in pieces if isinstance(piece, CallPart)]
    whole = json.dumps(CALLS[1][1])
    assert json.loads("".join(parts)) == CALLS[1][1]
    if name in STREAMED:
        assert len(parts) > len(whole) / 2
    else:
        assert len(parts) == 1
    kinds = [type(piece) for piece in pieces]
    begun, over = kinds.index(CallBegun), kinds.index(CallEnd)
    assert set(kinds[begun + 1 : over]) == {CallPart}
    assert pieces[over].whole


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
    assert parse_answer(text, format_, SCHEMAS, 1) == (content, calls)


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("tagged", "<tool_call>no such name</tool_call>"),
        ("tagged", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": "text"}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("tagged", "<tool_call>[]</tool_call>"),
        ("tagged", "<tool_call>[1]</tool_call>"),
        ("tagged", "<tool_call>{]</tool_call>"),
        ("tagged", "<tool_call>" + '{"a":' * 200 + "1" + "}" * 200),
        ("tagged", "<tool_call><function=>\n</function></tool_call>"),
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
    assert parse_answer(text, format_, SCHEMAS, 1) == (text, [])


@pytest.mark.parametrize(
    ("format_name", "text", "arguments", "content"),
    [
        (
            "tagged",
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            '{"a": ',
            "NaN}}</tool_call>",
        ),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a" 1}}', '{"a" ', "1}}"),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": [1 2]}}', '{"a": [1 ', "2]}}"),
        ("tagged", '<tool_call>{"name": "f", "arguments": {1: 2}}', "{", "1: 2}}"),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": 1e400}}', '{"a": ', "1e400}}"),
        (
            "tagged",
            '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 80,
            '{"a":' * 64 + "{",
            '"a":' + '{"a":' * 15,
        ),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": 12', '{"a": ', ""),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "\\ud83', '{"a": "', ""),
        ("tagged", '<tool_call>{"name": "f", "arguments": {}, 5}', "{}", ", 5}"),
        ("tagged", '<tool_call>{"name": "f", "arguments": {}, "x', "{}", ""),
        ("tagged", '<tool_call>{"name": "f", "arguments": {}\n</tool_call>', "{}", ""),
        ("tagged", '<tool_call>[{"name": "f"}, 1]</tool_call>', "{}", "1]</tool_call>"),
        ("tagged", "<tool_call><function=f><parameter=a>b", '{"a": "b', ""),
        ("tagged", "<tool_call>f<arg_key>a</arg_key>b", "{", "<arg_key>a</arg_key>b"),
        ("harmony", "to=functions.f<|message|>{5}<|call|>", "{", "5}"),
    ],
)
def test_a_call_that_breaks_stays_a_call(format_name, text, arguments, content):
    """Its name is told already: the arguments end where they are no JSON any more."""
    format_ = next(one for one in FORMATS if one.name == format_name)
    for size in (None, 1, 7):
        said, (call,) = parse_answer(text, format_, SCHEMAS, size)
        assert (call.name, call.arguments, said) == ("f", arguments, content)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'"a\n\"\\\/\u00e9"', 'a\n"\\/é'),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d \ude00\ud83d"', "\ufffd \ufffd\ufffd"),
        (r'"\ud83d\u0041"', "\ufffdA"),
        ('"two\nlines\tand a \x01"', "two\nlines\tand a \x01"),
        ('"half \ud83d"', "half \ufffd"),
        (r'"\d+ it\'s \u12 \uxyz4"', "\\d+ it's \\u12 \\uxyz4"),
        ("[1, -2.5e3, true, false, null, [], {}]", [1, -2500.0, True, False, None, [], {}]),
    ],
)
def test_values_of_arguments(written, read):
    """What models write beside JSON is put right on the way."""
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {written} }}}}</tool_call>'
    for size in (None, 1, 3):
        said, (call,) = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS, size)
        assert json.loads(call.arguments) == {"a": read}
        assert call.arguments.encode()
        assert said == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [("-1e999", "-1e999"), ("NaN", "NaN"), ("9" * 5000, "9" * 5000), ("0.5", 0.5)],
)
def test_numbers_that_json_has_not_stay_texts(written, read):
    text = f"<tool_call>plan<arg_key>share</arg_key><arg_value>{written}</arg_value></tool_call>"
    ((call,),) = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS)[1:]
    assert json.loads(call.arguments) == {"share": read}
    text = f'<tool_call>{{"name": "f", "arguments": "{{\\"a\\": {written}}}"}}</tool_call>'
    _, calls = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS)
    assert len(calls) == (read == 0.5)


def test_arguments_that_come_twice_count_once():
    arguments = '"arguments": {"a": 1}, "arguments": 2'
    text = f'<tool_call>{{"id": 5, "type": "function", "name": "f", {arguments}}}'
    ((call,),) = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS)[1:]
    assert (call.id, call.arguments) == ("", '{"a": 1}')


def test_values_have_the_types_of_the_schema():
    text = (
        "<tool_call><function=plan>\n<parameter=steps>\n[1]\n</parameter>\n<parameter=dry>\ntrue\n"
        "</parameter>\n<parameter=share>\nmuch\n</parameter>\n<parameter=more>\n5\n</parameter>\n"
        "</function></tool_call>"
    )
    (call,) = parse_answer(text, tool_format("tools <tool_call>"), SCHEMAS)[1]
    # What the schema does not know, and what is not of its type, stays text.
    assert json.loads(call.arguments) == {"steps": [1], "dry": True, "share": "much", "more": "5"}


def test_half_a_character_is_told_as_a_whole_one():
    text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d\n"}}</tool_call>'
    (call,) = parse_answer(text, tool_format("tools <tool_call>"), {})[1]
    assert json.loads(call.arguments.encode()) == {"a": "\ufffd\n"}

"""Arguments of calls in templates: objects to some, texts to others."""

import json

import pytest

from spillcache.engine.call_arguments import CallArguments
from spillcache.engine.chat_template import ChatTemplate

ODD = '{"a":1,  "b": "\\u00e9"}'


def rendered(source, arguments, **options):
    message = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    template = "{% set a = messages[0].tool_calls[0].function.arguments %}" + source
    return ChatTemplate(template, "", "").render([message], **options)


@pytest.mark.parametrize(
    "source",
    [
        "{{ a }}",
        "{{ a | tojson }}",
        "{{ '' + a }}",
        "{{ a + '' }}",
        "{{ '' ~ a }}",
        "{{ a | string }}",
        "{{ a if a is string else a | tojson }}",
    ],
)
def test_arguments_are_written_as_json(source):
    normal = '{"a": 1, "b": "é"}'
    assert rendered(source, ODD) == normal
    assert rendered(source, json.loads(ODD)) == normal
    assert rendered(source, CallArguments(json.loads(ODD), ODD)) == ODD


def test_arguments_are_objects_all_the_same():
    source = "{% for k, v in a | items %}{{ k }}={{ v }};{% endfor %}{{ a.b }}{{ a is mapping }}"
    assert rendered(source, ODD) == "a=1;b=é;éTrue"
    assert rendered("{{ a | tojson(indent=2) }}", CallArguments({"a": 1}, '{"a":1}')) == (
        '{\n  "a": 1\n}'
    )
    assert rendered("{{ {'x': a} | tojson }}", ODD) == '{"x": {"a": 1, "b": "é"}}'


@pytest.mark.parametrize("odd", ["no JSON", "[1, 2]", ""])
def test_what_is_no_object_stays(odd):
    assert rendered("{{ a }}", odd) == (odd if odd != "[1, 2]" else "[1, 2]")


def test_only_texts_are_joined():
    with pytest.raises(TypeError):
        CallArguments({}) + 1
    with pytest.raises(TypeError):
        1 + CallArguments({})


def test_tools_are_given_to_the_template():
    tools = [{"type": "function", "function": {"name": "f"}}]
    template = ChatTemplate("{{ tools | tojson if tools else 'none' }}", "", "")
    talk = [{"role": "user", "content": "hi"}]
    assert template.render(talk, tools=tools) == json.dumps(tools)
    assert template.render(talk, tools=[]) == "none"
    assert template.render(talk) == "none"


def test_large_tools_have_room():
    text = "x" * 2_000_000
    tools = [{"type": "function", "function": {"name": "f", "description": text}}]
    template = ChatTemplate("{{ tools | tojson }}", "", "")
    assert text in template.render([{"role": "user", "content": "hi"}], tools=tools)

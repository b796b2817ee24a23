import json
from datetime import datetime

import pytest

from spillcache.engine.chat_template import BUILTIN, ChatTemplate, pick_template
from spillcache.errors import ConfigError, ModelLoadError, RequestError, Unsupported

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi\n"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def render(source, messages, **options):
    return ChatTemplate(source, "<B>", "<E>").render(messages, **options)


def test_chatml():
    assert render("chatml", TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_gemma_puts_the_system_message_into_the_first_user_turn():
    assert render("gemma", TALK) == (
        "<B><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello"
        "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )


def test_gemma_with_nothing_but_a_system_message():
    assert render("gemma", TALK[:1], add_generation_prompt=False) == (
        "<B><start_of_turn>user\nBe brief.<end_of_turn>\n"
    )


def test_llama3():
    talk = [*TALK[:2], {"role": "tool", "content": "42"}]
    assert render("llama3", talk) == (
        "<B><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize("name", BUILTIN)
def test_the_next_turn_extends_the_last(name):
    before = render(name, TALK[:2])
    assert render(name, TALK).startswith(before)
    assert not render(name, TALK, add_generation_prompt=False).startswith(render(name, TALK))


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("role", ["narrator", "", None, 5, ["user"]])
def test_an_unknown_role_is_refused(name, role):
    with pytest.raises(RequestError, match=r"messages\[0\]\.role must be one of") as caught:
        render(name, [{"role": role, "content": "x"}])
    assert caught.value.param == "messages[0].role"


def test_a_developer_is_the_system():
    assert render("chatml", [{"role": "developer", "content": "x"}]).startswith(
        "<|im_start|>system\nx"
    )


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "ab"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": None}]) == ""


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_media_are_unsupported(kind):
    with pytest.raises(Unsupported, match="text only") as caught:
        render("gemma", [{"role": "user", "content": [{"type": kind}]}])
    assert caught.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    "content", [5, {}, [5], [{}], [{"type": "text"}], [{"type": 1}], [{"type": []}]]
)
def test_content_that_is_none(content):
    with pytest.raises(RequestError, match=r"messages\[0\]\.content"):
        render("gemma", [{"role": "user", "content": content}])


def test_tool_calls_arrive_as_objects():
    source = "{{ messages[0].tool_calls | map(attribute='function') | list | tojson }}"
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": '{"a": "é<"}'}},
        {"type": "function", "function": {"name": "g", "arguments": "{broken"}},
        {"type": "function", "function": {"name": "h"}},
        {"type": "function", "function": {"name": "i", "arguments": {"b": 1}}},
    ]
    out = render(source, [{"role": "assistant", "content": None, "tool_calls": calls}])
    assert "é<" in out  # neither HTML nor ASCII escapes
    assert json.loads(out) == [
        {"name": "f", "arguments": {"a": "é<"}},
        {"name": "g", "arguments": "{broken"},
        {"name": "h"},
        {"name": "i", "arguments": {"b": 1}},
    ]
    odd = [{"role": "assistant", "content": "", "tool_calls": [5, {"function": None}]}]
    assert render("{{ messages[0].tool_calls | tojson }}", odd) == '[5, {"function": null}]'


def test_arguments_that_are_nested_too_deeply_are_the_requests_fault():
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    with pytest.raises(RequestError, match="nested too deeply") as caught:
        render("chatml", [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert caught.value.param == "messages[0].tool_calls"


@pytest.mark.parametrize(
    "source", ["chatml", "{{ messages[0].x | tojson }}", "{{ raise_exception(messages[0].x) }}"]
)
@pytest.mark.parametrize("depth", [500, 100_000])
def test_values_that_are_nested_too_deeply_are_the_requests_fault(source, depth):
    nested = []
    for _ in range(depth):
        nested = [nested]
    message = {"role": "user", "content": "", "x": nested}
    if source == "chatml" and depth == 500:
        assert render(source, [message]).startswith("<|im_start|>user")
        return
    with pytest.raises(RequestError, match="the model's chat template refuses"):
        render(source, [message])


def test_a_template_of_a_model_as_they_are_written():
    source = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- macro turn(role, text) %}
<{{ role }}>{{ text }}</{{ role }}>
{%- endmacro %}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception("Roles must alternate!") }}
    {%- endif %}
    {%- if loop.last and tools is none %}{% generation %}[{{ loop.length }}]{% endgeneration %}
    {%- endif %}
    {%- if m.name is defined %}{% continue %}{% endif %}
    {{- turn(m.role, m.content.split('|')[-1].strip() ~ eos_token) }}
{%- endfor %}
{%- if add_generation_prompt %} {{ strftime_now('%Y') }} {{ rules }}{% endif %}"""
    assert render(source, [*TALK[:3], {"role": "user", "content": "a|b "}]) == (
        "<B><user>Hi<E></user><assistant>Hello<E></assistant>[3]<user>b<E></user> "
        f"{datetime.now().astimezone():%Y} Be brief."
    )
    with pytest.raises(RequestError, match="refuses these messages: Roles must alternate!"):
        render(source, [TALK[1], TALK[1]])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].content | int / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.mro() }}", "unsafe"),
    ],
)
def test_a_failing_template_is_the_requests_fault_and_quotes_no_prompt(source, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        render(source, [{"role": "user", "content": "secret"}])
    assert "secret" not in str(caught.value)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}",
        "{{ 1 | nosuchfilter }}",
        "{{ 'x' | center(1000000000) }}",
        "{{" + "(" * 5000 + ")" * 5000 + "}}",
        "{{" + "9" * 5000 + "}}",
        "{#" + "x" * (1 << 20) + "#}",
    ],
)
def test_a_broken_template_is_a_model_error(source):
    with pytest.raises(ModelLoadError, match="the chat template"):
        ChatTemplate(source, "", "")


def test_the_source_is_kept():
    assert ChatTemplate("gemma", "", "").source == "gemma"


def test_picking():
    def tokens(*known):
        return lambda text: text in known

    gemma, llama = "<start_of_turn>", "<|start_header_id|>"
    assert pick_template("{{ own }}", "llama3", tokens(gemma)) == "llama3"
    assert pick_template("{{ own }}", "{{ asked }}", tokens(gemma)) == "{{ asked }}"
    assert pick_template("{{ own }}", None, tokens(gemma)) == "{{ own }}"
    assert pick_template(None, None, tokens(gemma, llama)) == "gemma"
    assert pick_template("", "", tokens(llama)) == "llama3"
    assert pick_template(None, None, tokens()) == "chatml"
    with pytest.raises(ConfigError, match="--chat-template: 'nosuch' is not a template"):
        pick_template(None, "nosuch", tokens())

"""Templates in the styles of well-known model families, written anew: what they do must work."""

import pytest

from spillcache.engine.chat_template import ChatTemplate
from spillcache.engine.template_budget import Budget
from spillcache.engine.template_sandbox import TemplateSandbox

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells <it>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {"id": "c12345678", "type": "function"}
TALK = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": "<think>\nhm\n</think>\n\nI look.",
        "tool_calls": [CALL | {"function": {"name": "weather", "arguments": {"city": "Örö"}}}],
    },
    {"role": "tool", "content": "dry", "tool_call_id": "c12345678"},
    {"role": "tool", "content": "warm", "tool_call_id": "c12345678"},
    {"role": "user", "content": "Thanks"},
]
ANSWERED = [*TALK[:-1], {"role": "assistant", "content": "No."}, TALK[-1]]
"""Where roles must alternate, calls and their results apart."""

WEATHER = (
    '{"type": "function", "function": {"name": "weather", "description": "Tells <it>", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
)

CHATML = """{% if not add_generation_prompt is defined %}
{% set add_generation_prompt = false %}
{% endif %}
{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nHello.<|im_end|>\n' }}
{% endif %}
{{- '<|im_start|>' ~ message['role'] ~ '\n' ~ message['content'] | trim ~ '<|im_end|>' ~ '\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set rules = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) | length > 100 }}
        {{- "\n" }}
    {%- endfor %}
{%- endif %}
{{- rules + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' ~ call.arguments | tojson ~ "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}{%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages if message['role'] in ['user', 'assistant'] -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = 'model' if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

QWEN = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<think>' + reasoning.strip('\n') + '</think>' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<r>\n' }}{{- message.content }}{{- '\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set rules = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined
        and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and rules is defined %}
            {{- "[INST] " + rules + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Ids have 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] in ("tool_results", "tool") %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- endif %}
{%- endfor %}"""

EXPECTED = {
    "chatml": (
        CHATML,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nI look.<|im_end|>\n"
        "<|im_start|>tool\ndry<|im_end|>\n<|im_start|>tool\nwarm<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama3": (
        LLAMA3,
        "<B><|start_header_id|>system<|end_header_id|>\n\nTrue\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nRain?<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "weather", '
        '"parameters": {"city": "Örö"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\ndry<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\nwarm<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nThanks<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": (
        GEMMA,
        "<B><start_of_turn>user\nBe brief. \n\nRain?<end_of_turn>\n"
        "<start_of_turn>model\n<think>\nhm\n</think>\n\nI look.<end_of_turn>\n"
        "<start_of_turn>user\nThanks<end_of_turn>\n<start_of_turn>model\n",
    ),
    "qwen": (
        QWEN,
        f"<|im_start|>system\nBe brief. \n\n<tools>\n{WEATHER}\n</tools><|im_end|>\n"
        "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Örö"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<r>\ndry\n</r>\n<r>\nwarm\n</r><|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n",
    ),
    "mistral": (
        MISTRAL,
        '<B>[INST] Rain?[/INST][TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Örö"}, '
        '"id": "c12345678"}]<E>[TOOL_RESULTS] {"content": dry}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": warm}[/TOOL_RESULTS] No.<E>'
        f"[AVAILABLE_TOOLS] [{WEATHER}][/AVAILABLE_TOOLS]"
        "[INST] Be brief. \n\nThanks[/INST]",
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_talk_with_tools(name):
    source, text = EXPECTED[name]
    talk = ANSWERED if name == "mistral" else TALK
    run = TemplateSandbox().compile_template(source)
    variables = {"messages": talk, "tools": TOOLS, "add_generation_prompt": True}
    variables |= {"bos_token": "<B>", "eos_token": "<E>"}
    budget = Budget(steps=2000, seconds=5.0, characters=20_000, memory=1 << 18)
    assert run(variables, budget) == text


@pytest.mark.parametrize("name", EXPECTED)
def test_a_very_long_talk(name):
    turns = [
        {"role": "user", "content": "Wörter " * 200},
        {"role": "assistant", "content": "<think>\nx\n</think>\n\n" + "words " * 200},
    ]
    talk = [TALK[0], *(turns * 1000), TALK[1]]
    prompt = ChatTemplate(EXPECTED[name][0], "<B>", "<E>").render(talk)
    assert len(prompt) > 2_400_000


def test_a_text_that_grows_with_each_message():
    source = (
        "{% set n = namespace(t='', l=[]) %}{% for m in messages %}"
        "{% set n.t = n.t + m.content %}{% set n.l = n.l + [m.content] %}{% endfor %}{{ n.t }}"
    )
    talk = [{"role": "user", "content": "word " * 100}] * 500
    assert len(ChatTemplate(source, "", "").render(talk)) == 250_000

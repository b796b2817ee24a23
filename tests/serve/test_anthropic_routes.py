"""Anthropic's own client against the routes over real sockets: messages, streams, tools, errors."""

import json

import anthropic
import httpx
import pytest
from fake_service import FakeEngine, prompt_of, says
from families import TOOLS, source_of

from spillcache.engine.base import SamplingParams
from spillcache.errors import DecodeError, NotReady, Overloaded, PromptTooLong
from spillcache.serve.anthropic_schema import MessagesBody

ASKED = [{"role": "user", "content": "Rain?"}]
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Örö", "days": 3}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "plan", "arguments": {"dry": true}}\n</tool_call>'
THINKS = source_of("qwen") + "{# </think> #}"
OURS = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]


@pytest.fixture(autouse=True)
def engine(service):
    service.engine_in_use = FakeEngine(source_of("qwen"))
    service.script.rest = ""
    return service.engine_in_use


def ask(claude, messages=None, **fields):
    return claude.messages.create(model="any", max_tokens=100, messages=messages or ASKED, **fields)


def test_a_message(claude, service):
    says(service, "Dry, wörld.")
    service.script.kept = 10
    message = ask(claude)
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny-fake")
    assert message.id.startswith("msg_")
    assert [(block.type, block.text) for block in message.content] == [("text", "Dry, wörld.")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage, prompt = message.usage, len(service.last().request.tokens)
    assert usage.cache_read_input_tokens == 4
    assert usage.cache_creation_input_tokens == 10
    assert usage.input_tokens == prompt - 14
    assert usage.output_tokens == 3
    assert message.timings["cache"] == {"live": 0, "ram": 0, "disk": 4}


def test_all_that_may_be_asked_for_is_passed_on(claude, service):
    ask(
        claude,
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": " Be kind."},
        ],
        stop_sequences=["END", "STOP"],
        metadata={"user_id": "somebody"},
        extra_body={
            "cache_salt": "me",
            "cache_store": False,
            "seed": 3,
            "cache_control": {"type": "ephemeral"},
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.25,
        },
    )
    request = service.last().request
    assert request.sampling == SamplingParams(temperature=0.5, top_k=7, top_p=0.25, seed=3)
    assert request.max_tokens == 100
    assert request.stop == ("END", "STOP")
    assert (request.salt, request.cache_store, request.cache_prompt) == (b"me", False, True)
    assert "<|im_start|>system\nBe brief. Be kind.<|im_end|>\n" in prompt_of(service)


def test_a_stream(claude, service):
    says(service, "Dry, wörld.")
    service.script.kept = 10
    events = list(ask(claude, stream=True))
    prompt = len(service.last().request.tokens)
    kinds = [event.type for event in events]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, end = events[0].message, events[-2]
    assert (start.content, start.stop_reason, start.usage.output_tokens) == ([], None, 1)
    for usage in (start.usage, end.usage):
        assert usage.cache_read_input_tokens == 4
        assert usage.cache_creation_input_tokens == 10
        assert usage.input_tokens == prompt - 14
    assert end.usage.output_tokens == 3
    assert end.delta.stop_reason == "end_turn"
    assert end.timings["cache_n"] == 4


def test_the_clients_own_helper_reads_a_stream(claude, service):
    says(service, "Dry.\n" + TWO)
    with claude.messages.stream(model="any", max_tokens=100, messages=ASKED, tools=OURS) as stream:
        assert "".join(stream.text_stream) == "Dry."
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert message.content[1].input == {"city": "Örö", "days": 3}
    assert message.usage.output_tokens == len(service.script.texts)


def test_the_wire(http, service):
    """Names of events, a ping, and no more after the end."""
    says(service, "Dry.", 10)
    body = {"messages": ASKED, "max_tokens": 5, "stream": True}
    text = http.post("/v1/messages", json=body).text
    events = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    assert events[1] == ["event: ping", 'data: {"type":"ping"}']
    for name, data in events:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert events[-1] == ["event: message_stop", 'data: {"type":"message_stop"}']


def test_pings_while_nothing_comes(url, service, monkeypatch):
    monkeypatch.setattr("spillcache.serve.event_stream.PING_S", 0.01)
    service.script.texts, service.script.hold_at = ["a", "b"], 1
    body = {"messages": ASKED, "max_tokens": 5, "stream": True}
    seen = []
    with httpx.stream("POST", f"{url}/v1/messages", json=body) as response:
        for line in response.iter_lines():
            seen.append(line)
            if seen.count("event: ping") == 3:
                service.script.go.set()
    assert "event: message_stop" in seen
    told = "".join(json.loads(line[6:])["delta"]["text"] for line in seen if '"text_delta"' in line)
    assert told == "ab"


def test_a_client_that_leaves_while_it_is_pinged(url, service, monkeypatch):
    monkeypatch.setattr("spillcache.serve.event_stream.PING_S", 0.01)
    service.script.texts, service.script.hold_at = ["a", "b"], 1
    body = {"messages": ASKED, "max_tokens": 5, "stream": True}
    with httpx.stream("POST", f"{url}/v1/messages", json=body) as response:
        next(response.iter_lines())
    service.threads[-1].join(10)
    assert service.last().ticket.cancelled


@pytest.mark.parametrize("stream", [False, True])
def test_a_call(claude, service, stream):
    says(service, "I look.\n" + ONE)
    answer = ask(claude, tools=OURS, stream=stream)
    if stream:
        events = list(answer)
        deltas = [e.delta for e in events if e.type == "content_block_delta" and e.index == 1]
        assert {delta.type for delta in deltas} == {"input_json_delta"}
        assert len(deltas) > 3
        (block,) = [
            e.content_block for e in events if e.type == "content_block_start" and e.index == 1
        ]
        assert block.input == {}
        given = json.loads("".join(delta.partial_json for delta in deltas))
        reason = events[-2].delta.stop_reason
    else:
        text, block = answer.content
        assert text.text == "I look."
        given, reason = block.input, answer.stop_reason
    assert (block.type, block.name, given) == ("tool_use", "weather", {"city": "Örö", "days": 3})
    assert block.id.startswith("call_")
    assert reason == "tool_use"
    assert '"name": "weather", "description": "Does weather.", "parameters"' in prompt_of(service)


@pytest.mark.parametrize("stream", [False, True])
def test_several_calls(claude, service, stream):
    says(service, TWO)
    answer = ask(claude, tools=OURS, stream=stream)
    blocks = (
        [e.content_block for e in answer if e.type == "content_block_start"]
        if stream
        else answer.content
    )
    assert [block.name for block in blocks] == ["weather", "plan"]
    assert len({block.id for block in blocks}) == 2
    answer = ask(
        claude, tools=OURS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    )
    assert [block.name for block in answer.content] == ["weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off(claude, service, stream):
    """Its input is what of it is whole: the client's own helper reads the same from a stream."""
    says(service, ONE.partition("3}")[0] + "12")
    service.script.reason = "length"
    if stream:
        with claude.messages.stream(
            model="any", max_tokens=3, messages=ASKED, tools=OURS
        ) as events:
            message = events.get_final_message()
    else:
        message = claude.messages.create(model="any", max_tokens=3, messages=ASKED, tools=OURS)
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "weather", {"city": "Örö"})
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_with_half_a_character(claude, service, stream):
    """JSON can say it, UTF-8 can't."""
    says(service, ONE.replace("Örö", r"\ud83d \ud83d\ude00"))
    if stream:
        with claude.messages.stream(
            model="any", max_tokens=100, messages=ASKED, tools=OURS
        ) as events:
            block = events.get_final_message().content[0]
    else:
        block = ask(claude, tools=OURS).content[0]
    assert (block.type, block.name) == ("tool_use", "weather")
    assert block.input == {"city": "\ufffd \U0001f600", "days": 3}


def test_a_result_goes_back(claude, service):
    """And the prompt goes on from the answer, as it does for OpenAI's clients."""
    says(service, "I look.\n" + TWO)
    message = ask(claude, tools=OURS)
    before = prompt_of(service)
    results = [
        {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "dry"},
        {
            "type": "tool_result",
            "tool_use_id": message.content[2].id,
            "content": [{"type": "text", "text": "wet"}],
            "is_error": True,
        },
        {"type": "text", "text": "So?"},
    ]
    talk = [
        *ASKED,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    ask(claude, talk, tools=OURS)
    assert prompt_of(service).startswith(before + "I look.\n" + TWO + "<|im_end|>\n")
    after = prompt_of(service)[len(before) :]
    order = ["<tool_response>\ndry", "<tool_response>\nwet", "<|im_start|>user\nSo?"]
    assert [after.index(one) for one in order] == sorted(after.index(one) for one in order)


def test_the_same_conversation_makes_the_same_prompt_as_openais(claude, ai, service):
    says(service, "I look.\n" + ONE)
    message = ask(claude, tools=OURS, system="Be brief.")
    first = prompt_of(service)
    told = [{"role": "system", "content": "Be brief."}, *ASKED]
    ai.chat.completions.create(model="any", messages=told, tools=TOOLS)
    assert prompt_of(service) == first
    call = message.content[1]
    ask(
        claude,
        [
            *ASKED,
            {"role": "assistant", "content": message.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "dry"}],
            },
        ],
        tools=OURS,
        system="Be brief.",
    )
    second = prompt_of(service)
    function = {"name": call.name, "arguments": json.dumps(call.input)}
    told += [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "dry"},
    ]
    ai.chat.completions.create(model="any", messages=told, tools=TOOLS)
    assert prompt_of(service) == second


def test_choices_of_tools(claude, http, service):
    says(service, ONE)
    message = ask(claude, tools=OURS, tool_choice={"type": "none"})
    assert message.content[0].text == ONE
    assert '"name": "weather"' in prompt_of(service)
    for choice, words in [
        ({"type": "tool", "name": "other"}, "other is none of the request's tools: weather"),
        ({"type": "always"}, "must be auto, any, tool or none"),
        ({}, "must be auto, any, tool or none"),
    ]:
        body = {"messages": ASKED, "tools": OURS, "tool_choice": choice}
        response = http.post("/v1/messages", json=body)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "plan"}])
def test_a_call_that_must_be_is_held_to_its_schema(choice):
    body = MessagesBody(messages=ASKED, tools=OURS, tool_choice=choice).chat().held()
    names = body.json_schema.get("anyOf") or [body.json_schema]
    count = {"any": 3, "tool": 1}[choice["type"]]
    assert len(names) == count


def test_an_answer_may_be_held_to_a_schema():
    schema = {"type": "object"}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    body = MessagesBody(messages=ASKED, output_config=config).chat()
    assert body.response_format["json_schema"]["schema"] == schema
    assert (
        MessagesBody(messages=ASKED, output_config={"effort": "low"}).chat().response_format is None
    )


def test_tools_of_anthropics_own_are_left_out(claude, service):
    search = {"type": "web_search_20250305", "name": "web_search"}
    ask(claude, tools=[*OURS, search])
    assert "web_search" not in prompt_of(service)
    ask(claude, tools=[search])
    assert "<tools>" not in prompt_of(service)


def test_whether_to_think_is_told_to_the_template(claude, service):
    """As Qwen's template has it, and as ``chat_template_kwargs`` would say it."""
    switch = (
        "{{- '<think>\n\n</think>\n\n' if add_generation_prompt and enable_thinking is false }}"
    )
    service.engine_in_use = FakeEngine(source_of("qwen") + switch)
    empty = "<think>\n\n</think>\n\n"
    enabled = {"type": "enabled", "budget_tokens": 1024}
    asked = {"chat_template_kwargs": {"enable_thinking": False}}
    for fields, silent in [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, True),
        ({"thinking": enabled}, False),
        ({"thinking": {"type": "adaptive"}}, False),
        ({"thinking": enabled, "extra_body": asked}, True),
    ]:
        ask(claude, **fields)
        assert prompt_of(service).endswith(empty) is silent
    count = claude.messages.count_tokens
    less = count(model="any", messages=ASKED).input_tokens
    more = count(model="any", messages=ASKED, thinking={"type": "disabled"}).input_tokens
    assert more == less + len(empty)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts(claude, service, stream):
    service.engine_in_use = FakeEngine(THINKS)
    says(service, "<think>\nhm\n</think>\n\nDry.")
    answer = ask(claude, thinking={"type": "enabled", "budget_tokens": 1024}, stream=stream)
    if stream:
        events = [e for e in answer if e.type.startswith("content_block")]
        kinds = [getattr(e, "delta", None) and e.delta.type for e in events]
        assert "thinking_delta" in kinds
        assert kinds.index("signature_delta") < kinds.index("text_delta")
        blocks = [e.content_block.type for e in events if e.type == "content_block_start"]
        assert blocks == ["thinking", "text"]
        return
    thought, text = answer.content
    assert (thought.thinking, text.text) == ("hm", "Dry.")
    assert thought.signature
    # They go back to where the template wants them.
    talk = [*ASKED, {"role": "assistant", "content": answer.content}, *ASKED]
    ask(claude, talk)
    assert "Dry.<|im_end|>" in prompt_of(service)


def test_thoughts_are_told_only_where_they_are_asked_for(claude, service):
    service.engine_in_use = FakeEngine(THINKS)
    says(service, "<think>\nhm\n</think>\n\nDry.")
    for thinking in ({}, {"thinking": {"type": "disabled"}}):
        assert [block.text for block in ask(claude, **thinking).content] == ["Dry."]
    kinds = [e.type for e in ask(claude, stream=True)]
    assert kinds.count("content_block_start") == 1


def test_a_model_without_thoughts_is_asked_for_some(claude, service):
    says(service, "Dry.")
    message = ask(claude, thinking={"type": "adaptive"})
    assert [block.type for block in message.content] == ["text"]


@pytest.mark.parametrize(
    ("script", "reason", "stop"),
    [
        ({"reason": "stop", "stop_string": "END"}, "stop_sequence", "END"),
        ({"reason": "stop", "stop_string": "of the format"}, "end_turn", None),
        ({"reason": "length", "generated": 100}, "max_tokens", None),
        ({"reason": "length"}, "model_context_window_exceeded", None),
    ],
)
def test_why_answers_end(claude, service, script, reason, stop):
    for name, value in script.items():
        setattr(service.script, name, value)
    message = ask(claude, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == (reason, stop)


def test_an_answer_of_nothing(claude, service):
    service.script.texts = []
    message = ask(claude)
    assert (message.content, message.stop_reason) == ([], "end_turn")
    events = list(ask(claude, stream=True))
    assert [e.type for e in events] == ["message_start", "message_delta", "message_stop"]
    assert events[0].message.usage.input_tokens > 0


def test_tokens_are_counted(claude, service):
    fields = {"model": "any", "messages": ASKED, "tools": OURS, "system": "Be brief."}
    count = claude.messages.count_tokens(**fields).input_tokens
    assert service.requests == []
    claude.messages.create(max_tokens=1, **fields)
    assert count == len(service.last().request.tokens)
    with pytest.raises(anthropic.BadRequestError, match="cache_stor is no field"):
        claude.messages.count_tokens(**fields, extra_body={"cache_stor": False})


# Errors.


@pytest.mark.parametrize(
    ("error", "kind", "type_"),
    [
        (
            PromptTooLong("the prompt has 5", "prompt"),
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
        (Overloaded("256 requests wait"), anthropic.RateLimitError, "rate_limit_error"),
        (NotReady("Loading model"), anthropic.APIStatusError, "overloaded_error"),
        (DecodeError("it broke"), anthropic.InternalServerError, "api_error"),
    ],
)
def test_errors_have_anthropics_shape(claude, service, error, kind, type_):
    service.script.refuse = error
    with pytest.raises(kind) as caught:
        ask(claude)
    body = caught.value.body
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == type_
    assert str(error) in body["error"]["message"]
    if isinstance(error, PromptTooLong):
        assert body["error"]["message"].startswith("prompt is too long: ")
    if isinstance(error, Overloaded | NotReady):
        assert caught.value.response.headers["retry-after"] == "1"


def test_an_error_in_a_stream_is_an_event(claude, service):
    service.script.fail_after, service.script.failure = 2, DecodeError("it broke")
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(ask(claude, stream=True))
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "api_error", "message": "it broke"},
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "type_"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
    ],
)
def test_what_there_is_not(http, method, path, status, type_):
    response = http.request(method, path, json={})
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == type_


@pytest.mark.parametrize("service_options", [{"api_keys": ("secret",), "body_limit_bytes": 1000}])
def test_keys_and_sizes(http, url, service):
    body = {"messages": ASKED, "max_tokens": 5}
    response = http.post("/v1/messages", json=body)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert http.post("/v1/messages", json=body, headers=headers).status_code == 200
    with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0) as client:
        assert ask(client).content
        with pytest.raises(anthropic.APIStatusError) as caught:
            ask(client, [{"role": "user", "content": "x" * 2000}])
    assert caught.value.status_code == 413
    assert caught.value.body["error"]["type"] == "request_too_large"


def test_a_bug_is_an_error_in_anthropics_shape(http, service):
    service.engine_in_use = None
    body = http.post("/v1/messages", json={"messages": ASKED}).json()
    assert (body["type"], body["error"]["type"]) == ("error", "api_error")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role must be user or"),
        ({"max_tokens": "5"}, "max_tokens must be an integer"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"stop_sequences": [5]}, "stop_sequences must be a text or a list"),
        ({"thinking": {"type": "deep"}}, "thinking.type must be enabled"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format must be"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "needs a function with a name"),
        ({"cache_stor": False}, "cache_stor is no field"),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": "It is"}]},
            "to go on from the beginning of an answer is not supported",
        ),
    ],
)
def test_what_is_wrong_is_said(http, service, fields, words):
    response = http.post("/v1/messages", json={"messages": ASKED, "max_tokens": 5} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert service.requests == []


def test_models(claude):
    (model,) = claude.models.list()
    assert (model.id, model.type, model.display_name) == ("tiny-fake", "model", "tiny-fake")
    assert model.created_at.year >= 2025
    assert claude.models.retrieve("tiny-fake").id == "tiny-fake"
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("other")
    assert caught.value.body["error"]["type"] == "not_found_error"

"""OpenAI's own client against the Responses API over real sockets."""

import json

import openai
import pytest
from fake_service import FakeEngine, prompt_of, says
from families import TOOLS, source_of

from spillcache.engine.base import SamplingParams
from spillcache.errors import DecodeError, Overloaded, PromptTooLong
from spillcache.serve.responses_schema import ResponsesBody

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Örö", "days": 3}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "plan", "arguments": {"dry": true}}\n</tool_call>'
THINKS = source_of("qwen") + "{# </think> #}"
OURS = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]


@pytest.fixture(autouse=True)
def engine(service):
    service.engine_in_use = FakeEngine(source_of("qwen"))
    service.script.rest = ""
    return service.engine_in_use


def ask(ai, given="Rain?", **fields):
    return ai.responses.create(model="any", input=given, **fields)


def test_a_response(ai, service):
    says(service, "Dry, wörld.")
    service.script.kept = 10
    response = ask(ai, instructions="Be brief.", metadata={"a": "b"})
    assert (response.object, response.status, response.model) == (
        "response",
        "completed",
        "tiny-fake",
    )
    assert response.id.startswith("resp_")
    assert response.output_text == "Dry, wörld."
    assert [(item.type, item.role, item.status) for item in response.output] == [
        ("message", "assistant", "completed")
    ]
    assert (response.error, response.incomplete_details) == (None, None)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert (response.tool_choice, response.tools, response.parallel_tool_calls) == (
        "auto",
        [],
        True,
    )
    assert response.store is False
    usage, prompt = response.usage, len(service.last().request.tokens)
    assert (usage.input_tokens, usage.output_tokens) == (prompt, 3)
    assert usage.total_tokens == prompt + 3
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.input_tokens_details.cache_write_tokens == 10
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert response.timings["cache_n"] == 4
    assert prompt_of(service).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_all_that_may_be_asked_for_is_passed_on(ai, service):
    ask(
        ai,
        max_output_tokens=100,
        temperature=0.5,
        top_p=0.25,
        store=True,
        reasoning={"effort": "low"},
        include=["reasoning.encrypted_content"],
        truncation="auto",
        prompt_cache_key="k",
        text={"format": {"type": "text"}},
        extra_body={"cache_salt": "me", "cache_store": False, "stop": "END"},
    )
    request = service.last().request
    assert request.sampling == SamplingParams(temperature=0.5, top_p=0.25)
    assert (request.max_tokens, request.stop) == (100, ("END",))
    assert (request.salt, request.cache_store, request.cache_prompt) == (b"me", False, True)


def test_a_stream(ai, service):
    says(service, "Dry, wörld.")
    events = list(ask(ai, stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events[4:7]) == events[7].text == "Dry, wörld."
    assert len({event.item_id for event in events[3:9]}) == 1
    first, last = events[0].response, events[-1].response
    assert (first.id, first.status, first.output, first.usage) == (
        last.id,
        "in_progress",
        [],
        None,
    )
    assert last.output_text == "Dry, wörld."
    assert last.usage.output_tokens == 3
    assert events[2].item.id == last.output[0].id


def test_the_clients_own_helper_reads_a_stream(ai, service):
    says(service, "Dry.\n" + TWO)
    with ai.responses.stream(model="any", input="Rain?", tools=OURS) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    kinds = [item.type for item in response.output]
    assert kinds == ["message", "function_call", "function_call"]
    assert json.loads(response.output[1].arguments) == {"city": "Örö", "days": 3}


def test_the_wire(http, service):
    says(service, "Dry.", 10)
    text = http.post("/v1/responses", json={"input": "Rain?", "stream": True}).text
    events = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    for name, data in events:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert events[-1][0] == "event: response.completed"


@pytest.mark.parametrize("stream", [False, True])
def test_calls(ai, service, stream):
    says(service, "I look.\n" + TWO)
    answer = ask(ai, tools=OURS, stream=stream)
    if stream:
        events = list(answer)
        deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
        dones = [e for e in events if e.type == "response.function_call_arguments.done"]
        for done in dones:
            parts = [e.delta for e in deltas if e.item_id == done.item_id]
            assert "".join(parts) == done.arguments
            assert len(parts) > 2
        added = [e.item for e in events if e.type == "response.output_item.added"]
        assert [getattr(item, "arguments", None) for item in added] == [None, "", ""]
        output = events[-1].response.output
        items = [e.item for e in events if e.type == "response.output_item.done"]
        assert [item.to_dict() for item in items] == [item.to_dict() for item in output]
    else:
        output = answer.output
    message, one, two = output
    assert message.content[0].text == "I look."
    assert (one.name, one.arguments) == ("weather", '{"city": "Örö", "days": 3}')
    assert (two.name, two.arguments) == ("plan", '{"dry": true}')
    assert one.call_id.startswith("call_")
    assert len({message.id, one.id, two.id, one.call_id, two.call_id}) == 5
    assert '"name": "weather"' in prompt_of(service)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_incomplete(ai, service, stream):
    says(service, TWO[:-21])
    service.script.reason = "length"
    answer = ask(ai, tools=OURS, stream=stream)
    if stream:
        events = list(answer)
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert [e.arguments for e in done] == ['{"city": "Örö", "days": 3}', '{"dry"']
        answer = events[-1].response
    assert answer.status == "incomplete"
    assert [item.status for item in answer.output] == ["completed", "incomplete"]
    assert answer.output[1].arguments == '{"dry"'


def test_a_result_goes_back(ai, service):
    says(service, "I look.\n" + TWO)
    response = ask(ai, tools=OURS)
    before = prompt_of(service)
    talk = [
        {"role": "user", "content": "Rain?"},
        *[item.to_dict() for item in response.output],
        *[
            {"type": "function_call_output", "call_id": item.call_id, "output": "dry"}
            for item in response.output[1:]
        ],
    ]
    ask(ai, talk, tools=OURS)
    assert prompt_of(service).startswith(before + "I look.\n" + TWO + "<|im_end|>\n")
    assert prompt_of(service).count("<tool_response>\ndry") == 2


def test_the_same_conversation_makes_the_same_prompt_as_in_chats(ai, service):
    says(service, "I look.\n" + ONE)
    response = ask(ai, instructions="Be brief.", tools=OURS)
    first = prompt_of(service)
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain?"}]
    ai.chat.completions.create(model="any", messages=told, tools=TOOLS)
    assert prompt_of(service) == first
    message, call = response.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "dry"}
    talk = [{"role": "user", "content": "Rain?"}, message.to_dict(), call.to_dict(), output]
    ask(ai, talk, instructions="Be brief.", tools=OURS)
    second = prompt_of(service)
    function = {"name": call.name, "arguments": call.arguments}
    called = [{"id": call.call_id, "type": "function", "function": function}]
    told += [
        {"role": "assistant", "content": "I look.", "tool_calls": called},
        {"role": "tool", "tool_call_id": call.call_id, "content": "dry"},
    ]
    ai.chat.completions.create(model="any", messages=told, tools=TOOLS)
    assert prompt_of(service) == second


def test_one_call_at_a_time(ai, service):
    says(service, TWO)
    response = ask(ai, tools=OURS, parallel_tool_calls=False)
    assert [item.name for item in response.output] == ["weather"]
    assert response.parallel_tool_calls is False


def test_choices_of_tools(ai, http, service):
    says(service, ONE)
    assert ask(ai, tools=OURS, tool_choice="none").output_text == ONE
    for choice, words in [
        ({"type": "function", "name": "other"}, "other is none of the request's tools: weather"),
        ({"type": "web_search"}, "or name a function"),
        ("always", "must be one of none, auto, required"),
    ]:
        response = http.post(
            "/v1/responses", json={"input": "x", "tools": OURS, "tool_choice": choice}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tool_choice"
        assert words in response.json()["error"]["message"]
    body = ResponsesBody(
        input="x", tools=OURS, tool_choice={"type": "function", "name": "plan"}
    ).chat()
    assert body.held().json_schema["properties"]["name"] == {"const": "plan"}


def test_tools_of_openais_own_are_left_out(ai, service):
    ask(ai, tools=[*OURS, {"type": "web_search"}])
    assert "web_search" not in prompt_of(service)


def test_a_schema_is_named_as_chats_do():
    schema = {"type": "object"}
    format_ = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    body = ResponsesBody(input="x", text={"format": format_}).chat()
    assert body.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    body = ResponsesBody(input="x", text={"format": {"type": "json_object"}}).chat()
    assert body.response_format == {"type": "json_object"}
    assert ResponsesBody(input="x", text={"verbosity": "low"}).chat().response_format is None


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_items(ai, service, stream):
    service.engine_in_use = FakeEngine(THINKS)
    says(service, "<think>\nhm, hm, hm\n</think>\n\nDry.")
    answer = ask(ai, stream=stream)
    if stream:
        events = list(answer)
        deltas = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        (done,) = [e for e in events if e.type == "response.reasoning_text.done"]
        assert "".join(deltas) == done.text == "hm, hm, hm"
        answer = events[-1].response
    thought, message = answer.output
    assert (thought.type, thought.summary) == ("reasoning", [])
    assert thought.content[0].text == "hm, hm, hm"
    assert message.content[0].text == "Dry."
    tokens = answer.usage.output_tokens_details.reasoning_tokens
    assert 3 <= tokens < answer.usage.output_tokens
    talk = [{"role": "user", "content": "Rain?"}, *[item.to_dict() for item in answer.output]]
    ask(ai, [*talk, {"role": "user", "content": "So?"}])
    assert "Dry.<|im_end|>" in prompt_of(service)


def test_an_answer_that_is_cut_off(ai, service):
    service.script.reason = "length"
    response = ask(ai)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    last = list(ask(ai, stream=True))[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_an_answer_of_nothing(ai, service):
    service.script.texts = []
    assert ask(ai).output == []
    kinds = [event.type for event in ask(ai, stream=True)]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]


def test_an_error_in_a_stream(ai, service):
    service.script.fail_after, service.script.failure = 2, DecodeError("it broke")
    last = list(ask(ai, stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert (last.response.error.code, last.response.error.message) == ("ENGINE_DECODE", "it broke")


def test_errors(ai, service):
    service.script.refuse = PromptTooLong("the prompt has 5 tokens", "prompt")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(ai)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    service.script.refuse = Overloaded("256 requests wait")
    with pytest.raises(openai.RateLimitError):
        ask(ai, stream=True)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "input is empty"),
        ({"input": []}, "input", "input is empty"),
        ({"input": 5}, "input", "input must be a text"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
        ({"background": True}, "background", "at once or as a stream"),
        ({"conversation": "c"}, "conversation", "send all of it"),
        ({"prompt": {"id": "p"}}, "prompt", "no templates of prompts"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"text": {"format": "json"}}, "text.format", "must be an object"),
        ({"tools": [{"type": "function"}]}, "tools", "needs a function with a name"),
        ({"cache_stor": False}, "cache_stor", "is no field"),
    ],
)
def test_what_is_wrong_is_said(http, service, fields, param, words):
    response = http.post("/v1/responses", json={"input": "Rain?"} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert service.requests == []


def test_nothing_that_asks_for_nothing_is_refused(ai):
    ask(ai, background=False, previous_response_id=None, top_logprobs=0)

"""Tools through OpenAI's own client: what the model is told, what it says, and what comes back."""

import json

import openai
import pytest
from fake_service import FakeEngine, prompt_of, says
from families import FAMILIES, TOOLS, called, source_of

from spillcache.errors import EngineError
from spillcache.serve.schema import ChatBody
from spillcache.serve.turn import Turn

ASKED = [{"role": "user", "content": "Rain?"}]
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Örö", "days": 3}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "plan", "arguments": {"dry": true}}\n</tool_call>'


@pytest.fixture
def family():
    return "qwen"


@pytest.fixture(autouse=True)
def engine(service, family):
    source = source_of(family) if family in FAMILIES else family
    service.engine_in_use = FakeEngine(source)
    service.script.rest = ""
    return service.engine_in_use


def ask(ai, messages=None, tools=TOOLS, **fields):
    return ai.chat.completions.create(
        model="any", messages=messages or ASKED, tools=tools, **fields
    )


def joined(chunks):
    """Content, thoughts and calls of a stream, and why it ended."""
    content, thoughts, calls = "", "", []
    for chunk in chunks:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        thoughts += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.type == "function"
                assert call.function.name
                calls.append([call.id, call.function.name, call.function.arguments])
            else:
                assert call.id is None
                calls[call.index][2] += call.function.arguments
    return content, thoughts, calls, chunks[-1].choices[0].finish_reason


def test_a_call(ai, service):
    says(service, "I look.\n" + ONE)
    (choice,) = ask(ai).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "weather"
    assert call.function.arguments == '{"city": "Örö", "days": 3}'
    assert '"name": "weather"' in prompt_of(service)


def test_only_a_call_has_no_content(ai, service):
    says(service, ONE)
    assert ask(ai).choices[0].message.content is None


def test_several_calls(ai, service):
    says(service, TWO)
    calls = ask(ai).choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "plan"]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_stream_of_calls(ai, service, size):
    says(service, "I look.\n" + TWO, size)
    content, _, calls, reason = joined(list(ask(ai, stream=True)))
    assert (content, reason) == ("I look.", "tool_calls")
    assert [call[1:] for call in calls] == [
        ["weather", '{"city": "Örö", "days": 3}'],
        ["plan", '{"dry": true}'],
    ]


def test_words_are_streamed_while_they_come(ai, service):
    """A call may take minutes: what comes before it does not wait."""
    service.script.texts = ["I lo", "ok", ".\n<tool", "_call>", ONE[11:]]
    service.script.hold_at = 3
    stream = ask(ai, stream=True)
    seen = ""
    for chunk in stream:
        seen += chunk.choices[0].delta.content or ""
        if seen == "I look.":
            break
    service.script.go.set()
    assert joined(list(stream))[2][0][1] == "weather"


def test_one_call_at_a_time(ai, service):
    says(service, TWO)
    message = ask(ai, parallel_tool_calls=False).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["weather"]
    _, _, calls, _ = joined(list(ask(ai, parallel_tool_calls=False, stream=True)))
    assert [call[1] for call in calls] == ["weather"]


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came(ai, service):
    says(service, "I look.\n" + ONE[:-23])
    service.script.reason = "length"
    (choice,) = ask(ai).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert call.function.arguments == '{"city": "Örö", "'
    assert (choice.message.content, choice.finish_reason) == ("I look.", "length")
    content, _, calls, reason = joined(list(ask(ai, stream=True)))
    assert (content, reason) == ("I look.", "length")
    assert [call[1:] for call in calls] == [["weather", '{"city": "Örö", "']]
    assert service.token_memory.empty, "what is not whole is not remembered"


def test_what_never_becomes_a_call_is_content(ai, service):
    says(service, "<tool_call>\n{weather}\n</tool_call>")
    (choice,) = ask(ai).choices
    assert choice.message.tool_calls is None
    assert choice.message.content == "<tool_call>\n{weather}\n</tool_call>"
    assert choice.finish_reason == "stop"


def test_arguments_are_streamed_while_they_are_written(ai, service):
    """A file takes minutes to write: the client sees it grow, and is told the name first."""
    service.script.texts = [
        "<tool_call>\n{",
        '"name": "write_file", "argu',
        'ments": {"path"',
        ': "a.py", "text": "import os\\n',
        'x = 1"}}\n</tool_call>',
    ]
    service.script.hold_at = 4
    stream = ask(ai, stream=True)
    chunks, seen = [], ""
    while not seen.endswith("import os\\n"):
        chunks.append(next(stream))
        for call in chunks[-1].choices[0].delta.tool_calls or ():
            assert call.id is None or not seen
            seen += call.function.arguments
    assert seen == '{"path": "a.py", "text": "import os\\n'
    service.script.go.set()
    _, _, calls, reason = joined(chunks + list(stream))
    assert reason == "tool_calls"
    assert [call[1:] for call in calls] == [["write_file", seen + 'x = 1"}']]


def test_a_client_that_may_call_once_sees_one_call_grow(ai, service):
    says(service, TWO, 3)
    _, _, calls, _ = joined(list(ask(ai, stream=True, parallel_tool_calls=False)))
    assert [call[1:] for call in calls] == [["weather", '{"city": "Örö", "days": 3}']]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize("end", [None, -1, -30, -60])
def test_a_stream_comes_to_the_same_as_an_answer_in_one_piece(ai, service, size, end):
    """Two calls and words around them; whole, and cut off in several places."""
    says(service, "I look.\n" + TWO[:end] + ("" if end else "\nThen I plan."), size)
    message = ask(ai).choices[0].message
    content, _, calls, _ = joined(list(ask(ai, stream=True)))
    assert content == (message.content or "")
    told = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert [tuple(call[1:]) for call in calls] == told


@pytest.mark.parametrize("family", ["gpt-oss"])
@pytest.mark.parametrize("stream", [False, True])
def test_channels(ai, service, stream):
    thought = "<|channel|>analysis<|message|>Rain, then.<|end|>"
    call = (
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Örö", "days": 3}<|call|>'
    )
    says(service, thought + call)
    answer = ask(ai, stream=stream)
    if stream:
        content, thoughts, calls, reason = joined(list(answer))
        assert (content, thoughts, reason) == ("", "Rain, then.", "tool_calls")
        assert [one[1:] for one in calls] == [["weather", '{"city": "Örö", "days": 3}']]
        return
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == (None, "Rain, then.")
    before = prompt_of(service)
    assert before.endswith("<|start|>assistant")
    says(service, "<|channel|>final<|message|>Dry.<|return|>")
    answer = ask(ai, answered(message))
    # The thoughts before a call go back to the model, under its template's name for them.
    assert prompt_of(service).startswith(before + thought + "<|start|>assistant to=functions.")
    assert answer.choices[0].message.content == "Dry."
    spoken = {**message.model_dump(exclude_none=True), "content": "I look."}
    ask(ai, [*ASKED, spoken])
    assert "I look.<|end|>" in prompt_of(service)
    assert "Rain, then." not in prompt_of(service)


@pytest.mark.parametrize("family", ["gpt-oss"])
def test_channels_without_tools(ai, service):
    says(service, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
         "<|message|>Dry.<|return|>")  # fmt: skip
    message = ai.chat.completions.create(model="any", messages=ASKED).choices[0].message
    assert (message.content, message.reasoning_content) == ("Dry.", "Hm.")


def test_a_call_before_the_limit(ai, service):
    says(service, TWO[: len(ONE) + 20])
    service.script.reason = "length"
    (choice,) = ask(ai).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
    assert choice.finish_reason == "length"


def test_choice_none_shows_tools_and_reads_no_calls(ai, service):
    says(service, ONE)
    (choice,) = ask(ai, tool_choice="none").choices
    assert choice.message.content == ONE
    assert choice.finish_reason == "stop"
    # The prompt is the same, so that the cache has it.
    assert '"name": "weather"' in prompt_of(service)


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_nothing_is_a_call(ai, service, tools):
    says(service, ONE)
    extra = {} if tools is None else {"tools": tools}
    answer = ai.chat.completions.create(model="any", messages=ASKED, **extra)
    assert answer.choices[0].message.content == ONE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools of type function only"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "needs a function"),
        ({"tools": [{"type": "function", "function": {}}]}, "needs a function"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "must be a JSON schema",
        ),
        ({"tool_choice": "always"}, "must be one of none, auto, required"),
        ({"tool_choice": {"type": "function"}}, "needs a function"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice: other is none of the request's tools: weather, write_file, plan",
        ),
        ({"tool_choice": "required", "tools": []}, "and there are no tools; send tools, or leave"),
        (
            {"tool_choice": "required", "tools": None},
            "tool_choice: a call is asked for, and there are no tools",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_said(http, fields, words):
    body = {"messages": ASKED, "tools": TOOLS, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"].startswith(next(iter(fields)))


def test_a_call_that_must_be_is_held_to_its_schema():
    name = {"type": "function", "function": {"name": "plan"}}
    body = ChatBody(messages=ASKED, tools=TOOLS, tool_choice=name)
    assert body.held().json_schema == {
        "type": "object",
        "properties": {
            "name": {"const": "plan"},
            "arguments": TOOLS[2]["function"]["parameters"],
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    body = ChatBody(messages=ASKED, tools=TOOLS, tool_choice="required")
    names = [one["properties"]["name"]["const"] for one in body.held().json_schema["anyOf"]]
    assert names == ["weather", "write_file", "plan"]
    assert ChatBody(messages=ASKED, tools=TOOLS).held().json_schema is None


def test_a_call_that_must_be_comes_before_a_response_format(ai, http, service):
    """The form is for answers that are no calls."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    says(service, '{"name": "plan", "arguments": {"dry": true}}')
    message = ask(ai, tool_choice="required", response_format=form).choices[0].message
    assert message.tool_calls[0].function.name == "plan"
    held = json.loads(service.last().request.sampling.guide.text)
    assert next(one["properties"]["name"]["const"] for one in held["anyOf"]) == "weather"
    # With "auto" the answer has that form, and so is no call.
    ask(ai, response_format=form)
    assert json.loads(service.last().request.sampling.guide.text) == schema
    body = {"messages": ASKED, "tools": TOOLS, "tool_choice": "required", "grammar": 'root ::= "a"'}
    response = http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "grammar")


def answered(message):
    """The conversation, with the results of the message's calls."""
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "dry"} for call in message.tool_calls
    ]
    return [*ASKED, message.model_dump(exclude_none=True), *results]


def test_a_result_goes_back(ai, service):
    says(service, "I look.\n" + ONE)
    message = ask(ai).choices[0].message
    before = prompt_of(service)
    ask(ai, answered(message))
    assert prompt_of(service).startswith(before + "I look.\n" + ONE + "<|im_end|>\n")
    assert "<tool_response>\ndry\n</tool_response>" in prompt_of(service)


@pytest.mark.parametrize(
    "arguments",
    ['{"city":"Örö","days":3}', '{ "city": "\\u00d6r\\u00f6",\n"days": 3 }', "{}", '{"a": "\n"}'],
)
@pytest.mark.parametrize("minified", [False, True])
def test_arguments_come_back_as_the_model_wrote_them(ai, service, arguments, minified):
    """Whether a client sends back the text that it got, or makes its own of it."""
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    says(service, call)
    message = ask(ai).choices[0].message
    before = prompt_of(service)
    back = answered(message)
    function = back[1]["tool_calls"][0]["function"]
    given = json.loads(function["arguments"])
    function["arguments"] = (
        json.dumps(given, separators=(",", ":")) if minified else json.dumps(given)
    )
    ask(ai, back)
    if "\n" not in json.dumps(given)[1:-1].replace("\\n", "\n"):
        assert prompt_of(service).startswith(before + call + "<|im_end|>\n")
    # Another id, or another salt, and it is not known.
    function = back[1]["tool_calls"][0]
    function["id"] = "call_other"
    ask(ai, back)
    text = json.dumps(given, ensure_ascii=False)
    assert f'"arguments": {text}}}\n</tool_call>' in prompt_of(service)


def test_arguments_are_not_remembered_of_requests_that_store_nothing(ai, service):
    says(service, ONE.replace(": ", ":"))
    ask(ai, extra_body={"cache_store": False})
    assert service.token_memory.empty


@pytest.mark.parametrize("family", ["mistral"])
def test_ids_of_other_servers_fit_the_template(ai, service):
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [called("weather", "{}", "call_0123456789")],
    }
    result = {"role": "tool", "tool_call_id": "call_0123456789", "content": "dry"}
    ask(ai, [*ASKED, message, result])
    text = prompt_of(service)
    own = text.split('"id": "')[1].split('"')[0]
    assert len(own) == 9
    assert f'"call_id": "{own}"' in text
    says(service, '[TOOL_CALLS] [{"name": "weather", "arguments": {}}]')
    (call,) = ask(ai).choices[0].message.tool_calls
    assert len(call.id) == 9
    says(service, '[TOOL_CALLS] [{"name": "weather", "arguments": {}, "id": "abcdefgh1"}]')
    assert ask(ai).choices[0].message.tool_calls[0].id == "abcdefgh1"


@pytest.mark.parametrize("family", ["functiongemma"])
def test_a_formats_own_stops(ai, service):
    says(service, "<start_function_call>call:weather{city:<escape>x<escape>}<end_function_call>")
    (call,) = ask(ai, stop="never").choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "x"}
    assert service.last().request.stop == ("never", "<start_function_response>")
    ai.chat.completions.create(model="any", messages=ASKED)
    assert service.last().request.stop == ()


class Marked(FakeEngine):
    """One with a control token of its own for each mark."""

    marks = ("[TOOL_CALLS]", "<think>", "</think>")

    def tokenize(self, text, *, add_special, parse_special):
        if text in self.marks and parse_special:
            return [300 + self.marks.index(text)]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def test_control_tokens_that_mean_something_are_spelled(ai, service):
    service.engine_in_use = Marked(source_of("mistral") + "{# </think> #}")
    ask(ai)
    assert service.last().request.spelled == {
        300: b"[TOOL_CALLS]",
        301: b"<think>",
        302: b"</think>",
    }
    ai.chat.completions.create(model="any", messages=ASKED)
    assert service.last().request.spelled == {301: b"<think>", 302: b"</think>"}


@pytest.mark.parametrize("family", ["chatml", "gemma"])
def test_a_template_that_knows_no_tools(ai, service, family):
    """Messages tell of them, and of calls and results."""
    says(service, "I look.\n" + ONE)
    message = ask(ai).choices[0].message
    assert "<tools>\n" in prompt_of(service)
    before = prompt_of(service)
    assert [call.function.name for call in message.tool_calls] == ["weather"]
    ask(ai, answered(message))
    text = prompt_of(service)
    end = "<|im_end|>\n" if family == "chatml" else "<end_of_turn>\n"
    assert text.startswith(before + "I look.\n" + ONE + end)
    assert "user\n<tool_response>\ndry\n</tool_response>" + end in text


def test_generic_tools_beside_a_system_message(ai, service):
    service.engine_in_use = FakeEngine("chatml")
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    talk = [
        system,
        *ASKED,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [called("f", "{}"), called("g", "no")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "user", "content": "So?"},
    ]
    ask(ai, talk)
    text = prompt_of(service)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert text.count("<|im_start|>system") == 1
    assert (
        "user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\n"
        "So?<|im_end|>\n"
    ) in text
    # Without tools now, the conversation is the same.
    ai.chat.completions.create(model="any", messages=talk)
    assert "You can call functions" not in prompt_of(service)
    assert "<tool_response>\none" in prompt_of(service)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts(ai, service, stream):
    service.engine_in_use = FakeEngine(source_of("qwen") + "{# </think> #}")
    says(service, "<think>\nhm\n</think>\n\nI look.\n" + ONE)
    answer = ask(ai, stream=stream)
    if stream:
        content, thoughts, calls, reason = joined(list(answer))
        assert (content, thoughts, len(calls), reason) == ("I look.", "hm", 1, "tool_calls")
    else:
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("I look.", "hm")
        assert len(message.tool_calls) == 1


def test_thoughts_that_the_prompt_begins(ai, service):
    service.engine_in_use = FakeEngine(
        source_of("qwen") + "{# </think> #}{{- '<think>\n' if add_generation_prompt }}"
    )
    says(service, "hm\n</think>\n\nDry.")
    message = ai.chat.completions.create(model="any", messages=ASKED).choices[0].message
    assert (message.content, message.reasoning_content) == ("Dry.", "hm")


def test_token_ids_beside_calls(http, service):
    says(service, ONE, 10)
    body = {"messages": ASKED, "tools": TOOLS, "return_tokens": True, "stream": True}
    text = http.post("/v1/chat/completions", json=body).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    ids = [token for chunk in chunks for token in chunk.get("tokens", ())]
    assert ids == list(range(len(service.script.texts)))
    whole = http.post("/v1/chat/completions", json={**body, "stream": False}).json()
    assert whole["tokens"] == ids


def test_the_prompt_of_a_chat_with_tools(http):
    body = {"messages": ASKED, "tools": TOOLS, "add_generation_prompt": False}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert '"name": "weather"' in prompt
    assert prompt.endswith("<|im_end|>\n")


def test_a_template_that_refuses_is_heard(ai, service):
    service.engine_in_use = FakeEngine(source_of("llama3"))
    message = {"role": "assistant", "content": "", "tool_calls": [called("f", "{}")] * 2}
    with pytest.raises(openai.BadRequestError, match="one call at a time"):
        ask(ai, [*ASKED, message])


def test_calls_of_any_shape_are_left_to_the_template(ai, service):
    for calls in ("x", [1], [{"function": 5}], [{"function": {"arguments": "[1]"}}], [{"id": 5}]):
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        with pytest.raises(openai.BadRequestError, match="template refuses"):
            ask(ai, [*ASKED, message])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_learnt_before_its_end_is_told(ai, service, monkeypatch, stream):
    seen = []
    monkeypatch.setattr(Turn, "learn", lambda turn, tokens, stop: seen.append((tokens, stop)))
    says(service, "I look.", 1)
    answer = ai.chat.completions.create(model="any", messages=ASKED, stream=stream)
    if stream:
        assert list(answer)[-1].choices[0].finish_reason == "stop"
    assert seen == [(list(range(7)), None)]


def test_an_engine_that_closes_while_an_answer_is_learnt(service):
    turn = Turn(service.engine_in_use, service.token_memory)
    turn.tokens("<s>hello", add_special=False)

    def closed(token, *, special=False):
        raise EngineError("the engine is closed")

    service.engine_in_use.token_bytes = closed
    turn.learn([1, 2])
    assert service.token_memory.empty


def test_a_bug_while_an_answer_is_learnt_costs_no_answer(ai, service, monkeypatch, caplog):
    def bug(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(Turn, "_learn_texts", bug)
    says(service, "I look.")
    answer = ai.chat.completions.create(model="any", messages=ASKED)
    assert answer.choices[0].message.content == "I look."
    assert "not remembered" in caplog.text


@pytest.mark.parametrize("calls", [1, True, 1.5, "x", {"a": 1}, [1], [[]]])
def test_odd_calls_of_earlier_messages_are_no_failure_of_the_server(http, calls):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": calls},
        {"role": "user", "content": "c"},
    ]
    for path in ("/v1/chat/completions", "/apply-template"):
        assert http.post(path, json={"messages": messages}).status_code in {200, 400}


@pytest.mark.parametrize("kind", [[], {}, 1, "x"])
def test_odd_formats_are_refused(http, kind):
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": kind}}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize("kind", [["a"], {}, 1])
def test_odd_tools_and_roles_of_the_other_apis_are_no_failure_of_the_server(http, kind):
    said = [{"role": "user", "content": "a"}]
    tool = {"type": kind, "name": "x"}
    asked = {"max_tokens": 5, "messages": said, "tools": [tool]}
    assert http.post("/v1/messages", json=asked).status_code in {200, 400}
    item = {"type": "message", "role": kind, "content": "a"}
    assert http.post("/v1/responses", json={"input": [item]}).status_code == 400

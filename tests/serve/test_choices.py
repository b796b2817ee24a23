"""``n``: several answers to one prompt, in one piece and streamed, through the real client."""

import contextlib

import openai
import pytest
from fake_service import wait_until
from server_process import Server

from spillcache.errors import Overloaded

HELLO = [{"role": "user", "content": "Hello"}]
TEXT = "Hello wörld!"


def test_a_chat_in_one_piece(ai, service):
    answer = ai.chat.completions.create(model="any", messages=HELLO, n=3, seed=7)
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (n, TEXT, "stop") for n in range(3)
    ]
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.timings["predicted_n"] == 4, "those of the last"
    assert [r.sampling.seed for r in service.requests] == [7, 8, 9]
    assert len({tuple(r.tokens) for r in service.requests}) == 1


def test_without_a_seed_each_draws_its_own(ai, service):
    ai.chat.completions.create(model="any", messages=HELLO, n=2)
    assert [r.sampling.seed for r in service.requests] == [None, None]


def test_a_chat_streamed(ai, service):
    chunks = list(
        ai.chat.completions.create(
            model="any", messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    said = {0: "", 1: ""}
    ends, roles = [], []
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        said[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
        ends += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
        assert chunk.usage is None
    assert said == {0: TEXT, 1: TEXT}
    assert roles == [0, 1]
    assert ends == [(0, "stop"), (1, "stop")]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_completions(ai, service):
    whole = ai.completions.create(model="any", prompt="x", n=2)
    assert [(c.index, c.text) for c in whole.choices] == [(0, TEXT), (1, TEXT)]
    chunks = list(ai.completions.create(model="any", prompt="x", n=2, stream=True))
    for number in range(2):
        own = [c for chunk in chunks for c in chunk.choices if c.index == number]
        assert "".join(c.text for c in own) == TEXT


def test_calls_of_each(ai, service):
    service.script.texts = ['{"name": "f", ', '"arguments": {"x": 1}}']
    service.script.rest = ""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = ai.chat.completions.create(
        model="any", messages=HELLO, n=2, tools=[tool], tool_choice="required"
    )
    calls = [choice.message.tool_calls[0] for choice in answer.choices]
    assert [call.function.arguments for call in calls] == ['{"x": 1}'] * 2
    assert calls[0].id != calls[1].id


def test_one_that_is_refused_ends_them_all(ai, service):
    submit = service.submit

    def once(request, listener):
        if service.requests:
            raise Overloaded("256 requests wait already")
        return submit(request, listener)

    service.submit = once
    with pytest.raises(openai.RateLimitError, match="256 requests wait"):
        ai.chat.completions.create(model="any", messages=HELLO, n=2)
    service.requests.clear()
    with pytest.raises(openai.APIError, match="256 requests wait"):
        list(ai.chat.completions.create(model="any", messages=HELLO, n=2, stream=True))


def test_a_client_that_leaves_asks_for_no_more(http, service):
    service.script.hold_at = 1
    body = {"messages": HELLO, "n": 3, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body):
        pass
    assert wait_until(lambda: service.last().ticket.cancelled)
    service.script.go.set()
    assert len(service.requests) == 1


@pytest.mark.parametrize("n", [0, 33, "2", 1.5])
def test_numbers_that_can_not_be(http, n):
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, "n": n})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


def test_a_real_server_computes_the_prompt_once(gguf_model, tmp_path):
    body = {"prompt": list(range(5, 205)), "max_tokens": 8, "temperature": 1, "seed": 1}
    with contextlib.closing(Server(gguf_model("llama"), tmp_path / "log")) as server:
        several = server.http.post("/v1/completions", json=body | {"n": 3}).json()
        assert several["timings"]["cache_n"] >= 192
        texts = [choice["text"] for choice in several["choices"]]
        for number, text in enumerate(texts):
            one = server.http.post("/v1/completions", json=body | {"seed": 1 + number}).json()
            assert one["choices"][0]["text"] == text
        assert len(set(texts)) > 1

"""OpenAI's own client, and raw HTTP, against the routes over real sockets."""

import json
import threading

import openai
import pytest
from fake_service import BOS, FakeEngine, wait_until

from spillcache.engine.base import SamplingParams, TokenShares
from spillcache.errors import DecodeError, NotReady, Overloaded, PromptTooLong

HELLO = [{"role": "user", "content": "hello"}]
PROMPT_TEXT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
TEXT = "Hello wörld!"


def sse(response):
    """The data of each event, in order; checks the framing."""
    body = response.read().decode()
    assert body.endswith("\n\n")
    events = body[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def test_chat(ai, service):
    answer = ai.chat.completions.create(model="any", messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny-fake"
    assert answer.system_fingerprint.startswith("spillcache-")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", TEXT)
    assert (choice.index, choice.finish_reason) == (0, "stop")
    prompt = len(PROMPT_TEXT) + 1
    assert answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == 4
    assert answer.usage.total_tokens == prompt + 4
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    request = service.last().request
    assert bytes(request.tokens[1:].astype("u1")).decode() == PROMPT_TEXT
    assert request.sampling == SamplingParams()
    assert request.max_tokens is None


def test_timings(http):
    timings = http.post("/v1/chat/completions", json={"messages": HELLO}).json()["timings"]
    computed = len(PROMPT_TEXT) + 1 - 4
    assert timings == {
        "cache_n": 4,
        "prompt_n": computed,
        "prompt_ms": 50.0,
        "prompt_per_token_ms": round(50.0 / computed, 3),
        "prompt_per_second": round(1000.0 * computed / 50.0, 3),
        "predicted_n": 4,
        "predicted_ms": 40.0,
        "predicted_per_token_ms": 10.0,
        "predicted_per_second": 100.0,
        "cache": {"live": 0, "ram": 0, "disk": 4},
        "restore_ms": 20.0,
        "restored_bytes": 4096,
        "restored": {"ram": 0, "disk": 64},
        "refused": {"KV_STORE_IO": 60},
        "cache_decision": "off",
        "parted": None,
        "queue_ms": 1.5,
    }


def test_chat_stream(ai):
    chunks = list(ai.chat.completions.create(model="any", messages=HELLO, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].timings["cache"]["disk"] == 4


def test_chat_stream_with_usage(ai, service):
    service.script.reason = "length"
    chunks = list(
        ai.chat.completions.create(
            model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 4
    assert chunks[-1].timings["predicted_n"] == 4
    assert not hasattr(chunks[-2], "timings")


def test_a_stream_is_framed_as_server_sent_events(http):
    with http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in response.headers
        events = sse(response)
    assert events[-1] == "[DONE]"
    first = json.loads(events[0])["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(events[-2])["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_completions(ai, service):
    answer = ai.completions.create(model="any", prompt="Once", max_tokens=4)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 5
    request = service.last().request
    assert list(request.tokens) == [BOS, *b"Once"]
    assert request.max_tokens == 4


def test_completions_stream(ai):
    chunks = list(
        ai.completions.create(
            model="any", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
    )
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT
    assert chunks[-1].usage.prompt_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [BOS, 97, 98]),
        (["ab"], [BOS, 97, 98]),
        ([1, 2, 257], [1, 2, 257]),
        ([[0, 5]], [0, 5]),
        ("<s>ab", [BOS, BOS, 97, 98]),  # as llama-server: BOS is added, control tokens are read
    ],
)
def test_prompts_of_completions(http, service, prompt, tokens):
    assert http.post("/v1/completions", json={"prompt": prompt}).status_code == 200
    assert list(service.last().request.tokens) == tokens


def test_bos_is_never_doubled_in_a_chat(http, service):
    service.engine_in_use = FakeEngine("gemma")
    assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    tokens = list(service.last().request.tokens)
    assert tokens[0] == BOS
    assert tokens.count(BOS) == 1


def test_a_vocabulary_without_bos(http, service):
    service.engine_in_use = FakeEngine("{{ messages[0].content }}", bos="")
    assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    assert list(service.last().request.tokens) == [BOS, *b"hello"]


def test_an_empty_chat_prompt(http, service):
    service.engine_in_use = FakeEngine("{{ bos_token }}", bos="<s>")
    service.engine_in_use.tokenize = lambda text, **_: []
    response = http.post("/v1/chat/completions", json={"messages": HELLO})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/models"])
def test_paths_without_v1(http, path):
    if path == "/models":
        assert http.get(path).json() == http.get("/v1/models").json()
        return
    body = {"messages": HELLO, "prompt": "x"}
    assert http.post(path, json=body).json()["choices"][0]["finish_reason"] == "stop"


def test_curl_sends_a_forms_content_type(http):
    response = http.post(
        "/v1/chat/completions",
        content=json.dumps({"messages": HELLO}),
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert response.status_code == 200


def test_sampling_reaches_the_scheduler(ai, service):
    ai.chat.completions.create(
        model="any",
        messages=HELLO,
        temperature=0,
        top_p=0.5,
        seed=7,
        stop=["\n\n"],
        max_completion_tokens=3,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repeat_penalty": 1.1,
            "repeat_last_n": -1,
            "ignore_eos": True,
            "cache_prompt": False,
            "cache_store": False,
            "cache_salt": "tenant",
        },
    )
    request = service.last().request
    assert request.sampling == SamplingParams(0, 5, 0.5, 0.1, 7, 1.1, 0.5, -0.5, -1, True)
    assert (request.stop, request.max_tokens, request.salt) == (("\n\n",), 3, b"tenant")
    assert (request.cache_prompt, request.cache_store) == (False, False)


def test_models(ai):
    (model,) = ai.models.list()
    assert (model.id, model.object, model.owned_by) == ("tiny-fake", "model", "spillcache")
    assert model.meta == {
        "n_vocab": 258,
        "n_ctx": 4096,
        "n_ctx_train": 8192,
        "n_embd": 64,
        "n_params": 500,
        "size": 1000,
    }
    assert ai.models.retrieve("tiny-fake").id == "tiny-fake"
    with pytest.raises(openai.NotFoundError) as caught:
        ai.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("service_options", [{"alias": "my-model"}])
def test_an_alias(ai):
    assert [model.id for model in ai.models.list()] == ["my-model"]
    assert ai.chat.completions.create(model="x", messages=HELLO).model == "my-model"


def test_models_are_listed_while_loading(http, service):
    service.state = "loading"
    assert http.get("/v1/models").json()["data"][0]["meta"] is None


# Errors before the first token have their status; those after it end the stream.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "code", "wait"),
    [
        (Overloaded("the queue is full"), 429, "rate_limit_error", "SERVER_OVERLOADED", True),
        (NotReady("stopping"), 503, "unavailable_error", "SERVER_NOT_READY", True),
        (
            PromptTooLong("9 tokens do not fit into 8", "messages"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            False,
        ),
    ],
)
def test_refusals(http, service, stream, refusal, status, kind, code, wait):
    service.script.refuse = refusal
    response = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
    assert response.status_code == status
    assert response.json() == {
        "error": {
            "message": str(refusal),
            "type": kind,
            "param": refusal.param,
            "code": code,
        }
    }
    assert ("retry-after" in response.headers) == wait


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_has_a_status(http, service, stream):
    service.script.fail_after, service.script.failure = 0, DecodeError("llama_decode failed")
    response = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
    assert response.status_code == 500
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "ENGINE_DECODE")


def test_an_error_later_in_an_answer_of_one_piece_has_a_status(http, service):
    service.script.fail_after, service.script.failure = 2, DecodeError("llama_decode failed")
    assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 500


def test_an_error_within_a_stream_ends_it(ai, service):
    service.script.fail_after, service.script.failure = 2, DecodeError("llama_decode failed")
    service.script.hold_at = 2  # so that the first pieces are out before
    stream = ai.chat.completions.create(model="any", messages=HELLO, stream=True)
    head, piece = next(stream), next(stream)
    assert (head.choices[0].delta.content, piece.choices[0].delta.content) == ("", "Hel")
    service.script.go.set()
    with pytest.raises(openai.APIError, match="llama_decode failed") as caught:
        next(stream)
    assert caught.value.code == "ENGINE_DECODE"
    stream.close()


def test_no_done_after_an_error(http, service):
    service.script.fail_after, service.script.failure = 2, DecodeError("llama_decode failed")
    service.script.hold_at = 2
    threading.Timer(0.2, service.script.go.set).start()
    with http.stream("POST", "/completions", json={"prompt": "x", "stream": True}) as response:
        events = sse(response)
    assert "[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "ENGINE_DECODE"


def test_while_loading(http, service):
    service.state = "loading"
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        response = http.post(path, content="{not even JSON")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "SERVER_NOT_READY"


# A client that leaves.


def test_the_first_token_is_not_held_back(http, service):
    service.script.hold_at = 1
    with http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        lines = response.iter_lines()
        data = [next(lines) for _ in range(3)]
        assert json.loads(data[2][6:])["choices"][0]["delta"]["content"] == "Hel"
        assert not service.script.go.is_set()
        service.script.go.set()
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_leaving_a_stream_cancels(http, service):
    service.script.hold_at = 1
    with http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        assert not service.last().ticket.cancelled
        lines.close()
    assert wait_until(lambda: service.last().ticket.cancelled)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_cancels(http, service, stream):
    service.script.hold_at = 0
    body = {"messages": HELLO, "stream": stream}
    with pytest.raises(Exception, match="timed out"):
        http.post("/v1/chat/completions", json=body, timeout=0.3)
    assert wait_until(lambda: service.last().ticket.cancelled)


def test_leaving_while_the_prompt_is_made_submits_nothing(http, service):
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(messages, **_):
        begun.set()
        go.wait(5)
        ended.set()
        return "x"

    service.engine_in_use.chat_prompt = slow
    with pytest.raises(Exception, match="timed out"):
        http.post("/v1/chat/completions", json={"messages": HELLO}, timeout=0.3)
    assert begun.wait(5)
    # The server sees it while the prompt is still being made.
    assert http.get("/health").status_code == 200
    go.set()
    assert ended.wait(5)
    assert http.get("/health").status_code == 200
    assert service.requests == []


def test_many_streams_at_once(ai, service):
    service.script.texts = [f"{number} " for number in range(200)]
    service.script.rest = ""
    texts = [""] * 8

    def read(index):
        for chunk in ai.chat.completions.create(model="any", messages=HELLO, stream=True):
            texts[index] += chunk.choices[0].delta.content or ""

    threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == ["".join(service.script.texts)] * 8


SHARES = TokenShares(97, -0.5, ((97, -0.5),), drawn=False)
LOGPROBS = {
    "id": 97,
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [{"id": 97, "token": "a", "bytes": [97], "logprob": -0.5}],
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {"prompt": "x", "logprobs": 1}),
        ("/v1/completions", {"prompt": "x", "logprobs": True}),
    ],
)
def test_logprobs(http, service, path, body):
    service.script.shares = SHARES
    choice = http.post(path, json=body).json()["choices"][0]
    assert choice["logprobs"] == {"content": [LOGPROBS] * 4}
    assert service.last().request.sampling.n_probs == 1
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        lines = response.read().decode().split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for one in found if one] == [{"content": [LOGPROBS]}] * 4


def test_no_logprobs_unless_they_are_asked_for(http, service):
    http.post("/v1/chat/completions", json={"messages": HELLO, "logprobs": False})
    assert service.last().request.sampling.n_probs is None
    http.post("/v1/chat/completions", json={"messages": HELLO, "logprobs": True})
    assert service.last().request.sampling.n_probs == 0
    http.post("/v1/completions", json={"prompt": "x", "logprobs": False})
    assert service.last().request.sampling.n_probs is None
    body = {"messages": HELLO, "top_logprobs": 2}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def test_openais_client_reads_logprobs(ai, service):
    service.script.shares = SHARES
    answer = ai.chat.completions.create(model="x", messages=HELLO, logprobs=True, top_logprobs=1)
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "<s>" * 4097}, "prompt"),
        ("/completion", {"prompt": "<s>" * 4097}, "prompt"),
        ("/infill", {"input_prefix": "<s>" * 4097, "input_suffix": ""}, "input_prefix"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<s>" * 4097}]},
         "messages"),
        ("/v1/messages/count_tokens",
         {"model": "x", "messages": [{"role": "user", "content": "<s>" * 4097}]}, "messages"),
    ],
)  # fmt: skip
def test_control_tokens_alone_are_too_many(http, service, monkeypatch, path, body, param):
    def tokenize(*_, **options):
        raise AssertionError("it need not be tokenised")

    monkeypatch.setattr(service.engine_in_use, "tokenize", tokenize)
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert f"{param}: the text has more than 4096 tokens" in answer.json()["error"]["message"]

"""Every way in which a request can be wrong gets OpenAI's error object, and the server lives on."""

import asyncio
import json
import logging
import socket
import time

import httpx
import openai
import pytest
from fake_service import FakeService

from spillcache.errors import PromptTooLong
from spillcache.serve.app import create_app

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def error_of(response):
    """The error object; it has exactly OpenAI's fields."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert "Traceback" not in response.text
    return body["error"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"messages": [}', b"\xff\xfe", b"messages=x", b"[" * 5000, b"NaN"]
)
def test_malformed_json(http, raw):
    response = http.post(CHAT, content=raw)
    error = error_of(response)
    assert response.status_code == 400
    words = ("the body is not JSON: ", "the body must be", "the body holds lists")
    assert error["message"].startswith(words)
    assert (error["type"], error["code"]) == ("invalid_request_error", "REQUEST_INVALID")


@pytest.mark.parametrize("body", [[], 5, "x", None])
def test_json_that_is_no_object(http, body):
    response = http.post(CHAT, content=json.dumps(body))
    assert response.status_code == 400
    assert error_of(response)["message"] == "the body must be a JSON object"


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT, {}, "messages", "messages is required"),
        (
            CHAT,
            {"messages": HELLO, "max_tokens": "5"},
            "max_tokens",
            "max_tokens must be an integer",
        ),
        (
            CHAT,
            {"messages": HELLO, "temperature": -1},
            "temperature",
            "temperature must be at least 0",
        ),
        (CHAT, {"messages": [{"role": 5}]}, "messages[0].role", "messages[0].role must be a text"),
        (
            CHAT,
            {"messages": HELLO, "stop": [1]},
            "stop",
            "stop must be a text or a list of at most 32",
        ),
        (CHAT, {"messages": []}, "messages", "messages is empty"),
        (CHAT, {"messages": "hi"}, "messages", "messages must be a list"),
        (CHAT, {"messages": ["hi"]}, "messages[0]", "messages[0] must be an object"),
        (CHAT, {"messages": HELLO, "stream_options": 5}, "stream_options", "must be an object"),
        (CHAT, {"messages": HELLO, "top_p": 0}, "top_p", "top_p must be more than 0"),
        (CHAT, {"messages": HELLO, "top_p": 1.5}, "top_p", "top_p must be at most 1"),
        (CHAT, {"messages": HELLO, "top_p": "x"}, "top_p", "top_p must be a number"),
        (CHAT, {"messages": HELLO, "max_tokens": 1.5}, "max_tokens", "must be an integer"),
        (
            CHAT,
            {"messages": HELLO, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
            "must be true or false",
        ),
        (
            CHAT,
            {"messages": [{"role": "narrator", "content": "x"}]},
            "messages[0].role",
            "must be one of system",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "text only",
        ),
        (CHAT, {"messages": HELLO, "tools": [{}]}, "tools", "needs a function with a name"),
        (CHAT, {"messages": HELLO, "n_predict": 0}, "n_predict", "at least 1"),
        ("/v1/completions", {"prompt": ""}, "prompt", "the prompt is empty"),
        ("/v1/completions", {"prompt": []}, "prompt", "the prompt is empty"),
        ("/v1/completions", {"prompt": [258]}, "prompt", "0 … 257"),
        ("/v1/completions", {"prompt": [-1]}, "prompt", "0 … 257"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt", "several prompts"),
        ("/tokenize", {"content": 5}, "content", "content must be a text"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "must be an integer"),
        ("/detokenize", {"tokens": [5000]}, "tokens", "0 … 257"),
    ],
)
def test_fields_at_fault_are_named(http, service, path, body, param, words):
    response = http.post(path, json=body)
    error = error_of(response)
    assert response.status_code == 400
    assert error["param"] == param
    assert words in error["message"]
    for raw in ("nput should", "alue error", "validation"):
        assert raw not in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in {"REQUEST_INVALID", "REQUEST_UNSUPPORTED"}
    assert service.requests == []


def test_an_error_quotes_no_prompt(http):
    body = {"messages": [{"role": "user", "content": "secret"}], "temperature": "secret"}
    assert "secret" not in http.post(CHAT, json=body).text


def test_openais_client_reads_our_errors(ai):
    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(model="x", messages=HELLO, temperature=-1)
    assert (caught.value.param, caught.value.code) == ("temperature", "REQUEST_INVALID")


def test_no_such_path(http):
    response = http.post("/v1/nothing", json={})
    assert response.status_code == 404
    error = error_of(response)
    assert (error["type"], error["code"]) == ("not_found_error", "not_found")
    assert "GET / lists the routes" in error["message"]
    assert http.get("/docs").status_code == http.get("/redoc").status_code == 404


def test_a_base_url_that_says_v1_twice(http):
    response = http.post("/v1/v1/chat/completions", json={})
    assert response.status_code == 404
    assert "base URL has /v1 already: leave one of the two out" in error_of(response)["message"]


def test_wrong_method(http):
    response = http.get(CHAT)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error = error_of(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HELLO}, "messages"),
        ("/v1/completions", {"prompt": "x"}, "prompt"),
    ],
)
def test_a_prompt_that_is_too_long_names_the_field_that_was_sent(http, service, path, body, param):
    service.script.refuse = PromptTooLong("the prompt has 5 tokens", "prompt")
    error = error_of(http.post(path, json=body))
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")


@pytest.mark.parametrize("name", ["cache_stor", "cache_key", "Cache_Store", "cache_" + "x" * 500])
def test_a_misspelt_cache_field_is_refused(http, service, name):
    response = http.post(CHAT, json={"messages": HELLO, name: False})
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "REQUEST_INVALID")
    assert error["param"] == name[:64]
    assert "cache_prompt, cache_store, cache_salt" in error["message"]
    assert service.requests == []


def test_a_bug_is_a_sentence_and_a_log_entry(http, service, caplog):
    def bug(messages, **_):
        raise ZeroDivisionError("boom")

    service.engine_in_use.chat_prompt = bug
    with caplog.at_level(logging.ERROR):
        response = http.post(CHAT, json={"messages": HELLO})
    assert response.status_code == 500
    error = error_of(response)
    assert (error["type"], error["code"]) == ("server_error", "INTERNAL")
    assert "boom" not in response.text
    (record,) = [r for r in caplog.records if r.name == "spillcache.serve.middleware"]
    assert record.getMessage() == f"request failed: POST {CHAT}"
    assert record.exc_info[0] is ZeroDivisionError
    assert http.get("/health").status_code == 200


def test_a_bug_within_a_stream_breaks_the_connection(http, service, caplog):
    service.script.texts = ["", object()]
    service.script.hold_at = 1
    body = {"messages": HELLO, "stream": True}
    with caplog.at_level(logging.ERROR), http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        service.script.go.set()
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    assert any(r.name == "spillcache.serve.middleware" for r in caplog.records)


LIMITED = pytest.mark.parametrize("service_options", [{"body_limit_bytes": 1000}])


@LIMITED
def test_a_declared_body_past_the_limit(http, service):
    for size in (2_000, 3_000_000):
        response = http.post(CHAT, content=b" " * size)
        assert response.status_code == 413
        error = error_of(response)
        assert error["code"] == "REQUEST_TOO_LARGE"
        assert "1000 bytes" in error["message"]
    assert http.post("/completions", json={"prompt": "x" * 900}).status_code == 200


@LIMITED
@pytest.mark.parametrize("chunks", [3, 500, 5000])
def test_a_chunked_body_past_the_limit(http, chunks):
    response = http.post(CHAT, content=(b" " * 500 for _ in range(chunks)))
    assert response.status_code == 413
    assert error_of(response)["code"] == "REQUEST_TOO_LARGE"


@LIMITED
def test_a_chunked_body_within_the_limit(http):
    body = json.dumps({"prompt": "x" * 900}).encode()
    response = http.post("/completions", content=(body[i : i + 100] for i in range(0, 1000, 100)))
    assert response.status_code == 200


@LIMITED
def test_a_body_that_never_comes_is_not_waited_for(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        start = time.monotonic()
        client.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n".encode()
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        assert 1 < time.monotonic() - start < 5


def test_a_client_that_leaves_within_its_body(http, url, caplog):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
    assert http.get("/health").status_code == 200
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


KEYED = pytest.mark.parametrize("service_options", [{"api_keys": ("s3cret-ß", "other")}])


@KEYED
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic s3cret-ß".encode()},
        {"Authorization": "s3cret-ß".encode()},
        {"X-Api-Key": "s3cret"},
    ],
)
def test_without_the_key(http, service, headers):
    for method, path in (("POST", CHAT), ("GET", "/metrics"), ("GET", "/props"), ("GET", "/nope")):
        response = http.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = error_of(response)
        assert (error["type"], error["code"]) == ("authentication_error", "REQUEST_UNAUTHORIZED")
    assert service.requests == []


@KEYED
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer s3cret-ß".encode()},
        {"Authorization": "bearer  s3cret-ß".encode()},
        {"X-Api-Key": "s3cret-ß".encode()},
    ],
)
def test_with_the_key(http, headers):
    assert http.post("/completions", json={"prompt": "x"}, headers=headers).status_code == 200


@KEYED
@pytest.mark.parametrize("path", ["/health", "/v1/health", "/v1/models", "/models"])
def test_public_paths(http, path):
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("service_options", [{"api_keys": ("right",)}])
def test_openais_client_with_a_wrong_key(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="x", messages=HELLO)
        right = client.with_options(api_key="right")
        assert right.chat.completions.create(model="x", messages=HELLO).choices


def test_what_is_no_request_passes():
    """A server that speaks ASGI's lifespan finds nothing in its way."""
    app = create_app(FakeService(api_keys=("x",)))
    sent = []

    async def receive():
        return {"type": "lifespan.shutdown" if sent else "lifespan.startup"}

    async def send(message):
        sent.append(message["type"])

    asyncio.run(app({"type": "lifespan", "app": app, "state": {}}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

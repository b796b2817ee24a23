"""Who is let in, and who is told why not: over a real socket."""

import json
import socket
import threading

import pytest
from fake_service import wait_until

from spillcache.serve.app import _MORE_REQUESTS
from spillcache.serve.guards import HEADER_BYTES_MAX, HEADERS_MAX

ASK = {"prompt": "x"}
FOREIGN = "https://evil.example"


def refusal(response, status, code):
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, None)
    return error["message"]


def raw(url, data):
    """What a server answers to bytes, until it closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(data)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/"])
def test_a_rebound_name_gets_nothing(http, path):
    message = refusal(
        http.get(path, headers={"Host": "evil.example:8080"}), 403, "REQUEST_FORBIDDEN"
    )
    assert "'evil.example:8080' is no name of this server" in message
    assert "--allowed-hosts" in message


def test_names_of_any_length_and_bytes(http):
    answer = http.get("/health", headers={"Host": b"\xff" + b"x" * 5000})
    assert len(refusal(answer, 403, "REQUEST_FORBIDDEN")) < 500


def test_no_name_is_no_browser(url):
    assert raw(url, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("service_options", [{"allowed_hosts": ("llm.example",)}])
def test_allowed_names(http):
    assert http.get("/health", headers={"Host": "llm.example"}).status_code == 200
    assert http.get("/health", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("origin", [FOREIGN, "null", "http://localhost:3000", ""])
@pytest.mark.parametrize("path", ["/completions", "/cache/flush", "/lora-adapters", "/nothing"])
def test_a_foreign_page_changes_nothing(http, service, origin, path):
    answer = http.post(path, json=ASK, headers={"Origin": origin})
    assert "--allowed-origins" in refusal(answer, 403, "REQUEST_FORBIDDEN")
    assert service.requests == service.flushes == []
    assert "access-control-allow-origin" not in answer.headers


def test_a_foreign_page_may_look_but_not_read(http):
    answer = http.get("/health", headers={"Origin": FOREIGN})
    assert answer.status_code == 200
    assert not any(name.startswith("access-control") for name in answer.headers)
    asked = {"Origin": FOREIGN, "Access-Control-Request-Method": "POST"}
    assert http.options("/completions", headers=asked).status_code == 405


def test_its_own_pages_may_ask(http, url):
    assert http.post("/completions", json=ASK, headers={"Origin": url}).status_code == 200


@pytest.mark.parametrize("service_options", [{"api_keys": ("k",)}])
def test_a_key_does_not_open_it_for_foreign_pages(http):
    headers = {"Origin": FOREIGN, "Authorization": "Bearer k"}
    assert http.post("/completions", json=ASK, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "service_options",
    [{"allowed_origins": (FOREIGN,), "api_keys": ("k",)}, {"allowed_origins": ("*",)}],
)
def test_allowed_pages_may_ask_and_read(http):
    asked = {
        "Origin": FOREIGN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    before = http.options("/completions", headers=asked)  # has no key: browsers don't send it yet
    assert before.status_code == 200
    assert "authorization" in before.headers["access-control-allow-headers"]
    headers = {"Origin": FOREIGN, "Authorization": "Bearer k"}
    answer = http.post("/completions", json=ASK, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in (FOREIGN, "*")


@pytest.mark.parametrize("service_options", [{"allowed_origins": (FOREIGN,)}])
def test_other_pages_still_may_not(http):
    answer = http.post("/completions", json=ASK, headers={"Origin": "https://other.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Long": "x" * HEADER_BYTES_MAX},
        {f"X-{n}": "x" for n in range(HEADERS_MAX)},
    ],
)
def test_heads_that_no_client_needs(http, headers):
    message = refusal(http.get("/health", headers=headers), 431, "REQUEST_HEAD_TOO_LARGE")
    assert f"{HEADER_BYTES_MAX} bytes" in message


def test_a_long_target(http):
    answer = http.get("/health?" + "x" * HEADER_BYTES_MAX)
    refusal(answer, 431, "REQUEST_HEAD_TOO_LARGE")


@pytest.mark.parametrize("service_options", [{"queue_limit": 0}])
def test_more_at_once_than_could_ever_wait(http, url, service):
    """Bodies that don't come hold their places; whoever is beyond them is sent away unread."""
    limit = service.slots_total() + _MORE_REQUESTS
    host, port = url.removeprefix("http://").split(":")
    head = b"POST /completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    held = [socket.create_connection((host, int(port)), timeout=10) for _ in range(limit)]
    try:
        for client in held:
            client.sendall(head)
        assert wait_until(lambda: http.post("/completions", json=ASK).status_code == 429)
        answer = http.post("/completions", json=ASK)
        assert "try again later" in refusal(answer, 429, "SERVER_OVERLOADED")
        assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/health").status_code == 200
    finally:
        for client in held:
            client.close()
    assert wait_until(lambda: http.post("/completions", json=ASK).status_code == 200)


@pytest.mark.parametrize("service_options", [{"timeout_s": 0.3}])
def test_a_body_that_dawdles(url, service):
    head = b"POST /completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
    answer = raw(url, head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "REQUEST_TIMEOUT")
    assert "within 0.3 s" in error["message"]
    assert service.requests == []


@pytest.mark.parametrize("service_options", [{"timeout_s": 0.3}])
def test_an_answer_may_take_longer_than_its_body(http, service):
    service.script.hold_at = 1
    threading.Timer(0.8, service.script.go.set).start()
    assert http.post("/completions", json=ASK).json()["choices"][0]["text"] == "Hello wörld!"

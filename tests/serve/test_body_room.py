"""All bodies together have a bound, and each request gives back what it took."""

import asyncio
import json
import threading

import httpx
import pytest
from fake_service import wait_until

from spillcache.errors import Overloaded
from spillcache.serve.body_room import BodyRoom, share_of
from spillcache.serve.middleware import BodyLimit

MANY = pytest.mark.parametrize("service_options", [{"bodies_limit_bytes": 1_000_000}])


def test_room_is_shared_and_given_back():
    room, one, two = BodyRoom(100), {}, {}
    with room.share(one) as first:
        first.take(60)
        with room.share(two) as second:
            assert share_of(two) is second
            second.take(40)
            with pytest.raises(Overloaded, match="take 60 B of 100 B; try again later"):
                second.take(1)
            assert room.held_bytes == 100
        assert room.held_bytes == 60
        first.take(1000)  # alone, it may have all: its own size has a bound of its own
    assert room.held_bytes == 0


def body(size):
    return json.dumps({"prompt": "a" * size}).encode()


@MANY
def test_requests_that_are_too_large_together(http, service):
    """One that is answered holds its body; a second is told to come again, and then may."""
    service.script.hold_at = 1
    found = []

    def ask():
        with httpx.Client(base_url=http.base_url, timeout=10) as client:
            found.append(client.post("/completions", content=body(300_000)))

    first = threading.Thread(target=ask)
    first.start()
    assert wait_until(lambda: service.requests)
    answer = http.post("/completions", content=body(450_000))
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "1"
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("SERVER_OVERLOADED", "rate_limit_error")
    assert "the bodies of other requests take 5" in error["message"]
    service.script.go.set()
    first.join(10)
    assert found[0].status_code == 200
    assert http.post("/completions", content=body(450_000)).status_code == 200


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"messages": [' + b'{"role":"user"},' * 70_000 + b"{}]}", "70,003 objects and lists"),
        (b'{"messages": [{}], "x": [' + b'"a",' * 600_000 + b"1]}", "600,002 texts and names"),
    ],
)
def test_too_many_values(http, raw, says):
    answer = http.post("/chat/completions", content=raw)
    assert answer.status_code == 413
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("route", ["/completion", "/v1/completions"])
def test_more_token_ids_than_the_context_has(http, route):
    answer = http.post(route, content=b'{"prompt": [' + b"11," * 50_000 + b"11]}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "prompt: it has 50,001 token ids, and the context holds 4,096; shorten it"
    )


def test_a_large_body_that_is_right_or_wrong(http):
    assert http.post("/tokenize", json={"content": "a" * 70_000}).json()["tokens"] == [97] * 70_000
    answer = http.post("/tokenize", json={"content": "a" * 70_000, "with_pieces": 5})
    assert answer.json()["error"]["message"] == "with_pieces must be true or false"


def test_what_came_is_given_back_when_the_client_leaves():
    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        raise asyncio.CancelledError

    async def receive():
        return {"type": "http.request", "body": b"x" * 10, "more_body": False}

    limit = BodyLimit(app, 100, 10, 100)
    scope = {"type": "http", "headers": []}
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(limit(scope, receive, None))
    assert limit._room.held_bytes == 0

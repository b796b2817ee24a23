import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from spillcache.cli.bench_client import BenchClient
from spillcache.errors import BenchError

DELAY_S = 0.15


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


USAGE = event(
    choices=[],
    usage={"prompt_tokens_details": {"cached_tokens": 192}},
    timings={"cache": {"live": 0, "ram": 0, "disk": 192}, "restored_bytes": 4096},
)
GOOD = [
    event(choices=[{"text": ""}]),
    DELAY_S,
    event(choices=[{"text": "Hel"}], tokens=[7]),
    b": a comment\n\n",
    event(choices=[{"text": "lo"}], tokens=[8, 9]),
    USAGE,
    b"data: [DONE]\n\n",
]


class ScriptedServer(ThreadingHTTPServer):
    """Not spillcache: it answers with what the test scripted, and keeps what it was asked."""

    script: list[bytes | float]
    status = 200
    asked: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.respond(b'{"status": "ok"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked = {"path": self.path, **json.loads(body)}
        if self.path == "/tokenize":
            self.respond(b'{"tokens": [1, 2, 3]}')
            return
        self.send_response(self.server.status)
        self.end_headers()
        for step in self.server.script:
            if isinstance(step, float):
                time.sleep(step)
            else:
                self.wfile.write(step)

    def respond(self, body: bytes) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(("127.0.0.1", 0), Handler) as scripted:
        scripted.script = list(GOOD)
        thread = threading.Thread(target=scripted.serve_forever, args=(0.02,))
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


@pytest.fixture
def client(server: ScriptedServer) -> BenchClient:
    return BenchClient("127.0.0.1", server.server_address[1])


def test_the_clock_stops_at_the_first_token(client: BenchClient, server: ScriptedServer) -> None:
    server.script.insert(-1, DELAY_S)
    answer = client.complete([5, 6, 7], 3)
    assert DELAY_S * 1e3 <= answer.ttft_ms < answer.total_ms - DELAY_S * 0.9e3
    assert answer.tokens == (7, 8, 9)
    assert answer.text == "Hello"
    assert answer.cached_tokens == 192
    assert answer.sources == {"live": 0, "ram": 0, "disk": 192}
    assert answer.restored_bytes == 4096


def test_the_request_is_greedy_and_of_fixed_length(
    client: BenchClient, server: ScriptedServer
) -> None:
    client.complete([5, 6, 7], 32)
    asked = server.asked
    assert asked["path"] == "/v1/completions"
    assert asked["prompt"] == [5, 6, 7]
    assert (asked["max_tokens"], asked["temperature"], asked["seed"]) == (32, 0, 0)
    assert asked["ignore_eos"]
    assert asked["stream"]


def test_tokens_and_health(client: BenchClient, server: ScriptedServer) -> None:
    assert client.tokenize("abc") == [1, 2, 3]
    assert server.asked == {"path": "/tokenize", "content": "abc", "add_special": False}
    assert client.get("/health") == (200, {"status": "ok"})


def test_a_refusal_is_an_error(client: BenchClient, server: ScriptedServer) -> None:
    server.status = 503
    server.script = [b"Loading model"]
    with pytest.raises(BenchError, match=r"503.*Loading model"):
        client.complete([1], 1)
    with pytest.raises(BenchError, match="/tokenize answered 503"):
        client.tokenize("abc")


def test_an_error_in_the_stream_is_an_error(client: BenchClient, server: ScriptedServer) -> None:
    server.script = [event(choices=[{"text": "x"}]), event(error={"message": "decode failed"})]
    with pytest.raises(BenchError, match="decode failed"):
        client.complete([1], 1)


@pytest.mark.parametrize("left_out", [slice(0, 0), slice(0, -2), slice(-2, None)])
def test_an_answer_without_a_token_or_its_figures_is_an_error(
    client: BenchClient, server: ScriptedServer, left_out: slice
) -> None:
    server.script = GOOD[left_out]
    with pytest.raises(BenchError, match="ended without"):
        client.complete([1], 1)


def test_nobody_there_is_an_oserror(server: ScriptedServer) -> None:
    with pytest.raises(OSError, match=r"."):
        BenchClient("127.0.0.1", 1).get("/health")

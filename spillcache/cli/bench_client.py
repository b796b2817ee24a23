"""A client that times the first token: plain HTTP, one connection per request, opened before."""

import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spillcache.errors import BenchError

_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one prompt, and when."""

    ttft_ms: float
    """From sending the request to the first token's event."""
    total_ms: float
    tokens: tuple[int, ...]
    text: str
    cached_tokens: int
    """``usage.prompt_tokens_details.cached_tokens``."""
    sources: dict[str, int]
    """Prompt tokens by the tier that their state came from: live, ram, disk; only ours say so."""
    restored_bytes: int
    decision: str = ""
    """``timings.cache_decision``; only ours say so."""


class BenchClient:
    """Talks to one server, spillcache or llama-server; any thread, one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def get(self, path: str) -> tuple[int, Any]:
        """Status and parsed JSON of a GET; raises OSError when nobody listens."""
        return self._exchange("GET", path, None)

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """The model's token ids of ``text``; ``add_special``: with BOS."""
        request = {"content": text, "add_special": add_special}
        status, body = self._exchange("POST", "/tokenize", request)
        if status != http.client.OK:
            raise BenchError(f"/tokenize answered {status}: {body}")
        return [int(token) for token in body["tokens"]]

    def complete(
        self, prompt: Sequence[int], max_tokens: int, *, cache_prompt: bool = True
    ) -> Answer:
        """Stream a greedy answer of exactly ``max_tokens`` tokens; raises BenchError."""
        request = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "seed": 0,
            "ignore_eos": True,
            "cache_prompt": cache_prompt,
            "return_tokens": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(request).encode()
        connection = self._connect()
        try:
            began = time.perf_counter()
            connection.request("POST", "/v1/completions", body, _JSON)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise BenchError(f"the server answered {response.status}: {response.read()!r}")
            return _read_answer(response, began)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        connection.connect()
        return connection

    def _exchange(self, method: str, path: str, request: Any) -> tuple[int, Any]:
        connection = self._connect()
        try:
            body = None if request is None else json.dumps(request).encode()
            connection.request(method, path, body, _JSON)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


_JSON = {"Content-Type": "application/json"}


def _read_answer(response: http.client.HTTPResponse, began: float) -> Answer:
    first_s: float | None = None
    tokens: list[int] = []
    text: list[str] = []
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    while line := response.readline():
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = time.perf_counter()
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise BenchError(f"the server broke the answer off: {event['error']}")
        text += (choice.get("text") or "" for choice in event.get("choices", ()))
        tokens += event.get("tokens", ())
        if first_s is None and (tokens or any(text)):
            first_s = now - began
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
    if first_s is None or not usage or not timings:
        raise BenchError("the server's answer ended without a token, its usage or its timings")
    return Answer(
        ttft_ms=1e3 * first_s,
        total_ms=1e3 * (time.perf_counter() - began),
        tokens=tuple(tokens),
        text="".join(text),
        cached_tokens=int(usage["prompt_tokens_details"]["cached_tokens"]),
        sources={str(tier): int(count) for tier, count in timings.get("cache", {}).items()},
        restored_bytes=int(timings.get("restored_bytes", 0)),
        decision=str(timings.get("cache_decision", "")),
    )

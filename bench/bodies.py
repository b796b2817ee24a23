"""How long do large bodies keep the server from answering others?

Streams one endless answer from a server on ``--model``, and meanwhile sends bodies of up to 16 MiB
that are all legal JSON: of many messages, token ids, names, lists, and a schema that is hard to
compile. For each: its status, and the longest pause between two pieces of the stream. The last line
of stdout is JSON.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from spillcache.cli.bench_server import BenchServer

BAR_MS = 300.0
"""The longest pause that a body may cause: a third of a second is a stutter, a second a fault."""
CHAT, COMPLETION = "/v1/chat/completions", "/completion"
QUIET_S = 2.0
_CONTEXT_TOKENS = 32768


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """Name, path and body: within the limits first, so that all of it is done."""
    message, ask = (
        b'{"role":"user"},',
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,',
    )
    wrong = b'],"temperature":-1}'  # once all else was read: a prompt of them takes minutes
    yield "32 000 messages", CHAT, b'{"messages":[' + message * 32_000 + b'{"role":"user"}' + wrong
    yield "1 000 000 ids", COMPLETION, b'{"prompt":[' + b"11," * 1_000_000 + b"11]}"
    yield "250 000 names", CHAT, ask + _names(250_000) + b"}"
    yield "32 000 lists", COMPLETION, b'{"prompt":[' + b"[1]," * 32_000 + b"1]}"
    text = b'{"messages":[{"role":"user","content":"' + b"a" * 16_000_000 + b'"}]}'
    yield "a text of 16 MB", CHAT, text
    yield (
        "400 000 messages",
        CHAT,
        b'{"messages":[' + message * 400_000 + b'{"role":"user"}' + wrong,
    )
    yield "5 000 000 ids", COMPLETION, b'{"prompt":[' + b"11," * 5_000_000 + b"11]}"
    yield "1 400 000 names", CHAT, ask + _names(1_400_000) + b"}"
    yield "200 000 variables", CHAT, ask + b'"chat_template_kwargs":{' + _names(200_000) + b"}}"
    yield "4 000 000 lists", CHAT, ask + b'"x":[' + b"[]," * 4_000_000 + b"1]}"
    yield "3 000 properties", CHAT, ask + b'"json_schema":' + _schema(3000) + b"}"
    yield "9 000 properties", CHAT, ask + b'"json_schema":' + _schema(8500) + b"}"


def _names(count: int) -> bytes:
    return ",".join(f'"{number:x}":1' for number in range(count)).encode()


def _schema(count: int) -> bytes:
    fields = {f"p{number}": {"type": "string"} for number in range(count)}
    return json.dumps({"type": "object", "properties": fields}, separators=(",", ":")).encode()


class Stream:
    """One endless answer, read in a thread; ``worst_ms`` since the last ``reset``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last = self._worst = 0.0
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        asked = {"prompt": "x", "stream": True, "ignore_eos": True, "n_predict": 30_000}
        with httpx.stream("POST", self._url + COMPLETION, json=asked, timeout=None) as answer:
            for _ in answer.iter_lines():
                now = time.perf_counter()
                with self._lock:
                    self._worst = max(self._worst, now - self._last)
                    self._last = now

    def reset(self) -> None:
        with self._lock:
            self._worst, self._last = 0.0, time.perf_counter()

    def worst_ms(self) -> float:
        with self._lock:
            return round(1000 * max(self._worst, time.perf_counter() - self._last), 1)


def main() -> int:
    args = arguments()
    flags = ["-m", args.model, "-c", str(_CONTEXT_TOKENS), "-np", "4", "-t", "1"]
    with tempfile.TemporaryDirectory() as work, BenchServer(flags, Path(work) / "log") as server:
        found = measure(f"http://127.0.0.1:{server.port}")
        server.stop()
    report: dict[str, Any] = {"bench": "bodies", "pauses": found, "bar_ms": BAR_MS}
    report["worst_ms"] = max(one["pause_ms"] for one in found.values())
    report["ok"] = report["worst_ms"] <= BAR_MS
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def measure(url: str) -> dict[str, dict[str, float]]:
    """By name: the status, the longest pause, and how long the request took."""
    found: dict[str, dict[str, float]] = {}
    httpx.post(url + CHAT, json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                                 "json_schema": {}}, timeout=120)  # fmt: skip
    stream = Stream(url)
    time.sleep(QUIET_S)
    stream.reset()
    time.sleep(QUIET_S)
    found["none"] = {"status": 0, "pause_ms": stream.worst_ms(), "took_ms": 1000 * QUIET_S}
    for name, path, body in bodies():
        stream.reset()
        began = time.perf_counter()
        status = httpx.post(url + path, content=body, timeout=120).status_code
        took_ms = round(1000 * (time.perf_counter() - began), 1)
        found[name] = {"status": status, "pause_ms": stream.worst_ms(), "took_ms": took_ms}
        print(
            f"{name:>20}  {status}  pause {found[name]['pause_ms']:8.1f} ms  took {took_ms:8.1f}",
            flush=True,
        )
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="gemma3-270m")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""The load: what counts as wrong, and a short run of it."""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from load import GROWTH_MAX_BYTES, Client, World, missed, report_of

BENCH = Path(__file__).parents[2] / "bench" / "load.py"


def answered(answer: bytes) -> World:
    """What a client makes of an answer."""

    async def play() -> World:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r")[0]))
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        world = World(server.sockets[0].getsockname()[1], 0.0)
        client = Client(world, 5)
        client._random.random = lambda: 0.5  # type: ignore[method-assign]
        await client._ask()
        server.close()
        await server.wait_closed()
        return world

    return asyncio.run(play())


def stream(tokens: int, end: bytes = b"data: [DONE]\n\n") -> bytes:
    piece = b'data: {"tokens": [1]}\n\n'
    return b"HTTP/1.1 200 OK\r\n\r\n" + piece * tokens + end


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (stream(16), {"answered": 1}),
        (stream(15), {"errors": 1}),
        (stream(16, b""), {"errors": 1}),
        (stream(3, b'data: {"error": {"code": "ENGINE"}}\n\n'), {"errors": 1}),
        (b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\n\r\n{}", {"sent_away": 1}),
        (b"HTTP/1.1 429 Too Many\r\n\r\n{}", {"errors": 1}),
        (b"HTTP/1.1 503 No\r\nRetry-After: 1\r\n\r\n{}", {"errors": 1}),
    ],
)
def test_what_is_wrong(answer: bytes, counts: dict[str, int]) -> None:
    assert dict(answered(answer).counts) == counts


def report(**changed: Any) -> dict[str, Any]:
    good = {
        "errors": 0,
        "answered": 9,
        "sent_away": 3,
        "rss_growth_bytes": 0,
        "descriptors_after": 14,
        "clients": 200,
    }
    return good | changed


@pytest.mark.parametrize(
    "changed",
    [
        {"errors": 1},
        {"answered": 0},
        {"sent_away": 0},
        {"rss_growth_bytes": GROWTH_MAX_BYTES + 1},
        {"descriptors_after": 150},
    ],
)
def test_what_is_missed(changed: dict[str, int]) -> None:
    assert missed(report()) == []
    assert len(missed(report(**changed))) == 1


def test_growth_is_from_the_middle_to_the_end() -> None:
    parts = {(0, 0.1): 10, (0.45, 0.55): 70, (0.9, 1.0): 75}
    samples = SimpleNamespace(
        part=lambda begin, end: parts.get((begin, end), 0), descriptors_max=1, threads_max=1
    )
    args = argparse.Namespace(clients=1, slots=1, queue_limit=1, seconds=1.0)
    made = report_of(World(0, 0.0), samples, args)  # type: ignore[arg-type]
    assert (made["rss_start_bytes"], made["rss_growth_bytes"]) == (10, 5)


@pytest.mark.model
def test_a_short_run() -> None:
    command = [sys.executable, str(BENCH), "--clients", "12", "--slots", "2"]
    command += ["--queue-limit", "2", "--seconds", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == 0, done.stdout
    assert found["answered"] > 0
    assert found["sent_away"] > 0

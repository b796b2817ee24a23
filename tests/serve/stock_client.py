"""A stock llama-server in a process of its own, and a client of it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def stock_client(model: Path, *words: str) -> Iterator[httpx.Client]:
    """``words``: see ``stock_server.py``."""
    port = free_port()
    script = Path(__file__).with_name("stock_server.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(model), str(port), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_ready(client, process)
            yield client
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        assert process.poll() is None, "the stock server ended"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the stock server was not ready in time")

"""When the disk stays silent: without ``--cache-disk``, and while a conversation is resident."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.store.files import Files
from spillcache.store.index import Index


def spied(cls: type, calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every call of a public method of ``cls``."""
    for name, method in vars(cls).items():
        if name.startswith("_") or not callable(method):
            continue

        def count(*args: Any, _name: str = name, _method: Any = method, **kwargs: Any) -> Any:
            calls[f"{cls.__name__}.{_name}"] += 1
            return _method(*args, **kwargs)

        monkeypatch.setattr(cls, name, count)


@pytest.mark.parametrize("tier", ["live", "ram"])
def test_a_resident_conversation_does_no_disk_io(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    calls: Counter[str] = Counter()
    spied(Files, calls, monkeypatch)
    spied(Index, calls, monkeypatch)
    with Stack(gguf_model("gemma3"), tmp_path / "d") as stack:
        first = stack.answer(prompt(700), 80)
        if tier == "ram":
            stack.answer(prompt(700, seed=2), 4)
        assert stack.cache is not None
        stack.cache.flush()
        assert calls["Index.write"] > 0, "the spy sees what a spill does"
        calls.clear()
        turn = prompt(700) + first.tokens + prompt(200, seed=3)
        before = process_io()
        again = stack.answer(turn, 80)
        after = process_io()
        assert again.cached[tier] >= 700
        # Whether the disk knows the new part of the turn is looked up in the index, which is mapped
        # into memory: no call to the system, no wait.
        assert set(calls) <= {"Index.read"}
        assert after["write_bytes"] == before["write_bytes"]
        assert after["syscw"] == before["syscw"]
        assert after["syscr"] - before["syscr"] <= 2, "our own look at /proc"
        stack.cache.flush()
        assert calls["Index.write"] > 0


def process_io() -> dict[str, int]:
    """What this process has read and written so far: proc(5), /proc/pid/io."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def files_below(root: Path) -> set[tuple[str, int, int]]:
    return {
        (str(p), p.lstat().st_size, p.lstat().st_mtime_ns) for p in root.rglob("*") if p.is_file()
    }


def test_without_cache_disk_nothing_is_written(gguf_model: ModelShelf, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    places = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    log = tmp_path / "log"
    before = files_below(home)
    with open(log, "wb") as err:
        command = ["-m", "spillcache", "serve", "-m", str(gguf_model("llama")), "--port", "0"]
        server = subprocess.Popen(
            [sys.executable, *command, "-c", "1024"],
            stderr=err,
            cwd=home,
            env=os.environ | places | {"COVERAGE_FILE": str(tmp_path / ".coverage")},
        )
        try:
            url = listening(log, server)
            for _ in range(2):
                body = {"prompt": list(range(5, 305)), "max_tokens": 8}
                reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
                assert reply.status_code == 200
            cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == 256, "the RAM tier and the live slot work without a disk"
            health = httpx.get(f"{url}/health", timeout=10).json()
            assert health["cache"]["disk"] == {"on": False, "reason": "no --cache-disk"}
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()
            server.wait()
    assert files_below(home) == before == set()


def listening(log: Path, server: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            if "listening on " in line:
                return line.split("listening on ")[1].strip()
        assert server.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())

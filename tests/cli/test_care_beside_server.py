"""Every command that cares for a directory, while a real server uses it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_server import BenchServer
from spillcache.config import MIB
from spillcache.store.view import directory_bytes

pytestmark = pytest.mark.model

TOKENS = 640


def command(*words: str, code: int = 0) -> Any:
    """What ``spillcache WORDS --json`` says, in a process of its own."""
    call = [sys.executable, "-m", "spillcache", *words, "--json"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


class Talk:
    """A server, and prompts for it."""

    def __init__(self, server: BenchServer) -> None:
        self.server = server
        self.maker = PromptMaker(server.client.tokenize)

    def new(self) -> list[int]:
        return self.maker.prompt(TOKENS)

    def ask(self, prompt: list[int]) -> Any:
        return self.server.client.complete(prompt, 4)


@pytest.fixture
def flags(gguf_model: Any, tmp_path: Path) -> list[str]:
    words = ["--model", str(gguf_model("llama")), "--ctx-size", "1024", "--threads", "1"]
    words += ["--cache-disk", str(tmp_path / "cache"), "--cache-disk-size", "64MiB"]
    return [*words, "--cache-disk-min-free", "0", "--cache-ram", "64"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def talk(flags: list[str], log: Path) -> Iterator[Talk]:
    """A server that has been restarted, so that its directory holds the prompts it answered."""
    with BenchServer(flags, log) as server:
        first = Talk(server)
        for _ in range(2):
            first.ask(first.new())
        server.stop()
    with BenchServer(flags, log) as server:
        yield Talk(server)
        server.stop()


def test_all_of_them(talk: Talk, tmp_path: Path) -> None:
    path = str(tmp_path / "cache")
    prompt = talk.new()
    assert talk.ask(prompt).cached_tokens >= 512  # the same maker, the same first prompt

    url = f"http://127.0.0.1:{talk.server.port}"
    status = command("status", path, "--url", url)
    assert status["quota_bytes"] == 64 * MIB
    assert status["min_free_bytes"] == 0
    assert status["server"]["status"] == "ok"
    assert status["server"]["prompt_tokens"]["disk"] >= 512
    assert status["server"]["hit_ratio"] > 0

    (namespace,) = command("ls", path)["namespaces"]
    assert namespace["blocks"] >= 2 * TOKENS // 64

    report = command("verify", path)
    assert report["ok"]
    assert report["objects"] == namespace["objects"]
    repaired = command("repair", path)
    assert (repaired["rebuilt"], repaired["was_alone"]) == (False, False)
    doctor = command("doctor", path)
    assert doctor["ready"]

    plan = command("gc", path, "--to", "1MiB", "--dry-run")
    assert plan["objects"] > 0
    command("invalidate", path, namespace["id"], "--reason", "a test")
    second = talk.new()
    assert talk.ask(second).cached_tokens == 0  # it was there, but is hidden
    command("invalidate", path, namespace["id"], "--undo")

    done = command("gc", path, "--to", "1MiB")
    assert done["objects"] == plan["objects"]
    purged = command("purge", path, "--all", "--yes")
    assert not purged["removed"]
    assert command("ls", path)["objects"] == 0

    # The server goes on, and its cache with it.
    third = talk.new()
    assert talk.ask(third).cached_tokens == 0
    assert talk.ask(third).cached_tokens >= 512
    assert talk.server.health()["cache"]["disk"]["on"]
    assert directory_bytes(tmp_path / "cache") <= 64 * MIB


def test_after_the_server_all_of_it_can_go(flags: list[str], log: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with BenchServer(flags, log) as server:
        talk = Talk(server)
        talk.ask(talk.new())
        server.stop()
    assert command("ls", str(path))["objects"] > 0
    assert command("purge", str(path), "--all", "--yes")["removed"]
    assert list(path.iterdir()) == []
    with BenchServer(flags, log) as server:
        talk = Talk(server)
        assert talk.ask(talk.new()).cached_tokens == 0
        server.stop()

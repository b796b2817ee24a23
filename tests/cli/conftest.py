"""The command line, run in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spillcache.cli import serve_command
from spillcache.cli.main import run
from spillcache.config import Settings


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``cli("ls", "DIR") -> Ended``: as ``spillcache ls DIR`` in a shell."""
    for name in ("SPILLCACHE_DEBUG", "LLAMA_ARG_MODEL", "LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPILLCACHE_DISK", raising=False)

    def call(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["spillcache", *words])
        with pytest.raises(SystemExit) as exited:
            run()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ended(exited.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A file that looks like a model from afar."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the server would have been run with; it ends with code 7 at once."""
    calls: list[Settings] = []

    def run_server(settings: Settings) -> int:
        calls.append(settings)
        return 7

    monkeypatch.setattr(serve_command, "_run_server", run_server)
    return calls

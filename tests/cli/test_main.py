import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spillcache import __version__
from spillcache.cli import main
from spillcache.errors import ConfigError, SpillcacheError, StoreIOError


def shell(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``spillcache …`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "spillcache", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )


def test_version(cli: Any) -> None:
    assert cli("--version").out == f"spillcache {__version__}\n"
    assert shell("--version").stdout == f"spillcache {__version__}\n"


def test_the_installed_command_is_the_module() -> None:
    command = Path(sys.executable).with_name("spillcache")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"spillcache {__version__}\n"


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",), ("bench",), ("bench", "-h")])
def test_help_is_no_error(cli: Any, words: tuple[str, ...]) -> None:
    ended = cli(*words)
    assert ended.code == 0
    assert "Usage" in ended.out
    assert ended.err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("serve", "--no-such-flag"), "--no-such-flag"),
        (("frobnicate",), "frobnicate"),
        (("serve",), "--model"),
        (("serve", "-m", "x", "--port", "http"), "--port"),
        (("serve", "-m", "x", "--port", "65536"), "65535"),
        (("serve", "-m", "x", "-ctk", "q3"), "q3"),
        (("ls",), "spillcache ls DIR"),
    ],
)
def test_a_bad_command_line_is_one_line_and_code_2(
    cli: Any, words: tuple[str, ...], says: str
) -> None:
    ended = cli(*words)
    assert ended.code == 2
    assert ended.err.startswith("spillcache: error: ")
    assert ended.err.count("\n") == 1
    assert says in ended.err
    assert ended.out == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StoreIOError("the disk\nfailed"), 1, "spillcache: error: the disk failed\n"),
        (ConfigError("--x: no"), 2, "spillcache: error: --x: no\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 1, ""),
        (
            RuntimeError("oh"),
            1,
            "spillcache: error: RuntimeError: oh (set SPILLCACHE_DEBUG=1 for the traceback)\n",
        ),
    ],
)
def test_errors_are_told_without_a_traceback(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def app(**_: Any) -> None:
        raise error

    monkeypatch.setattr(main, "app", app)
    monkeypatch.setattr(main, "_quiet_stdout", lambda: None)
    ended = cli()
    assert (ended.code, ended.err) == (code, line)


def test_debugging_shows_the_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLCACHE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["spillcache", "serve", "-m", "/nowhere.gguf"])
    with pytest.raises(SpillcacheError, match="no such model"):
        main.run()


def test_a_reader_that_leaves_is_no_error_message() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as broken:
        done = subprocess.run(
            [sys.executable, "-m", "spillcache", "serve", "--help"],
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr == ""
    assert done.returncode == 1


def test_the_command_line_starts_without_the_heavy_imports() -> None:
    code = (
        "import sys, spillcache.cli.main as m; "
        "heavy = {'fastapi', 'llama_cpp', 'matplotlib', 'numpy', 'lmdb', 'uvicorn'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

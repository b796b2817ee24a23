"""What the commands that care for a directory share."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from care_tools import BLUE, RED, blocks_of, config, put

from spillcache.cli import care
from spillcache.errors import ConfigError
from spillcache.store.block_store import BlockStore

ALL = ["ls", "status", "gc", "purge", "invalidate", "verify", "repair", "doctor"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("command", ALL)
def test_a_directory_must_be_named(cli: Any, command: str) -> None:
    ended = cli(command)
    assert ended.code == 2
    assert "cache directory" in ended.err
    assert f"spillcache {command}" in ended.err


@pytest.mark.parametrize("command", ["ls", "status", "gc"])
def test_no_command_makes_a_store(cli: Any, directory: Path, command: str) -> None:
    directory.mkdir()
    ended = cli(command, str(directory))
    assert (ended.code, ended.out) == (1, "")
    assert "holds no spillcache store" in ended.err
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("command", ["ls", "status", "gc"])
def test_a_variable_or_a_flag_may_name_it(
    cli: Any, directory: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BlockStore.open(config(directory)).close()
    assert str(directory) in cli(command, "--cache-disk", str(directory)).out
    monkeypatch.setenv("SPILLCACHE_DISK", str(directory))
    assert str(directory) in cli(command).out
    # A flag's directory wins over the variable's, and the first word over both.
    assert cli(command, "--cache-disk", str(directory / "no")).code == 1
    assert cli(command, str(directory), "--cache-disk", str(directory / "no")).code == 0


def test_one_word_is_what_it_can_be() -> None:
    take = care.directory_and_name
    disk = Path("/disk")
    assert take(["/a", "b"], None, "x", needs_name=True) == (Path("/a"), "b")
    assert take(["/a", "b"], disk, "x", needs_name=True) == (Path("/a"), "b")
    assert take(["b"], disk, "x", needs_name=True) == (disk, "b")
    assert take(["/a"], None, "x", needs_name=True) == (Path("/a"), None)
    assert take(["/a"], disk, "x", needs_name=False) == (Path("/a"), None)
    assert take([], disk, "x", needs_name=False) == (disk, None)
    with pytest.raises(ConfigError, match="too many"):
        take(["a", "b", "c"], None, "x", needs_name=True)


def test_namespaces_are_found_by_the_beginning_of_their_id(directory: Path) -> None:
    with BlockStore.open(config(directory)) as store:
        put(store, RED, 1)
        put(store, BLUE, 1)
        name = RED.id.hex()
        for word in (name, name[:4], name[:9].upper()):
            assert care.find_namespace(directory, word).namespace == RED
        for word in (name[:3], "zzzz", f"{name}0"):
            with pytest.raises(ConfigError, match=BLUE.id.hex()):
                care.find_namespace(directory, word)
        with pytest.raises(ConfigError, match="several"):
            care.find_namespace(directory, "")
    empty = directory.parent / "empty"
    BlockStore.open(config(empty)).close()
    with pytest.raises(ConfigError, match="it has none"):
        care.find_namespace(empty, name)


def test_a_store_is_opened_with_the_limits_that_its_server_uses(directory: Path) -> None:
    with BlockStore.open(config(directory, min_free_bytes=12345, max_age_s=777.0)) as store:
        put(store, RED, 2)
    with care.open_store(directory) as store:
        assert store.describe()["min_free_bytes"] == 12345
        assert store.describe()["quota_bytes"] == 1 << 30
        assert store._opened is not None
        assert store._opened.room.limits.max_age_s == 777.0
        assert blocks_of(store, RED) == 2


def test_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    care.confirm("Sure?", yes=True)
    with pytest.raises(ConfigError, match="--yes"):
        care.confirm("Sure?", yes=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with pytest.raises(typer.Abort):
        care.confirm("Sure?", yes=False)


def test_a_bar_is_for_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with care.progress_bar("looking") as tell:
        tell(1, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for unit in ("bytes", "objects"):
        with care.progress_bar("looking", unit) as tell:
            tell(1, 2)
            tell(2, 2)
        out, err = capsys.readouterr()
        assert out == ""
        assert "looking" in err
    with care.spinner("waiting"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "waiting" in err


def test_who_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert care.is_alive(os.getpid())
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    assert not care.is_alive(child)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.kill", refuse)
    assert care.is_alive(1)


def damage(directory: Path, how: str) -> None:
    data = directory / "index" / "data.mdb"
    if how == "cut":
        os.truncate(data, data.stat().st_size // 2)
    elif how == "empty":
        os.truncate(data, 0)
    elif how == "noise":
        data.write_bytes(b"\xff" * data.stat().st_size)
    elif how == "no file":
        data.unlink()
    else:
        data.unlink()
        os.mkfifo(data)


@pytest.mark.parametrize("how", ["cut", "empty", "noise", "no file", "pipe"])
def test_a_damaged_index_kills_nobody(cli: Any, directory: Path, how: str) -> None:
    """LMDB would: commands that only look say what to do, the others have it made anew."""
    with BlockStore.open(config(directory)) as store:
        put(store, RED, 5)
    damage(directory, how)
    for words in (["ls"], ["status"], ["gc", "-n"], ["purge", "--yes"], ["invalidate", "--undo"]):
        name = [RED.id.hex()] if words[0] in ("purge", "invalidate") else []
        ended = cli(words[0], str(directory), *name, *words[1:])
        assert (ended.code, ended.out) == (1, "")
        assert f"run: spillcache repair {directory}" in ended.err
    ended = cli("verify", str(directory))
    assert ended.code == 0
    assert "5 objects read" in ended.out
    assert cli("ls", str(directory)).code == 0

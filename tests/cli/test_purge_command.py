import io
import json
from pathlib import Path
from typing import Any

import pytest
from care_tools import BLUE, RED, blocks_of, config, put

from spillcache.serve.token_shelf import shelf_namespace
from spillcache.store.block_store import BlockStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        put(store, RED, 5)
        put(store, BLUE, 3)
    return path


def held(directory: Path) -> tuple[int, int]:
    with BlockStore.open(config(directory)) as store:
        return blocks_of(store, RED), blocks_of(store, BLUE)


def test_one_namespace(cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = cli("purge", str(directory), RED.id.hex()[:6], "--yes")
    assert (ended.code, ended.out) == (
        0,
        f"{directory}: 5 objects deleted, 20.0 KiB; the store goes on\n",
    )
    assert held(directory) == (0, 3)
    monkeypatch.setenv("SPILLCACHE_DISK", str(directory))
    report = json.loads(cli("purge", BLUE.id.hex(), "-y", "--json").out)
    assert (report["objects"], report["removed"]) == (3, False)
    assert held(directory) == (0, 0)


def test_a_namespace_goes_with_what_is_remembered_of_its_answers(cli: Any, tmp_path: Path) -> None:
    path, digest = tmp_path / "cache", bytes(range(32))
    mine, other = shelf_namespace({"model_0": digest}, "[red]"), shelf_namespace({}, "[red]")
    with BlockStore.open(config(path)) as store:
        put(store, RED, 5)
        put(store, mine, 2)
        put(store, other, 3)
    report = json.loads(cli("purge", str(path), RED.id.hex(), "--yes", "--json").out)
    assert report["objects"] == 7
    with BlockStore.open(config(path)) as store:
        assert (blocks_of(store, RED), blocks_of(store, mine), blocks_of(store, other)) == (0, 0, 3)
    report = json.loads(cli("purge", str(path), other.id.hex(), "--yes", "--json").out)
    assert report["objects"] == 3


def test_everything_but_what_is_not_ours(cli: Any, directory: Path) -> None:
    (directory / "letter.txt").write_text("mine")
    ended = cli("purge", str(directory), "--all", "--yes")
    assert ended.code == 0
    assert f"{directory}: " in ended.out
    assert "not ours, and left: letter.txt" in ended.out
    assert [p.name for p in directory.iterdir()] == ["letter.txt"]
    ended = cli("purge", str(directory), "--all", "--yes")
    assert ended.code == 1
    assert "holds no spillcache store" in ended.err


def test_everything_of_a_store_in_use_is_emptied(cli: Any, directory: Path) -> None:
    with BlockStore.open(config(directory)) as store:
        report = json.loads(cli("purge", str(directory), "--all", "--yes", "--json").out)
        assert (report["objects"], report["removed"], report["files"]) == (8, False, 0)
        assert store.namespaces() == []
        put(store, RED, 2)
        assert blocks_of(store, RED) == 2
        out = cli("purge", str(directory), "--all", "--yes").out
        assert "may store that again; to have it forgotten, stop the server first\n" in out


def test_a_store_whose_index_is_damaged_can_be_deleted(cli: Any, directory: Path) -> None:
    data = directory / "index" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    assert cli("purge", str(directory), "--all", "--yes").code == 0
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["--all", "abcd"], [RED.id.hex(), "--all"]])
def test_what_is_to_go_must_be_clear(cli: Any, directory: Path, words: list[str]) -> None:
    ended = cli("purge", str(directory), *words, "--yes")
    assert ended.code == 2
    assert "say what to delete" in ended.err
    assert held(directory) == (5, 3)


def test_nothing_goes_without_a_yes(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["--all"], [RED.id.hex()]):
        ended = cli("purge", str(directory), *words)
        assert ended.code == 2
        assert "--yes" in ended.err
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert cli("purge", str(directory), "--all").code == 130
    assert held(directory) == (5, 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert cli("purge", str(directory), "--all").code == 0
    assert list(directory.iterdir()) == []


def test_an_unknown_namespace(cli: Any, directory: Path) -> None:
    ended = cli("purge", str(directory), "ffffffff", "--yes")
    assert ended.code == 2
    assert RED.id.hex() in ended.err

import json
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from care_tools import BLUE, RED, put

from spillcache.cli.ls_command import _age
from spillcache.config import StoreConfig
from spillcache.state import Part
from spillcache.store.block_store import BlockStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(directory: Path) -> Any:
    with BlockStore.open(StoreConfig(directory, quota_bytes=1 << 30)) as opened:
        yield opened


@pytest.fixture
def filled(store: BlockStore) -> BlockStore:
    put(store, RED, 3, (Part.KV, Part.WINDOW))
    put(store, BLUE, 1, (Part.KV,))
    return store


def snapshot(directory: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode))
        for path in directory.rglob("*")
        if path.name != "lock.mdb" and (found := path.stat())
    }


def test_json_has_all_of_it(cli: Any, filled: BlockStore, directory: Path) -> None:
    ended = cli("ls", str(directory), "--json")
    assert (ended.code, ended.err) == (0, "")
    report = json.loads(ended.out)
    assert report["path"] == str(directory)
    assert report["quota_bytes"] == 1 << 30
    assert report["objects"] == 7
    assert report["segments"] == 1
    assert 0 < report["allocated_bytes"] < 1 << 30
    found = {each["id"]: each for each in report["namespaces"]}
    red = found[RED.id.hex()]
    assert red["fields"] == {
        "engine": "test",
        "model_0": bytes(range(32)).hex(),
        "tag": "[red]",
        "flash": True,
    }
    assert red["parts"] == {"kv": 3, "window": 3}
    assert red["tails"] == 0
    assert (red["blocks"], red["objects"], red["raw_bytes"]) == (3, 6, 6000)
    assert 0 <= red["last_used_age_s"] <= red["created_age_s"] < 60
    assert found[BLUE.id.hex()]["blocks"] == 1


def test_people_get_tables(cli: Any, filled: BlockStore, directory: Path) -> None:
    for words in ([str(directory)], ["--cache-disk", str(directory)]):
        ended = cli("ls", *words)
        assert ended.code == 0
        assert f"{directory}: " in ended.out
        assert " of 1.0 GiB" in ended.out
        (row,) = [line for line in ended.out.splitlines() if line.startswith(f"{RED.id.hex()} ")]
        cells = r"\s+3\s+0\s+5\.9 KiB\s+5\.9 KiB\s+0%\s+kv:3 window:3\s+\d+ s ago\s+\d+ s ago"
        assert re.fullmatch(RED.id.hex() + cells, row)
        assert (
            f"{RED.id.hex()}: engine=test flash=True model_0=000102030405… tag=[red]" in ended.out
        )
        assert f"{BLUE.id.hex()}: engine=test tag=blue" in ended.out


def test_looking_changes_nothing(cli: Any, directory: Path) -> None:
    with BlockStore.open(StoreConfig(directory, quota_bytes=1 << 30)) as store:
        put(store, BLUE, 2, (Part.KV,))
    before = snapshot(directory)
    assert cli("ls", str(directory)).code == 0
    assert snapshot(directory) == before


def test_what_compression_saves(cli: Any, directory: Path) -> None:
    with BlockStore.open(StoreConfig(directory, quota_bytes=1 << 30, codec="zstd")) as store:
        put(store, RED, 2, (Part.KV,), size=100_000)
        put(store, BLUE, 2, (Part.KV,), size=100_000, noise=True)
    found = {
        each["id"]: each
        for each in json.loads(cli("ls", str(directory), "--json").out)["namespaces"]
    }
    assert found[RED.id.hex()]["saved_ratio"] > 0.9
    assert found[BLUE.id.hex()]["saved_ratio"] == 0.0
    out = cli("ls", str(directory)).out
    (row,) = [line for line in out.splitlines() if line.startswith(f"{RED.id.hex()} ")]
    assert re.search(r"195\.3 KiB\s+(9\d|100)%", row)


def test_hidden_namespaces_are_marked(cli: Any, filled: BlockStore, directory: Path) -> None:
    filled.invalidate(RED.id, "[bad] build")
    out = cli("ls", str(directory)).out
    assert re.search(rf"^{RED.id.hex()}: HIDDEN \d+ s ago: \[bad\] build$", out, re.M)
    assert out.count("HIDDEN") == 1
    namespaces = json.loads(cli("ls", str(directory), "--json").out)["namespaces"]
    assert {each["id"]: (each["hidden"], each["reason"]) for each in namespaces} == {
        RED.id.hex(): (True, "[bad] build"),
        BLUE.id.hex(): (False, ""),
    }


def test_an_empty_store_says_so(cli: Any, store: BlockStore, directory: Path) -> None:
    assert "nothing was stored yet" in cli("ls", str(directory)).out
    assert json.loads(cli("ls", str(directory), "--json").out)["namespaces"] == []


@pytest.mark.parametrize("kind", ["missing", "empty", "a file", "somebody else's files"])
def test_what_is_no_store_is_one_line_and_stays_as_it_is(
    cli: Any, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "cache"
    if kind == "a file":
        path.write_text("mine")
    elif kind != "missing":
        path.mkdir()
    if kind == "somebody else's files":
        (path / "letter.txt").write_text("mine")
    before = snapshot(tmp_path)
    ended = cli("ls", str(path))
    assert ended.code == 1
    assert ended.err.startswith("spillcache: error: ")
    assert ended.err.count("\n") == 1
    assert str(path) in ended.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s ago"),
        (59, "59 s ago"),
        (90, "2 min ago"),
        (7200, "2 h ago"),
        (3 * 86400, "3 d ago"),
    ],
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert _age(seconds) == text


def test_a_recent_store_is_not_from_the_future(
    cli: Any, filled: BlockStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = time.time() - 1000
    monkeypatch.setattr("spillcache.cli.ls_command.time.time", lambda: long_ago)
    report = json.loads(cli("ls", str(directory), "--json").out)
    assert {each["created_age_s"] for each in report["namespaces"]} == {0.0}


@pytest.mark.parametrize("name", ["[red]x", "[/x]", ":smile:", "new\nline", "\udcff\udcfe"])
def test_a_directory_of_any_name(cli: Any, tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    with BlockStore.open(StoreConfig(directory)) as store:
        put(store, RED, 3)
    for command in ("ls", "status", "gc", "verify", "repair"):
        ended = cli(command, str(directory))
        assert ended.code == 0
        shown = str(directory).encode(errors="backslashreplace").decode()
        assert shown in ended.out
        assert directory == Path(json.loads(cli(command, str(directory), "--json").out)["path"])

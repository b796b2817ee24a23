import json
from pathlib import Path
from typing import Any

import pytest
from care_tools import RED, blocks_of, config, hashes, put

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.repair import RepairReport
from spillcache.store.scrub import VerifyReport


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        put(store, RED, 5, (Part.KV, Part.WINDOW), size=10_000)
    return path


def damage(directory: Path) -> None:
    """One byte of the first object's payload."""
    with BlockStore.open(config(directory)) as store:
        found = store.find(RED.id, [_first()], [Part.KV])
        entry = found[0][Part.KV]
    with open(directory / "segments" / f"{entry.segment:010}.seg", "r+b") as file:
        file.seek(entry.offset + 5000)
        file.write(b"X")


def _first() -> BlockHash:
    return hashes(RED, 1)[0]


def test_all_is_well(cli: Any, directory: Path) -> None:
    ended = cli("verify", str(directory))
    assert ended.code == 0
    assert "10 objects read, " in ended.out
    assert ended.out.endswith("all is as it was written\n")
    report = json.loads(cli("verify", str(directory), "--json").out)
    assert report["ok"]
    assert (report["objects"], report["damaged"], report["quarantined"]) == (10, 0, [])


def test_damage_is_told_then_fixed_then_listed(cli: Any, directory: Path) -> None:
    damage(directory)
    ended = cli("verify", str(directory))
    assert ended.code == 1
    assert f"kv of block {_first().hex()[:16]} in namespace {RED.id.hex()}" in ended.out
    assert "1 damaged, 0 gone, 0 unreadable" in ended.out
    assert f"run: spillcache verify {directory} --fix" in ended.out
    report = json.loads(cli("verify", str(directory), "--json").out)
    assert (report["ok"], report["damaged"], report["fixed"]) == (False, 1, 0)
    assert report["findings"][0]["namespace_id"] == RED.id.hex()
    ended = cli("verify", str(directory), "--fix")
    assert ended.code == 0
    assert "1 put right" in ended.out
    assert "in quarantine, 1 records:" in ended.out
    report = json.loads(cli("verify", str(directory), "--json").out)
    assert report["ok"]
    assert len(report["quarantined"]) == 1
    with BlockStore.open(config(directory)) as store:
        assert blocks_of(store, RED) == 4


def test_repair_of_a_sound_index(cli: Any, directory: Path) -> None:
    ended = cli("repair", str(directory))
    assert ended.code == 0
    assert "the index is sound: 10 objects in 1 segment, 0 of them were not in it" in ended.out


def test_repair_of_a_damaged_index(cli: Any, directory: Path) -> None:
    data = directory / "index" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    assert cli("ls", str(directory)).code == 1
    ended = cli("repair", str(directory))
    assert ended.code == 0
    assert "was made anew: 10 objects in 1 segment (" in ended.out
    assert "spillcache gc deletes it" in ended.out
    assert cli("verify", str(directory)).code == 0
    assert cli("gc", str(directory)).code == 0
    assert not (directory / "index.damaged").exists()


def test_repair_anew(cli: Any, directory: Path) -> None:
    report = json.loads(cli("repair", str(directory), "--anew", "--json").out)
    assert (report["rebuilt"], report["objects"], report["named"]) == (True, 10, 10)
    with BlockStore.open(config(directory)) as store:
        ended = cli("repair", str(directory))
        assert ended.code == 0
        assert blocks_of(store, RED) == 5


def test_what_can_not_be_read_is_said(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = RepairReport(unreadable=["segment 7: Input/output error"], freed_bytes=4096)
    monkeypatch.setattr(BlockStore, "repair", lambda *_, **__: found)
    ended = cli("repair", str(directory))
    assert ended.code == 1
    assert "segment 7" in ended.out
    assert "freed: 4.0 KiB" in ended.out


def test_contradictions_in_the_index_ask_for_a_repair(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = VerifyReport(objects=3, index=["a row names nothing"], segments=["1: header"], left=2)
    monkeypatch.setattr(BlockStore, "verify", lambda *_: found)
    ended = cli("verify", str(directory), "--fix")
    assert ended.code == 1
    assert "  a row names nothing\n  1: header\n" in ended.out
    assert f"run: spillcache repair {directory}" in ended.out


def test_what_could_not_be_put_right_is_told(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = VerifyReport(objects=3, damaged=1, fixed=1, segments=["2: unreadable"], left=1)
    monkeypatch.setattr(BlockStore, "verify", lambda *_: found)
    ended = cli("verify", str(directory), "--fix")
    assert ended.code == 1
    assert ended.out.endswith("1 put right: what they held is computed again; 1 still wrong\n")
    report = json.loads(cli("verify", str(directory), "--fix", "--json").out)
    assert (report["ok"], report["left"]) == (False, 1)


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_without_a_store(cli: Any, tmp_path: Path, command: str) -> None:
    ended = cli(command, str(tmp_path))
    assert ended.code == 1
    assert "holds no spillcache store" in ended.err
    assert list(tmp_path.iterdir()) == []

import json
import re
from pathlib import Path
from typing import Any

import pytest
from care_tools import BLUE, RED, blocks_of, config, put

from spillcache.config import MIB
from spillcache.store.block_store import BlockStore
from spillcache.store.view import directory_bytes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        put(store, RED, 10, size=400_000)
        put(store, BLUE, 10, size=400_000)
    return path


def test_a_dry_run_changes_nothing_and_is_true(cli: Any, directory: Path) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in directory.rglob("*") if p.suffix == ".seg")
    plan = json.loads(cli("gc", str(directory), "--dry-run", "--to", "6MiB", "--json").out)
    assert plan["dry_run"]
    assert plan["reached"]
    assert plan["left_bytes"] <= plan["target_bytes"] == 6 * MIB
    assert plan["namespaces"][RED.id.hex()]["objects"] == 8
    after = sorted((p, p.stat().st_mtime_ns) for p in directory.rglob("*") if p.suffix == ".seg")
    assert before == after
    done = json.loads(cli("gc", str(directory), "--to", "6MiB", "--json").out)
    assert (done["objects"], done["freed_bytes"]) == (plan["objects"], plan["freed_bytes"])
    assert not done["dry_run"]
    assert directory_bytes(directory) <= 6 * MIB
    with BlockStore.open(config(directory)) as store:
        assert (blocks_of(store, RED), blocks_of(store, BLUE)) == (2, 10)


def test_people_get_sentences(cli: Any, directory: Path) -> None:
    out = cli("gc", str(directory), "--dry-run", "--to", "4MiB").out
    assert re.search(r": \d+ objects would go \(\d\.\d MiB\), and 0 B that nothing names\n", out)
    assert re.search(rf"  {RED.id.hex()}: 10 objects, 3.8 MiB\n", out)
    assert re.search(r"\d\.\d MiB before, \d\.\d MiB after\n$", out)
    out = cli("gc", str(directory), "--to", "0").out
    assert "20 objects went" in out
    assert "no more can go" in out
    out = cli("gc", str(directory)).out
    assert "0 objects went (0 B)" in out


def test_by_age(cli: Any, directory: Path) -> None:
    assert "0 objects went" in cli("gc", str(directory), "--max-age", "1h").out
    plan = cli("gc", str(directory), "--max-age", "0.001s", "-n").out
    assert "20 objects would go (7.7 MiB, 20 of them for their age)" in plan
    assert "20 of them for their age" in cli("gc", str(directory), "--max-age", "0.001s").out


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--to", "small"], "--to"), (["--max-age", "old"], "--max-age"), (["--max-age", "0"], "--")],
)
def test_what_can_not_be_meant(cli: Any, directory: Path, words: list[str], named: str) -> None:
    ended = cli("gc", str(directory), *words)
    assert ended.code == 2
    assert named in ended.err


def test_an_age_beyond_all_numbers_is_none(cli: Any, directory: Path) -> None:
    ended = cli("gc", str(directory), "--dry-run", "--max-age", "9" * 400)
    assert ended.code == 2
    assert "is not an age" in ended.err
    assert cli("gc", str(directory), "--dry-run", "--max-age", "999999999w").code == 0


def test_more_is_never_freed_than_there_is(cli: Any, directory: Path) -> None:
    for each in (directory / "segments").iterdir():
        each.unlink()
    ended = cli("gc", str(directory), "--dry-run", "--to", "1")
    assert " 0 B after" in ended.out

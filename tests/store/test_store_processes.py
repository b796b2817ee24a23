"""Processes that are killed, and processes that share a directory. Real processes, real kills."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_child import BLOCKS, SIZE
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects, segment_files

from spillcache.config import MIB
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.view import directory_bytes

PARTS = (Part.KV, Part.WINDOW)


def start(mode: str, path: Path, seed: int, count: int) -> subprocess.Popen:
    script = Path(__file__).with_name("store_child.py")
    command = [sys.executable, str(script), mode, str(path), str(seed), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_until(child: subprocess.Popen, word: str) -> list[str]:
    lines = []
    while line := child.stdout.readline():
        lines.append(line.strip())
        if lines[-1] == word:
            return lines
    raise AssertionError(f"the child ended after {lines}")


def kill(child: subprocess.Popen) -> list[str]:
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split()
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    return rest


def check_figures(store: BlockStore) -> None:
    """The index's figures are those of the files."""
    with store._opened.index.read() as catalog:
        rows = dict(catalog.segments())
        files = {int(p.stem): p.stat().st_blocks * 512 for p in segment_files(store.path)}
        assert {s: row.allocated for s, row in rows.items()} == files
        assert catalog.meta.allocated == sum(files.values())
        assert catalog.meta.reserved == 0
        assert catalog.freeing() == []
        for segment, row in rows.items():
            found = catalog.entries_in(segment)
            assert row.live_objects == len(found)
            assert row.live_bytes == sum(e.record_bytes for e in found)


@pytest.mark.parametrize("delay_ms", [0, 3, 11, 40])
def test_what_was_acknowledged_survives_kill_9(tmp_path, delay_ms):
    child = start("put", tmp_path, 100, 100_000)
    said = lines_until(child, "103")
    time.sleep(delay_ms / 1000 * random.Random(delay_ms).uniform(0.5, 1.5))
    said += kill(child)
    seeds = [int(line) for line in said if line.isdecimal()]
    with BlockStore.open(config(tmp_path)) as store:
        # The oldest may have been evicted for room; the last ones must be there.
        for seed in seeds[-4:]:
            check_all(store, objects(seed, BLOCKS, SIZE, PARTS))
        # One that was not acknowledged may be there: then it is whole.
        for entry in entries(store, objects(seeds[-1] + 1, BLOCKS, SIZE, PARTS)):
            for payload in store.read([entry]):
                payload.release()
        check_figures(store)
        store.put(NAMESPACE, objects(1, BLOCKS, SIZE, PARTS))
        check_all(store, objects(1, BLOCKS, SIZE, PARTS))
        check_figures_of_open(store)


def check_figures_of_open(store: BlockStore) -> None:
    assert store.usage().allocated_bytes <= 64 * MIB


def test_bytes_that_were_never_committed_are_freed(tmp_path):
    child = start("dirty", tmp_path, 5, 40)
    lines_until(child, "appended")
    (segment,) = segment_files(tmp_path)
    assert segment.stat().st_size > 40 * SIZE
    kill(child)
    with BlockStore.open(config(tmp_path)) as store:
        assert segment.stat().st_size < 14 * (SIZE + 8192)
        check_figures(store)
        check_all(store, objects(5, BLOCKS, SIZE, PARTS))
        assert entries(store, objects(6, 40, 0)) == []


def test_a_file_that_its_maker_never_told_of_is_removed(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 3, MIB))  # more than half of a segment: it stays sealed
    for name, size in (("0000000077.seg", 0), ("0000000078.seg", 4096)):
        (tmp_path / "segments" / name).write_bytes(bytes(size))
    (tmp_path / "segments" / "notes.txt").write_text("not a segment")
    with BlockStore.open(config(tmp_path)) as store:
        assert [p.name for p in segment_files(tmp_path)] == ["0000000001.seg", "notes.txt"]
        store.put(NAMESPACE, objects(2, 2))
        # Ids are never reused, not even those.
        assert [p.name for p in segment_files(tmp_path)][1] == "0000000079.seg"
        check_all(store, objects(1, 3, MIB) + objects(2, 2))


def test_a_living_writer_is_left_alone(tmp_path):
    child = start("hold", tmp_path, 5, 2)
    lines_until(child, "6")
    try:
        with BlockStore.open(config(tmp_path)) as store:
            check_all(store, objects(5, BLOCKS, SIZE, PARTS))
            with store._opened.index.read() as catalog:
                assert [(row.state, row.owner_pid) for _, row in catalog.segments()] == [
                    (1, child.pid)
                ]
            store.put(NAMESPACE, objects(1, 5))
            assert len(segment_files(tmp_path)) == 2
    finally:
        kill(child)
    with BlockStore.open(config(tmp_path)) as store:
        check_figures(store)
        check_all(store, objects(5, BLOCKS, SIZE, PARTS) + objects(1, 5))


def test_inspect_beside_a_writer_in_another_process(tmp_path):
    child = start("hold", tmp_path, 5, 3)
    lines_until(child, "7")
    before = sorted((p, p.stat().st_size) for p in tmp_path.rglob("*") if p.name != "lock.mdb")
    try:
        for _ in range(3):
            view = BlockStore.inspect(tmp_path)
            (info,) = view.namespaces()
            assert info.namespace == NAMESPACE
            assert info.blocks == 3 * BLOCKS
            assert info.parts == {Part.KV: 3 * BLOCKS, Part.WINDOW: 3 * BLOCKS}
            assert view.usage().objects == 6 * BLOCKS
            assert view.usage().quota_bytes == 64 * MIB
            assert view.usage().allocated_bytes >= 6 * BLOCKS * SIZE
        after = sorted((p, p.stat().st_size) for p in tmp_path.rglob("*") if p.name != "lock.mdb")
        assert after == before
    finally:
        kill(child)


def test_two_processes_under_one_quota(tmp_path):
    """Each writes more than the quota; together they never take more, nor read a wrong byte."""
    children = [start("churn", tmp_path, seed, 110) for seed in (1001, 2002)]
    most = 0
    while any(child.poll() is None for child in children):
        most = max(most, directory_bytes(tmp_path) if tmp_path.exists() else 0)
        time.sleep(0.02)
    for child in children:
        assert child.stdout.read().startswith("done")
        child.stdout.close()
        assert child.returncode == 0
    assert 40 * MIB < most <= 64 * MIB
    with BlockStore.open(config(tmp_path)) as store:
        check_figures(store)
        assert {info.namespace for info in store.namespaces()} == {NAMESPACE, OTHER}
        check_all(store, objects(1001 + 109, BLOCKS, SIZE, PARTS))


def test_a_dead_process_gives_its_readers_back(tmp_path):
    """LMDB keeps pages that a reader might see; a killed one must not count for ever."""
    child = start("hold", tmp_path, 5, 1)
    lines_until(child, "5")
    os.kill(child.pid, signal.SIGSTOP)
    kill(child)
    with BlockStore.open(config(tmp_path)) as store:
        for seed in range(3):
            store.put(NAMESPACE, objects(seed, 5))
        assert store._opened.index._env.reader_check() == 0


def test_a_reader_that_is_killed_beside_a_writer_is_forgotten(tmp_path, monkeypatch):
    """Not only at the next open: servers run for months, and ``ls`` may be killed."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom spillcache.store.index import Index\n"
        "with Index(Path(sys.argv[1]), read_only=True).read() as catalog:\n"
        "    print(catalog.meta.clock, flush=True)\n    time.sleep(600)\n"
    )
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
        command = [sys.executable, "-c", script, str(tmp_path / "index")]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert reader.stdout.readline()
        kill(reader)
        index = store._opened.index
        used = index._env.info()["num_readers"]
        assert str(reader.pid) in index._env.readers()
        store.set_note("x", b"1")
        assert str(reader.pid) in index._env.readers(), "not at every write"
        index._clear_at = 0.0
        store.set_note("x", b"2")
        assert str(reader.pid) not in index._env.readers()
        assert index._env.info()["num_readers"] <= used

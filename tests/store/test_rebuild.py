"""A store whose index is lost, damaged, or was left by a process that died."""

import errno
import os
import random
import shutil
import signal
from dataclasses import replace

import lmdb
import pytest
from store_tools import (
    NAMESPACE,
    OTHER,
    check_all,
    config,
    entries,
    flip,
    objects,
    overwrite,
    segment_files,
)
from test_store_processes import BLOCKS, SIZE, check_figures, kill, lines_until, start

from spillcache.config import MIB
from spillcache.errors import StoreIndexError, StoreIOError
from spillcache.state import Part
from spillcache.store import index_sum, probe
from spillcache.store.block_store import BlockStore
from spillcache.store.format import RecordClass, RecordHeader, SegmentHeader
from spillcache.store.index import Index
from spillcache.store.index_sum import INDEX_SUM, Verdict
from spillcache.store.probe import Health
from spillcache.store.rows import object_key, pack_entry

ALL = tuple(Part)


@pytest.fixture
def filled(tmp_path):
    """A closed store of two namespaces over several segments, and what is in it."""
    path = tmp_path / "cache"
    ours = [o for seed in range(4) for o in objects(seed, 10, 90_000, ALL)]
    theirs = objects(9, 5, 10_000, namespace=OTHER)
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, ours)
        store.put(OTHER, theirs)
    assert len(segment_files(path)) >= 3
    return path, ours, theirs


def check_filled(path, ours, theirs):
    with BlockStore.open(config(path)) as store:
        check_all(store, ours)
        assert len(entries(store, theirs, OTHER)) == len(theirs)
        infos = {info.namespace: info for info in store.namespaces()}
        assert infos[NAMESPACE].parts == dict.fromkeys(ALL, 40)
        assert infos[OTHER].blocks == 5
        check_figures(store)


def test_a_lost_index_is_rebuilt(filled, caplog):
    path, ours, theirs = filled
    shutil.rmtree(path / "index")
    check_filled(path, ours, theirs)
    assert "index rebuilt" in caplog.text
    # And it is an index like any other: eviction works on it, children before parents.
    with BlockStore.open(config(path)) as store:
        for seed in range(20, 60):
            store.put(NAMESPACE, objects(seed, 10, 190_000))
        assert store.usage().allocated_bytes <= 64 * MIB
        check_all(store, objects(59, 10, 190_000))


def test_damaged_segments_give_what_is_whole(filled):
    path, ours, _ = filled
    with BlockStore.open(config(path)) as store:
        (third,) = entries(store, [ours[6]])
        (last,) = entries(store, [ours[-1]])
    shutil.rmtree(path / "index")
    first = segment_files(path)[0]
    flip(first, third.offset + 30)  # the KV of block 2 of the first chain
    (path / "segments" / "0000000090.seg").write_bytes(b"x" * 10_000)
    foreign = SegmentHeader(91, bytes(16), 0).encode()
    (path / "segments" / "0000000091.seg").write_bytes(foreign + b"x" * 10_000)
    with BlockStore.open(config(path)) as store:
        there = {(e.block, e.part) for e in entries(store, ours)}
        # What followed it can't be reached; windows and boundaries stay.
        assert [(o.block, o.part) in there for o in ours[:30] if o.part is Part.KV] == [
            *[True] * 2,
            *[False] * 8,
        ]
        check_all(store, ours[30:])
        assert last.segment != third.segment
    # Somebody else's files are as they were.
    assert (path / "segments" / "0000000090.seg").read_bytes() == b"x" * 10_000
    assert (path / "segments" / "0000000091.seg").read_bytes() == foreign + b"x" * 10_000


def test_records_of_a_later_version_are_not_named(tmp_path):
    wanted = objects(1, 8)
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, wanted)
        found = entries(store, wanted)
    (segment,) = segment_files(tmp_path)
    for entry, changes in (
        (found[5], {"record_class": max(RecordClass) + 1}),
        (found[6], {"part": 99}),
        (found[7], {"stored_bytes": 1 << 30, "raw_bytes": 1 << 30}),
    ):
        with open(segment, "rb", buffering=0) as file:
            file.seek(entry.offset)
            header = RecordHeader.parse(file.read(192))
        overwrite(segment, entry.offset, replace(header, **changes).encode())
    shutil.rmtree(tmp_path / "index")
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, wanted[:5])
        assert entries(store, wanted[5:]) == []


def test_a_segment_without_its_namespace_names_nothing(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 8))
    (segment,) = segment_files(tmp_path)
    flip(segment, 4096 + 200)
    shutil.rmtree(tmp_path / "index")
    with BlockStore.open(config(tmp_path)) as store:
        assert store.usage().objects == 0
        assert segment_files(tmp_path) == []


@pytest.mark.parametrize("how", ["header", "truncated", "zeros", "noise"])
def test_a_damaged_index_is_set_aside_and_rebuilt(filled, how):
    path, ours, theirs = filled
    data = path / "index" / "data.mdb"
    size = data.stat().st_size
    with open(data, "r+b") as file:
        if how == "header":
            file.write(bytes(8192))
        elif how == "truncated":
            file.truncate(size // 2 // 4096 * 4096)
        elif how == "zeros":
            file.seek(8192)
            file.write(bytes(size - 8192))
        else:
            file.seek(8192)
            file.write(random.Random(1).randbytes(size - 8192))
    (path / "index.damaged").mkdir()
    (path / "index.damaged" / "data.mdb").write_text("an older one")
    check_filled(path, ours, theirs)
    assert (path / "index.damaged" / "data.mdb").stat().st_size != len("an older one")


def test_a_damaged_index_that_others_use_is_left_alone(tmp_path, monkeypatch):
    child = start("hold", tmp_path, 5, 1)
    lines_until(child, "5")
    damaged = lmdb.CorruptedError("pages")

    def fail(self, path, **_):
        raise StoreIndexError("damaged") from damaged

    try:
        monkeypatch.setattr(Index, "__init__", fail)
        with pytest.raises(StoreIndexError):
            BlockStore.open(config(tmp_path))
        monkeypatch.undo()
        assert not (tmp_path / "index.damaged").exists()
        # Segments that this index does not know are not touched either while others are there.
        with BlockStore.open(config(tmp_path)) as store:
            check_all(store, objects(5, BLOCKS, SIZE, (Part.KV, Part.WINDOW)))
    finally:
        kill(child)


def test_an_index_that_can_not_be_opened_for_want_of_something_else_is_not_set_aside(
    filled, monkeypatch
):
    path, ours, theirs = filled

    def fail(*_, **__):
        raise lmdb.Error("Too many open files")

    monkeypatch.setattr(lmdb, "open", fail)
    with pytest.raises(StoreIndexError, match="Too many"):
        BlockStore.open(config(path))
    monkeypatch.undo()
    assert not (path / "index.damaged").exists()
    check_filled(path, ours, theirs)


def test_the_sum_is_there_when_the_last_one_has_closed_it(tmp_path):
    with BlockStore.open(config(tmp_path)):
        assert not (tmp_path / INDEX_SUM).exists()
    assert (tmp_path / INDEX_SUM).exists()
    child = start("hold", tmp_path, 5, 1)
    lines_until(child, "5")
    with BlockStore.open(config(tmp_path)):
        pass
    assert not (tmp_path / INDEX_SUM).exists(), "another process still has it open"
    kill(child)
    assert not (tmp_path / INDEX_SUM).exists()
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, objects(5, BLOCKS, SIZE, (Part.KV, Part.WINDOW)))
    assert (tmp_path / INDEX_SUM).exists()


def test_a_sound_index_is_found_sound(filled, tmp_path):
    path, _, _ = filled
    assert probe.health(path / "index") is Health.SOUND
    assert probe.walk(path / "index", 10.0) is Health.SOUND
    assert probe.walk(path / "index", 0.0) is Health.SOUND
    assert probe.health(tmp_path / "missing") is Health.SOUND
    assert probe.main([str(path / "index")]) == 0


DATABASES = ["places", "evictable", "meta", "namespaces", "objects", "usage", "segments"]


@pytest.mark.parametrize("database", DATABASES)
def test_rows_that_contradict_each_other_are_found(filled, database):
    path, _, _ = filled
    index = Index(path / "index")

    def spoil(catalog):
        with catalog._txn.cursor(db=catalog._db[database]) as cursor:
            assert cursor.first()
            key, value = cursor.item()
        if database == "evictable":
            key = key[:1] + bytes(8) + key[9:]
        elif database == "places":
            key = key[:-1] + b"\x01"
        elif database in ("meta", "namespaces"):
            value = value[:-3]
        else:
            at = 32 if database == "segments" else 16
            value = value[:at] + bytes((value[at] ^ 8,)) + value[at + 1 :]
        catalog._put(database, key, value)

    index.write(spoil)
    index.close()
    assert probe.walk(path / "index", 10.0) is Health.DAMAGED
    assert probe.health(path / "index") is Health.DAMAGED


@pytest.mark.parametrize("field", ["children", "parent", "last_use", "offset", "raw_bytes"])
def test_every_field_of_an_object_that_could_mislead_is_audited(filled, field):
    path, ours, _ = filled
    index = Index(path / "index")
    chosen = next(o for o in ours if o.part is Part.KV and o.block_index == 9)

    def spoil(catalog):
        entry = catalog.entry(NAMESPACE.id, chosen.block, Part.KV)
        value = bytes(32) if field == "parent" else getattr(entry, field) + 4096
        changed = entry._replace(**{field: value})
        catalog._put("objects", object_key(*entry[:3]), pack_entry(changed))

    index.write(spoil)
    index.close()
    assert probe.walk(path / "index", 10.0) is Health.DAMAGED


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (-signal.SIGBUS, Health.DAMAGED),
        (-signal.SIGSEGV, Health.DAMAGED),
        (-signal.SIGABRT, Health.DAMAGED),
        (-signal.SIGKILL, Health.UNKNOWN),
        (-signal.SIGTERM, Health.UNKNOWN),
        (4, Health.DAMAGED),
        (1, Health.UNKNOWN),
        (2, Health.UNKNOWN),
        (0, Health.SOUND),
    ],
)
def test_what_a_probe_that_ends_says(tmp_path, monkeypatch, code, found):
    (tmp_path / "data.mdb").write_bytes(b"x")

    class Done:
        returncode = code

    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: Done)
    assert probe.health(tmp_path) is found


def test_a_probe_that_hangs_or_can_not_start_says_nothing(tmp_path, monkeypatch):
    (tmp_path / "data.mdb").write_bytes(b"x")

    def hang(*_, **__):
        raise probe.subprocess.TimeoutExpired("probe", 1)

    monkeypatch.setattr(probe.subprocess, "run", hang)
    assert probe.health(tmp_path) is Health.UNKNOWN
    monkeypatch.setattr(probe.sys, "executable", "")
    assert probe.health(tmp_path) is Health.UNKNOWN


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_an_index_that_can_not_be_read_is_not_taken_for_damaged(filled, monkeypatch, code):
    path, ours, theirs = filled

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pread", fail)
    assert probe.walk(path / "index", 10.0) is Health.UNKNOWN
    monkeypatch.undo()
    monkeypatch.setattr(index_sum, "_digest", fail)
    with pytest.raises(StoreIOError):
        BlockStore.open(config(path))
    monkeypatch.undo()
    assert not (path / "index.damaged").exists()
    check_filled(path, ours, theirs)


# The sum that is written at a clean end.


def test_a_changed_index_is_noticed_without_a_bad_end(filled):
    path, ours, theirs = filled
    assert index_sum.check_sum(path) is Verdict.SAME
    flip(path / "index" / "data.mdb", 3)
    assert index_sum.check_sum(path) is Verdict.DIFFERENT
    check_filled(path, ours, theirs)
    assert (path / "index.damaged").exists()
    assert index_sum.check_sum(path) is Verdict.SAME


def test_the_sum_is_gone_while_the_index_may_change(filled, monkeypatch):
    path, ours, theirs = filled
    with BlockStore.open(config(path)):
        assert index_sum.check_sum(path) is Verdict.UNKNOWN
        assert not (path / index_sum.INDEX_SUM).exists()
    assert (path / index_sum.INDEX_SUM).exists()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with BlockStore.open(config(path)) as store:
        store.set_note("a", b"b")
        monkeypatch.setattr(index_sum, "_digest", full)
    monkeypatch.undo()
    assert index_sum.check_sum(path) is Verdict.UNKNOWN
    check_filled(path, ours, theirs)


def test_a_sum_that_is_cut_short_says_nothing(filled):
    path, ours, theirs = filled
    (path / index_sum.INDEX_SUM).write_text("")
    assert index_sum.check_sum(path) is Verdict.UNKNOWN
    check_filled(path, ours, theirs)
    assert not (path / "index.damaged").exists()
    (path / "index" / "data.mdb").unlink()
    assert index_sum.check_sum(path) is Verdict.UNKNOWN

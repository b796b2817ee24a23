"""Verification of a whole store, and repair of its index."""

import errno
import os
import shutil
import time
from dataclasses import replace

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
    read_all,
    segment_files,
)
from test_store_processes import check_figures, kill, lines_until, start

from spillcache.errors import CorruptBlock, StoreFormatError, StoreIndexError, StoreIOError
from spillcache.state import Part
from spillcache.store import scrub
from spillcache.store.block_store import BlockStore
from spillcache.store.files import Files
from spillcache.store.format import RecordHeader
from spillcache.store.index import Index
from spillcache.store.rows import object_key, pack_entry, place_key

ALL = tuple(Part)


@pytest.fixture
def wanted():
    return [o for seed in range(3) for o in objects(seed, 10, 60_000, ALL)]


@pytest.fixture
def filled(store, wanted):
    store.put(NAMESPACE, wanted)
    store.put(OTHER, objects(9, 5, 10_000, namespace=OTHER))
    return store


def segment_of(store, entry):
    return store._opened.segments.path(entry.segment)


def test_a_sound_store_is_found_sound(filled, wanted):
    told = []
    report = filled.verify(progress=lambda done, total: told.append((done, total)))
    assert report.is_sound
    assert report.objects == len(wanted) + 5
    assert told[-1][0] == told[-1][1] == report.read_bytes
    assert report.read_bytes > len(wanted) * 60_000
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert report.quarantined == []
    assert not report.stopped
    assert report.seconds > 0


def test_an_empty_store_is_sound(store):
    report = store.verify(fix=True)
    assert (report.is_sound, report.objects, report.fixed) == (True, 0, 0)


def test_looking_changes_nothing_and_fixing_quarantines(filled, wanted):
    found = entries(filled, wanted)
    for entry in found[4:7]:
        flip(segment_of(filled, entry), entry.offset + 5000)
    for _ in range(2):
        report = filled.verify()
        assert not report.is_sound
        assert (report.damaged, report.fixed, report.quarantined) == (3, 0, [])
        assert {f.block for f in report.findings} == {e.block.hex() for e in found[4:7]}
        assert {f.reason for f in report.findings} == {"the payload's digest is wrong"}
        assert entries(filled, wanted) == found
    began = time.time()
    report = filled.verify(fix=True)
    assert (report.damaged, report.fixed) == (3, 3)
    kept = report.quarantined
    assert {(q.block, q.part) for q in kept} == {
        (e.block.hex()[:16], e.part.name.lower()) for e in found[4:7]
    }
    assert {q.reason for q in kept} == {"the payload s digest is wrong"}
    assert all(began - 5 <= q.time <= time.time() + 5 for q in kept)
    assert all(q.size_bytes >= 60_000 and q.namespace_id == NAMESPACE.id for q in kept)
    report = filled.verify()
    assert report.is_sound
    assert report.quarantined == kept
    left = [e for e in found if e.block not in {x.block for x in found[4:7]}]
    assert len(read_all(filled, left)) == len(left)
    check_figures_but_reservations(filled)


def check_figures_but_reservations(store):
    path = store.path
    store.close()
    with BlockStore.open(config(path)) as again:
        check_figures(again)


def test_small_batches_see_everything(filled, wanted, monkeypatch):
    monkeypatch.setattr(scrub, "_BATCH_OBJECTS", 7)
    monkeypatch.setattr(scrub, "MOST_LISTED", 2)
    found = entries(filled, wanted)
    for entry in found[::10]:
        flip(segment_of(filled, entry), entry.offset + 100)
    report = filled.verify()
    assert report.objects == len(wanted) + 5
    assert report.damaged == len(found[::10])
    assert len(report.findings) == 2


def test_it_can_be_stopped(filled):
    calls = iter(range(1000))
    report = filled.verify(stop=lambda: next(calls) > 20)
    assert report.stopped
    assert 0 < report.objects < 95


class Flaky(Files):
    """Real files, some reads of which fail or lie."""

    def __init__(self):
        super().__init__()
        self.fail_reads = False
        self.lies = 0

    def pread(self, fd, buffer, offset):
        if self.fail_reads:
            raise OSError(errno.EIO, "Input/output error")
        count = super().pread(fd, buffer, offset)
        if self.lies:
            self.lies -= 1
            buffer[count - 4000] ^= 1
        return count


def test_what_can_not_be_read_is_left_alone(tmp_path):
    files, wanted = Flaky(), objects(1, 8, 20_000)
    with BlockStore.open(config(tmp_path), files=files) as store:
        store.put(NAMESPACE, wanted)
        files.fail_reads = True
        report = store.verify(fix=True)
        assert (report.unreadable, report.damaged, report.fixed) == (8, 0, 0)
        assert report.segments == ["segment 1 could not be read: Input/output error"]
        assert report.left == 9
        files.fail_reads = False
        assert store.verify().is_sound
        check_all(store, wanted)


def test_a_read_that_lied_once_condemns_nothing(tmp_path):
    files, wanted = Flaky(), objects(1, 1, 20_000)
    with BlockStore.open(config(tmp_path), files=files) as store:
        store.put(NAMESPACE, wanted)
        files.lies = 1
        assert store.verify(fix=True).is_sound
        assert files.lies == 0
        files.lies = 1
        with pytest.raises(StoreIOError, match="read wrong once"):
            read_all(store, entries(store, wanted))
        check_all(store, wanted)
        files.lies = 2
        with pytest.raises(CorruptBlock):
            read_all(store, entries(store, wanted))


def test_objects_of_a_lost_file(filled, wanted):
    path = segment_of(filled, entries(filled, wanted)[0])
    path.unlink()
    report = filled.verify()
    assert report.missing > 10
    assert report.fixed == 0
    assert report.left == report.missing
    report = filled.verify(fix=True)
    assert report.missing == report.fixed > 10
    assert report.left == 0
    assert filled.verify().is_sound
    check_figures_but_reservations(filled)


def test_a_damaged_header_of_a_segment(filled, wanted):
    path = segment_files(filled.path)[0]
    flip(path, 20)
    report = filled.verify()
    assert report.segments == ["segment 1: its header is damaged"]
    assert report.left == 1
    report = filled.verify(fix=True)
    assert (report.fixed, report.left) == (1, 0)
    assert filled.verify().is_sound
    filled.close()
    shutil.rmtree(filled.path / "index")
    with BlockStore.open(config(filled.path)) as store:
        check_all(store, wanted)


def test_an_index_is_rebuilt_despite_a_damaged_header(filled, wanted):
    filled.close()
    flip(segment_files(filled.path)[0], 20)
    shutil.rmtree(filled.path / "index")
    with BlockStore.open(config(filled.path)) as store:
        check_all(store, wanted)
        assert store.verify(fix=True).fixed == 1


def test_the_fields_of_a_namespace_that_are_lost_are_reported(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 4))
        flip(segment_files(tmp_path)[0], 4096 + 200)
        report = store.verify()
        assert report.segments == [
            f"segment 1 has lost the fields of namespace {NAMESPACE.id.hex()}"
        ]
        assert report.left == store.verify(fix=True).left == 1


def spoil(store, block):
    """Make the row of a block contradict others."""

    def work(catalog):
        entry = catalog.entry(NAMESPACE.id, block, Part.KV)
        wrong = entry._replace(children=entry.children + 3)
        catalog._put("objects", object_key(*entry[:3]), pack_entry(wrong))

    store._opened.index.write(work)


def test_a_contradiction_in_the_index_is_reported_and_repaired(filled, wanted):
    spoil(filled, wanted[0].block)
    assert filled.verify().index == ["the counts of the blocks that follow are wrong"]
    with pytest.raises(StoreIndexError, match="contradicts itself"):
        BlockStore.repair(filled.path)
    filled.close()
    report = BlockStore.repair(filled.path)
    assert report.rebuilt
    assert report.was_alone
    assert (report.objects, report.named) == (95, 95)
    assert report.seconds > 0
    with BlockStore.open(config(filled.path)) as store:
        assert store.verify().is_sound
        check_all(store, wanted)


def forget(store, entry):
    """Make the index lose an object, bytes and all, as if it had never been named."""

    def work(catalog):
        now = catalog.current(entry)
        for place in catalog.remove(now):
            catalog.freed(place)

    store._opened.index.write(work)


def test_a_sound_index_is_completed_beside_its_user(filled, wanted):
    found = entries(filled, wanted)
    lost = [e for e in found if e.block_index == 9]
    for entry in lost:
        if filled._opened.index is not None and entry.part is Part.KV:
            forget(filled, entry)
    assert len(entries(filled, wanted)) == len(found) - len(lost)
    filled.set_note("a", b"kept")
    told = []
    report = BlockStore.repair(filled.path, lambda done, total: told.append((done, total)))
    assert (report.rebuilt, report.was_alone, report.named) == (False, False, len(lost))
    assert told[-1][0] == told[-1][1]
    check_all(filled, wanted)
    assert filled.note("a") == b"kept"
    assert filled.verify().is_sound
    assert BlockStore.repair(filled.path).named == 0


def test_copies_and_orphans_are_freed(filled, wanted):
    found = {(e.block, e.part): e for e in entries(filled, wanted)}
    chain = [o for o in wanted[:30] if o.part is Part.KV]
    # The last three are forgotten, and the first of these is written a second time.
    for item in reversed(chain[7:]):
        forget(filled, found[item.block, Part.KV])
    filled.put(NAMESPACE, [chain[7]])
    # The second of them will never be found again.
    second = found[chain[8].block, Part.KV]
    overwrite(segment_of(filled, second), second.offset, bytes(4096))
    report = BlockStore.repair(filled.path)
    # The first one's old copy, the third's orphan; the other parts of the three are named again.
    assert report.named == 6
    assert report.freed_bytes == 2 * second.record_bytes
    assert filled.verify().is_sound
    again = {(e.block, e.part) for e in entries(filled, wanted)}
    assert (chain[8].block, Part.KV) not in again
    assert len(again) == len(wanted) - 2
    check_figures_but_reservations(filled)


def test_repair_beside_another_process(tmp_path):
    child = start("hold", tmp_path, 5, 2)
    lines_until(child, "6")
    try:
        report = BlockStore.repair(tmp_path)
        assert (report.rebuilt, report.was_alone, report.named) == (False, False, 0)
        with pytest.raises(StoreIndexError, match="stop the servers"):
            BlockStore.repair(tmp_path, anew=True)
    finally:
        kill(child)
    report = BlockStore.repair(tmp_path, anew=True)
    assert report.rebuilt
    assert report.named == report.objects == 24
    with BlockStore.open(config(tmp_path)) as store:
        check_figures(store)
        assert store.verify().is_sound


def test_repair_of_a_damaged_index(filled, wanted):
    filled.close()
    data = filled.path / "index" / "data.mdb"
    overwrite(data, 8192, os.urandom(data.stat().st_size - 8192))
    report = BlockStore.repair(filled.path)
    assert report.rebuilt
    assert (filled.path / "index.damaged" / "data.mdb").exists()
    with BlockStore.open(config(filled.path)) as store:
        check_all(store, wanted)


def test_repair_makes_no_store(tmp_path):
    with pytest.raises(StoreFormatError):
        BlockStore.repair(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_repair_keeps_the_limits_of_an_open_store(filled):
    before = replace(filled._opened.room.limits)
    BlockStore.repair(filled.path)
    assert filled._opened.room.limits == before


def test_a_segment_that_can_not_be_read_is_not_touched_by_repair(tmp_path):
    files, wanted = Flaky(), objects(1, 8, 20_000)
    with BlockStore.open(config(tmp_path), files=files) as store:
        store.put(NAMESPACE, wanted)
        files.fail_reads = True
        report = BlockStore.repair(tmp_path)
        assert report.unreadable == ["segment 1: Input/output error"]
        assert (report.named, report.freed_bytes) == (0, 0)
        files.fail_reads = False
        check_all(store, wanted)


def test_an_interrupted_rebuild_goes_on(tmp_path, monkeypatch):
    """Whatever was named by then, the next open names the rest and loses nothing."""
    wanted = [o for seed in range(4) for o in objects(seed, 10, 90_000, ALL)]
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, wanted)
    shutil.rmtree(tmp_path / "index")
    real, calls = Index.write, []

    def dies(self, work):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(self, work)

    monkeypatch.setattr("spillcache.store.rebuild._ROWS_PER_COMMIT", 10)
    for stop_at in range(1, 18):
        calls.clear()
        monkeypatch.setattr(Index, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            BlockStore.open(config(tmp_path))
        monkeypatch.setattr(Index, "write", real)
        assert sum(p.stat().st_blocks * 512 for p in segment_files(tmp_path)) > 120 * 90_000
        if stop_at % 4 == 0:
            with BlockStore.open(config(tmp_path)) as store:
                check_all(store, wanted)
                assert store.verify().is_sound
                check_figures(store)
            shutil.rmtree(tmp_path / "index")


def test_headers_at_the_ends_of_gaps(filled, wanted):
    """A record that would reach over the next one is none."""
    entry = entries(filled, wanted)[3]
    forget(filled, entry)
    path = segment_of(filled, entry)
    with open(path, "rb", buffering=0) as file:
        file.seek(entry.offset)
        header = RecordHeader.parse(file.read(192))
    longer = replace(header, stored_bytes=header.stored_bytes + 5000, raw_bytes=65_000)
    overwrite(path, entry.offset, longer.encode())
    report = BlockStore.repair(filled.path)
    assert (report.named, report.freed_bytes) == (0, 0)
    with filled._opened.index.read() as catalog:
        assert catalog.value("places", place_key(entry.segment, entry.offset)) is None

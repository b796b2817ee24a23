"""Writes that fail, fill the disk, or fall short; and stores where holes can't be punched."""

import errno
import os
from pathlib import Path

import pytest
from store_tools import NAMESPACE, check_all, config, entries, objects, segment_files

from spillcache.config import MIB
from spillcache.errors import StoreError, StoreFullError, StoreIOError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.files import Files
from spillcache.store.view import directory_bytes


class FaultyFiles(Files):
    """Real files whose writes fail, fall short or hit a full disk when told to."""

    def __init__(self, *, direct: bool = True) -> None:
        super().__init__(direct=direct)
        self.write_errors: list[int] = []
        self.sync_errors: list[int] = []
        self.create_errors: list[int] = []
        self.punch_errors: list[int] = []
        self.most_bytes: int | None = None
        self.no_progress = False
        self.punches = True
        self.room: int | None = None
        self.free: int | None = None

    def _maybe(self, errors: list[int]) -> None:
        if errors:
            code = errors.pop(0)
            raise OSError(code, os.strerror(code))

    def create(self, path):
        self._maybe(self.create_errors)
        return super().create(path)

    def pwrite(self, fd, buffer, offset):
        self._maybe(self.write_errors)
        if self.room is not None and self.used(fd) + len(buffer) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.no_progress:
            return 0
        return super().pwrite(fd, buffer[: self.most_bytes], offset)

    def used(self, fd) -> int:
        folder = Path(f"/proc/self/fd/{fd}").readlink().parent
        return sum(each.stat().st_blocks * 512 for each in folder.iterdir())

    def sync(self, fd):
        self._maybe(self.sync_errors)
        super().sync(fd)

    def punch(self, fd, offset, length):
        self._maybe(self.punch_errors)
        return self.punches and super().punch(fd, offset, length)

    def free_bytes(self, path):
        return super().free_bytes(path) if self.free is None else self.free


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def faulty(tmp_path, files):
    with BlockStore.open(config(tmp_path / "cache"), files=files) as store:
        yield store


@pytest.mark.parametrize("where", ["write_errors", "sync_errors", "create_errors"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_an_io_error_while_writing_loses_nothing(faulty, files, where, code):
    before, failing = objects(1, 5), objects(2, 5)
    if where != "create_errors":
        faulty.put(NAMESPACE, before)
    setattr(files, where, [code])
    with pytest.raises(StoreIOError, match="nothing was deleted"):
        faulty.put(NAMESPACE, failing)
    assert entries(faulty, failing) == []
    faulty.put(NAMESPACE, before)
    faulty.put(NAMESPACE, failing)
    check_all(faulty, before + failing)
    with faulty._opened.index.read() as catalog:
        assert catalog.meta.reserved == 0


def test_bytes_are_on_the_device_before_the_index_names_them(tmp_path, monkeypatch):
    events = []

    class Recording(Files):
        def pwrite(self, fd, buffer, offset):
            events.append("write")
            return super().pwrite(fd, buffer, offset)

        def sync(self, fd):
            events.append("sync")
            super().sync(fd)

        def punch(self, fd, offset, length):
            events.append("punch")
            return super().punch(fd, offset, length)

    with BlockStore.open(config(tmp_path), files=Recording()) as store:
        store.put(NAMESPACE, objects(1, 2))
        index = store._opened.index
        real = index.write

        def write(work):
            result = real(work)
            events.append("commit")
            return result

        monkeypatch.setattr(index, "write", write)
        for seed in range(2, 100):
            events.clear()
            store.put(NAMESPACE, objects(seed, 4, 500_000))
            if "punch" in events:
                break
    # What goes is forgotten before it is freed, and freed before its room is promised to others.
    first = events.index("punch")
    last = len(events) - 1 - events[::-1].index("punch")
    assert events[first - 1] == "commit"
    assert events[last + 1] == "commit"
    # Every write is on the device before the next commit.
    for at in (n for n, each in enumerate(events) if each == "write"):
        assert next(e for e in events[at:] if e in ("sync", "commit")) == "sync"
    assert events[last:].count("write") == 1


def test_short_writes_are_completed(faulty, files):
    files.most_bytes = 4096
    wanted = objects(1, 20, 20_000)
    faulty.put(NAMESPACE, wanted)
    check_all(faulty, wanted)


def test_a_write_that_makes_no_progress_is_an_error(faulty, files):
    files.no_progress = True
    with pytest.raises(StoreIOError):
        faulty.put(NAMESPACE, objects(1, 1))


def test_a_full_filesystem_is_answered_by_eviction(faulty, files):
    files.room = 12 * MIB
    for seed in range(30):
        wanted = objects(seed, 10, 100_000)
        assert faulty.put(NAMESPACE, wanted).written == 10
        check_all(faulty, wanted)
    assert entries(faulty, objects(0, 10)) == []
    assert sum(p.stat().st_blocks * 512 for p in segment_files(faulty.path)) <= 12 * MIB


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_filesystem_that_stays_full_is_said_so(faulty, files, code):
    kept = objects(1, 2)
    faulty.put(NAMESPACE, kept)
    files.write_errors = [code] * 100
    with faulty.pin(entries(faulty, kept)), pytest.raises(StoreFullError):
        faulty.put(NAMESPACE, objects(2, 2))
    files.write_errors = []
    check_all(faulty, kept)


def test_free_space_is_left_to_others(tmp_path, files):
    with BlockStore.open(config(tmp_path, min_free_bytes=100 * MIB), files=files) as store:
        store.put(NAMESPACE, objects(1, 3))
        files.free = 99 * MIB
        with pytest.raises(StoreFullError, match="no room"):
            store.put(NAMESPACE, objects(2, 3))
        files.free = 103 * MIB
        result = store.put(NAMESPACE, objects(3, 40, 100_000))
        assert 0 < result.written < 40
        assert result.dropped == 40 - result.written
        check_all(store, objects(3, 40, 100_000)[: result.written])


def test_an_object_larger_than_the_store_is_refused_and_evicts_nothing(faulty):
    kept = objects(1, 10, 100_000)
    faulty.put(NAMESPACE, kept)
    with pytest.raises(StoreFullError):
        faulty.put(NAMESPACE, objects(2, 1, 65 * MIB))
    check_all(faulty, kept)
    # With something that fits before it, that is kept.
    both = objects(3, 1, 1000) + objects(4, 1, 65 * MIB)
    result = faulty.put(NAMESPACE, both)
    assert (result.written, result.dropped) == (1, 1)


def test_what_follows_a_block_without_room_is_dropped_with_it(faulty, files):
    files.free = 0
    with pytest.raises(StoreFullError):
        faulty.put(NAMESPACE, objects(1, 3, 5 * MIB, (Part.KV, Part.WINDOW)))
    assert faulty.usage().objects == 0


@pytest.mark.parametrize("punches", [True, False])
def test_the_quota_holds_and_parents_outlive_children(tmp_path, files, punches):
    files.punches = punches
    with BlockStore.open(config(tmp_path), files=files) as store:
        for seed in range(25):
            wanted = objects(seed, 24, 190_000, (Part.KV, Part.WINDOW))
            for start in range(0, len(wanted), 8):
                result = store.put(NAMESPACE, wanted[start : start + 8])
                assert result.written == 8
                assert directory_bytes(tmp_path) <= 64 * MIB
            check_all(store, wanted[:4] + wanted[-4:])
        for seed in range(25):
            found = store.find(
                NAMESPACE.id, [o.block for o in objects(seed, 24, 0)], [Part.KV, Part.WINDOW]
            )
            here = [Part.KV in each for each in found]
            assert here == sorted(here, reverse=True), "a parent went before its child"
            assert all(Part.KV in each for each in found if each), "a window outlived its block"
        assert store.usage().objects > 60
        with store._opened.index.read() as catalog:
            assert catalog.meta.reserved == 0
            assert catalog.meta.allocated == sum(
                p.stat().st_blocks * 512 for p in segment_files(tmp_path)
            )


def test_a_hole_that_was_not_punched_is_punched_at_the_next_open(tmp_path, files):
    wanted = objects(1, 10, 100_000)
    with BlockStore.open(config(tmp_path), files=files) as store:
        store.put(NAMESPACE, wanted)
        opened = store._opened
        (last,) = entries(store, wanted)[-1:]
        files.punch_errors = [errno.EIO]
        places = opened.index.write(lambda catalog: catalog.remove(catalog.current(last)))
        opened.segments.free(places)
        with opened.index.read() as catalog:
            assert catalog.freeing() == places
        before = store.usage().allocated_bytes
    with BlockStore.open(config(tmp_path)) as store:
        assert store.usage().allocated_bytes < before - 90_000
        with store._opened.index.read() as catalog:
            assert catalog.freeing() == []
        check_all(store, wanted[:-1])


def test_a_segment_that_can_not_be_sealed_is_taken_over_later(tmp_path, files, monkeypatch):
    wanted = objects(1, 5)
    store = BlockStore.open(config(tmp_path), files=files)
    store.put(NAMESPACE, wanted)

    def broken(*_):
        raise StoreError("the index is broken")

    monkeypatch.setattr(store._opened.segments, "_seal", broken)
    store.close()
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, wanted)
        with store._opened.index.read() as catalog:
            assert [row.state for _, row in catalog.segments()] == [2]

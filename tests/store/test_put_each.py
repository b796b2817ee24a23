"""Batches that are written while those before them are made durable."""

import errno
import os
import sys
import threading

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects, segment_files
from test_writer import FaultyFiles

from spillcache import processors
from spillcache.config import GIB, MIB
from spillcache.errors import StoreFullError, StoreIndexError, StoreIOError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def store(tmp_path, files):
    with BlockStore.open(config(tmp_path / "cache"), files=files) as store:
        yield store


def batches(count, blocks=5, size=20_000):
    return [objects(seed, blocks, size) for seed in range(1, count + 1)]


def put_each(store, wanted, namespace=NAMESPACE):
    results = []
    store.put_each(namespace, wanted, results.append)
    return results


def check_once_more(store, wanted):
    """After an error the same batches, of five each, are put, and nothing is left of it."""
    assert [r.written + r.present for r in put_each(store, wanted)] == [5] * len(wanted)
    for each in wanted:
        check_all(store, each)
    with store._opened.index.read() as catalog:
        assert catalog.meta.reserved == 0
    assert store.verify().is_sound


def test_batches_are_named_in_their_order_each_with_its_own_result(store):
    wanted = batches(4)
    again = [*wanted[:1], [], *wanted]
    assert [(r.written, r.present) for r in put_each(store, again)] == [
        (5, 0), (0, 0), (0, 5), (5, 0), (5, 0), (5, 0)
    ]  # fmt: skip
    for each in wanted:
        check_all(store, each)
    assert store.verify().is_sound


def test_one_is_appended_while_the_one_before_is_committed(tmp_path, files, monkeypatch):
    """The first batch's sync waits until the second is appended: in turn, that would never be.

    With much room, so much is promised ahead that the second needs no transaction before.
    """
    written, threads = threading.Event(), set()
    wanted = batches(2)
    store = BlockStore.open(config(tmp_path / "cache", quota_bytes=64 * GIB), files=files)
    store.put(NAMESPACE, objects(9, 1))
    sync = files.sync

    def waiting(fd):
        threads.add(name := threading.current_thread().name)
        if name == "spillcache-commit":
            assert written.wait(10)
        sync(fd)

    real = store._opened.writer._launch

    def launch(job, group, **how):
        flight = real(job, group, **how)
        if group[0].source.block == wanted[1][0].block:
            written.set()
        return flight

    monkeypatch.setattr(store._opened.writer, "_launch", launch)
    monkeypatch.setattr(files, "sync", waiting)
    assert [r.written for r in put_each(store, wanted)] == [5, 5]
    assert "spillcache-commit" in threads
    store.close()


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="only Linux lets threads choose, where there are two processors",
)
def test_who_writes_has_processors_of_its_own(store, files, monkeypatch):
    monkeypatch.setattr(processors, "_MOST", 1 << 20)
    free, used = os.sched_getaffinity(0), {}

    def note(name):
        real = getattr(files, name)

        def noting(*args):
            used[name, threading.current_thread().name] = os.sched_getaffinity(0)
            return real(*args)

        monkeypatch.setattr(files, name, noting)

    def some():
        for each in batches(3, 4, MIB):
            used["made"] = os.sched_getaffinity(0)
            yield each

    note("pwrite")
    note("allocated_at")
    assert [r.written for r in put_each(store, some())] == [4] * 3
    ours, theirs = used["made"], used["pwrite", "spillcache-write"]
    assert used["allocated_at", "spillcache-commit"] == ours
    assert ours | theirs == free
    assert not ours & theirs
    assert os.sched_getaffinity(0) == free


def test_a_batch_may_go_on_from_the_one_before(store):
    whole = objects(1, 12, parts=(Part.KV, Part.WINDOW))
    results = put_each(store, [whole[:10], whole[10:14], whole[14:]])
    assert [r.dropped for r in results] == [0, 0, 0]
    check_all(store, whole)


def test_what_hangs_on_nothing_is_dropped_from_its_own_batch(store):
    orphans, right = objects(1, 4)[2:], objects(2, 4)
    assert [(r.written, r.dropped) for r in put_each(store, [right, orphans])] == [(4, 0), (0, 2)]
    check_all(store, right)


def test_large_batches_fill_several_segments(tmp_path):
    with BlockStore.open(config(tmp_path / "cache", quota_bytes=256 * MIB)) as store:
        wanted = [objects(seed, 2, MIB) for seed in range(20)]
        assert sum(r.written for r in put_each(store, wanted)) == 40
        assert len(segment_files(tmp_path / "cache")) > 2
        for each in wanted:
            check_all(store, each)


@pytest.mark.parametrize("method", ["pwrite", "sync"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_an_io_error_keeps_what_was_durable(store, files, method, number, code):
    before, wanted = objects(9, 5), batches(4)
    store.put(NAMESPACE, before)
    results = []
    with (
        Failing(files, method, number, code),
        pytest.raises(StoreIOError, match="nothing was deleted"),
    ):
        store.put_each(NAMESPACE, wanted, results.append)
    assert len(results) <= number
    for each in [before, *wanted[: len(results)]]:
        check_all(store, each)
    check_once_more(store, wanted)


def test_what_is_told_present_is_not_evicted_for_the_batch_before(store, files):
    """Full filesystem: the room is made when the second batch was found to be all there."""
    old, other = objects(9, 5, 20_000), objects(8, 5, 20_000)
    store.put(NAMESPACE, old)
    store.put(NAMESPACE, other)
    store._opened.room._fresh_after = (1 << 64) - 1
    with Failing(files, "pwrite", 0, errno.ENOSPC):
        results = put_each(store, [objects(1, 5, 20_000), old, objects(3, 1)])
    assert [(r.written, r.present) for r in results] == [(5, 0), (0, 5), (1, 0)]
    check_all(store, old)
    assert len(entries(store, other)) < 5


@pytest.mark.parametrize("size", [20_000, 1_500_000])
@pytest.mark.parametrize("name", ["spillcache-commit", "spillcache-write"])
def test_where_the_system_has_no_more_threads(store, files, monkeypatch, name, size):
    """A commit goes on where it is; without one that writes a long stream, the batch fails."""
    wanted, start = batches(3, 5, size), threading.Thread.start
    fails = name == "spillcache-write" and size > MIB

    def refuse(self):
        if self.name == name:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        if fails:
            with pytest.raises(StoreIOError, match="can't start new thread"):
                put_each(store, wanted)
        else:
            assert [r.written for r in put_each(store, wanted)] == [5] * 3
    assert not [t for t in threading.enumerate() if t.name in ("spillcache-commit", name)]
    check_once_more(store, wanted)


class Failing:
    """The call with ``number`` of one method fails, and no other."""

    def __init__(self, files, method, number, code):
        self._files, self._method = files, method
        self._left, self._code = number, code

    def __enter__(self):
        real = getattr(self._files, self._method)

        def failing(*args):
            self._left -= 1
            if self._left == -1:
                raise OSError(self._code, os.strerror(self._code))
            return real(*args)

        setattr(self._files, self._method, failing)

    def __exit__(self, *_):
        delattr(self._files, self._method)


@pytest.mark.parametrize("method", ["pwrite", "sync"])
@pytest.mark.parametrize("number", range(4))
def test_a_full_filesystem_is_met_by_eviction_and_all_is_written(store, files, method, number):
    old = objects(9, 40, 20_000, namespace=OTHER)
    store.put(OTHER, old)
    wanted = batches(4)
    store._opened.room._fresh_after = (1 << 64) - 1
    with Failing(files, method, number, errno.ENOSPC):
        assert [r.written for r in put_each(store, wanted)] == [5] * 4
    for each in wanted:
        check_all(store, each)
    assert len(entries(store, old, OTHER)) < 40
    assert store.verify().is_sound


def test_without_room_what_was_durable_is_told_and_the_rest_is_an_error(tmp_path):
    with BlockStore.open(config(tmp_path / "cache")) as store:
        small, huge = objects(1, 3), objects(2, 1, 100 * MIB)
        results = []
        with pytest.raises(StoreFullError):
            store.put_each(NAMESPACE, [small, huge, objects(3, 3)], results.append)
        assert [r.written for r in results] == [3]
        check_all(store, small)
        assert put_each(store, [objects(3, 3)])[0].written == 3


def test_an_index_that_fails_ends_it(store, monkeypatch):
    wanted, results, index = batches(3), [], store._opened.index
    real = index.write

    def write(work):
        if threading.current_thread().name == "spillcache-commit" and results:
            raise StoreIndexError("the index failed")
        return real(work)

    monkeypatch.setattr(index, "write", write)
    with pytest.raises(StoreIndexError):
        store.put_each(NAMESPACE, wanted, results.append)
    monkeypatch.undo()
    assert len(results) == 1
    check_all(store, wanted[0])
    assert [r.present + r.written for r in put_each(store, wanted)] == [5, 5, 5]
    assert store.verify().is_sound


def test_a_bug_of_the_caller_leaves_the_store_in_order(store):
    wanted = batches(3)

    def some():
        yield wanted[0]
        yield wanted[1]
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        store.put_each(NAMESPACE, some(), lambda _: None)
    put_each(store, wanted)
    for each in wanted:
        check_all(store, each)
    assert store.verify().is_sound


def test_nothing_at_all(store):
    assert put_each(store, []) == []

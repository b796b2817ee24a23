import gc
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from cache_tools import (
    EIO,
    FaultyFiles,
    Parts,
    WatchedStore,
    chain,
    damage,
    each,
    eventually,
    objects,
    our_threads,
    state_of,
    taken,
)

from spillcache.cache.restore import _AHEAD_BLOCKS, RestoredBlock, RestoreStream, Step
from spillcache.chain import Chain
from spillcache.config import MIB
from spillcache.errors import CorruptBlock, ObjectMissing, SpillcacheError, StoreIOError
from spillcache.state import Part
from spillcache.store import reader
from spillcache.store.buffers import AlignedBuffer

K, W = Part.KV, Part.WINDOW


def steps(
    store: WatchedStore, c: Chain, parts: Sequence[Part] = (K,), ram: Sequence[int] = ()
) -> list[Step]:
    """The chain's blocks as a match lays them out; those in ``ram`` are not read from disk."""
    found = store.find(c.namespace.id, c.hashes, parts)
    return [
        Step(i, c.hashes[i], {p: memoryview(v) for p, v in state_of(c, i, parts).items()}, {})
        if i in ram
        else Step(i, c.hashes[i], {}, found[i])
        for i in range(c.blocks)
    ]


def fail(error: SpillcacheError) -> None:
    raise AssertionError(f"nothing should have failed: {error}")


def wait(event: threading.Event) -> None:
    assert event.wait(10)


def test_blocks_come_in_order_with_the_bytes_that_were_put(store: WatchedStore) -> None:
    c = chain(3 * _AHEAD_BLOCKS)
    store.put(c.namespace, objects(c, (K, W)))
    stream = RestoreStream(steps(store, c, (K, W)), store, fail)
    assert taken(stream) == [(i, state_of(c, i, (K, W))) for i in range(c.blocks)]
    assert stream.done
    assert stream.take() is None
    stream.close()
    stream.close()
    assert stream.join(10)
    assert store.unreleased == 0
    assert not our_threads()


def test_ram_and_disk_take_turns(store: WatchedStore) -> None:
    c = chain(8)
    store.put(c.namespace, objects(c))
    stream = RestoreStream(steps(store, c, ram=[0, 3, 4, 7]), store, fail)
    sources = []
    while not stream.done:
        block = stream.take(10)
        assert block is not None
        assert {p: bytes(v) for p, v in block.state.items()} == state_of(c, block.index)
        sources.append(block.source)
        block.release()
        block.release()
    assert sources == ["ram", "disk", "disk", "ram", "ram", "disk", "disk", "ram"]
    stream.close()
    assert stream.join(10)
    assert store.unreleased == 0


def test_a_block_may_lie_half_in_ram_half_on_disk(store: WatchedStore) -> None:
    c = chain(1)
    store.put(c.namespace, objects(c, (K, W)))
    [step] = steps(store, c, (K, W))
    half = Step(0, step.hash, {K: memoryview(state_of(c, 0)[K])}, {W: step.disk[W]})
    assert half.source == "disk"
    stream = RestoreStream([half], store, fail)
    assert taken(stream) == [(0, state_of(c, 0, (K, W)))]
    stream.close()


def test_ram_alone_needs_no_thread_and_no_store() -> None:
    c = chain(2)
    held = [Step(i, c.hashes[i], {K: memoryview(state_of(c, i)[K])}, {}) for i in range(2)]
    stream = RestoreStream(held, None, fail)
    assert not our_threads()
    assert taken(stream, 0.0) == [(0, state_of(c, 0)), (1, state_of(c, 1))]
    stream.close()


def test_take_does_not_wait_unless_it_may(store: WatchedStore, files: FaultyFiles) -> None:
    c, go = chain(1), threading.Event()
    store.put(c.namespace, objects(c))
    files.before_read = lambda: wait(go)
    stream = RestoreStream(steps(store, c), store, fail)
    assert stream.take() is None
    assert stream.take(0.01) is None
    go.set()
    assert taken(stream) == [(0, state_of(c, 0))]
    stream.close()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_early_close_leaves_no_thread_and_no_payload(store: WatchedStore, count: int) -> None:
    c = chain(4 * _AHEAD_BLOCKS)  # more than the queue holds: the reader waits in it
    store.put(c.namespace, objects(c))
    stream = RestoreStream(steps(store, c), store, fail)
    for _ in range(count):
        block = stream.take(10)
        assert block is not None
        block.release()
    eventually(stream._ready.full)
    stream.close()
    assert stream.join(10)
    assert not our_threads()
    assert store.unreleased == 0
    assert len(store.payloads) < c.blocks


def test_a_close_during_a_read_ends_soon(store: WatchedStore, files: FaultyFiles) -> None:
    c, go = chain(3), threading.Event()
    store.put(c.namespace, objects(c, (K, W)))
    files.before_read = lambda: wait(go)
    stream = RestoreStream(steps(store, c, (K, W)), store, fail)
    threading.Timer(0.1, go.set).start()
    stream.close()
    assert stream.join(10)
    assert not our_threads()
    assert store.unreleased == 0


def test_a_stop_within_a_block_gives_its_first_part_back(
    store: WatchedStore, files: FaultyFiles
) -> None:
    """The second part lies far away, so that it takes a read of its own, which is slow."""
    c, reads = chain(1), list[int]()
    far = chain(2 * _AHEAD_BLOCKS, seed=1)
    store.put(c.namespace, objects(c))
    store.put(far.namespace, objects(far, size=64 << 10))
    store.put(c.namespace, objects(c, (W,)))
    stop = threading.Event()

    def slow() -> None:
        reads.append(1)
        if len(reads) == 2:
            wait(stop)

    files.before_read = slow
    stream = RestoreStream(steps(store, c, (K, W)), store, fail)
    eventually(lambda: len(store.payloads) == 1)
    threading.Timer(0.1, stop.set).start()
    stream.close()
    assert stream.join(10)
    assert len(store.payloads) == 1
    assert store.unreleased == 0


@pytest.mark.parametrize("part", [K, W])
def test_damage_on_disk_ends_the_stream_before_its_block(
    store: WatchedStore, tmp_path: Path, part: Part
) -> None:
    c, failed = chain(5), list[SpillcacheError]()
    store.put(c.namespace, objects(c, (K, W)))
    entry = store.find(c.namespace.id, c.hashes, (K, W))[3][part]
    damage(tmp_path, entry)
    stream = RestoreStream(steps(store, c, (K, W)), store, failed.append)
    good: list[tuple[int, Parts]] = []
    with pytest.raises(CorruptBlock, match=f"{part.name.lower()} of block"):
        good.extend(each(stream))
    assert [index for index, _ in good] == [0, 1, 2]
    assert [type(error) for error in failed] == [CorruptBlock]
    assert store.unreleased == 0, "also the first part of the block that failed"
    stream.close()
    assert stream.join(10)
    assert not our_threads()
    [now] = store.find(c.namespace.id, [c.hashes[3]], [part])
    assert not now, "it will not fail again"


def test_a_block_that_went_away_is_missing_not_damaged(store: WatchedStore) -> None:
    c, failed = chain(3), list[SpillcacheError]()
    store.put(c.namespace, objects(c))
    plan = steps(store, c)
    gone = plan[2].disk[K]
    assert store._opened is not None
    places = store._opened.index.write(lambda catalog: catalog.remove(gone))
    store._opened.segments.free(places)
    stream = RestoreStream(plan, store, failed.append)
    with pytest.raises(ObjectMissing):
        taken(stream)
    assert [type(error) for error in failed] == [ObjectMissing]
    stream.close()
    assert stream.join(10)
    assert store.unreleased == 0


def test_a_read_error_ends_the_stream_and_deletes_nothing(
    store: WatchedStore, files: FaultyFiles
) -> None:
    c, failed = chain(3), list[SpillcacheError]()
    store.put(c.namespace, objects(c))
    plan = steps(store, c)
    files.read_error = EIO
    stream = RestoreStream(plan, store, failed.append)
    with pytest.raises(StoreIOError, match="nothing was deleted") as caught:
        taken(stream)
    assert failed == [caught.value]
    stream.close()
    files.read_error = 0
    stream = RestoreStream(plan, store, fail)
    assert len(taken(stream)) == 3
    stream.close()


def test_a_bug_in_the_reader_ends_the_restore_only(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    c = chain(2)
    store.put(c.namespace, objects(c))
    plan = steps(store, c)
    monkeypatch.setattr(store, "read", lambda *_, **__: 1 // 0)
    with caplog.at_level(logging.ERROR):
        stream = RestoreStream(plan, store, fail)
        with pytest.raises(StoreIOError, match="the restore reader failed"):
            taken(stream)
        stream.close()
    assert "ZeroDivisionError" in caplog.text


def test_an_iterator_without_close_will_do(
    store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = chain(2)
    store.put(c.namespace, objects(c))
    plan = steps(store, c)
    payloads = list(store.read([step.disk[K] for step in plan]))
    monkeypatch.setattr(store, "read", lambda *_, **__: iter(payloads))
    stream = RestoreStream(plan, store, fail)
    assert len(taken(stream)) == 2
    stream.close()
    assert stream.join(10)
    assert store.unreleased == 0


def test_a_restored_block_knows_its_size() -> None:
    assert RestoredBlock(0, {K: b"abc", W: memoryview(b"de")}, "ram").size == 5


def test_big_blocks_pass_through_a_small_read_ahead(store: WatchedStore) -> None:
    c = chain(24)
    store.put(c.namespace, objects(c, size=MIB))
    stream = RestoreStream(steps(store, c), store, fail)
    for index, parts in taken(stream):
        assert parts == state_of(c, index, size=MIB)
    stream.close()
    assert stream.join(10)
    assert store.unreleased == 0


def test_a_close_does_not_wait_for_a_disk_that_hangs(
    store: WatchedStore, files: FaultyFiles
) -> None:
    """The match is held until nothing is read any more."""
    c, go, ended = chain(3), threading.Event(), list[int]()
    store.put(c.namespace, objects(c))
    files.before_read = lambda: wait(go)
    stream = RestoreStream(steps(store, c), store, fail, lambda: ended.append(1))
    stream.close()
    stream.close()
    assert not stream.join(0.05)
    assert ended == []
    go.set()
    assert stream.join(10)
    assert ended == [1]
    assert store.unreleased == 0


def test_memory_of_a_read_that_hung_is_free_when_it_comes_back(
    store: WatchedStore,
    files: FaultyFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reader, "_JOIN_S", 0.05)
    c, go = chain(3), threading.Event()
    store.put(c.namespace, objects(c))
    assert store._opened is not None
    pool = store._opened.pool

    def in_use() -> int:
        gc.collect()
        free = {id(buffer) for buffer in pool._free}
        buffers = [each for each in gc.get_objects() if isinstance(each, AlignedBuffer)]
        return sum(id(buffer) not in free for buffer in buffers)

    before = in_use()
    files.before_read = lambda: wait(go)
    stream = RestoreStream(steps(store, c), store, fail)
    eventually(lambda: files.reads > 0)
    with caplog.at_level(logging.ERROR):
        stream.close()
        assert stream.join(10), "it is not waited for"
    assert "hangs in a read" in caplog.text
    assert in_use() > before
    go.set()
    eventually(lambda: not our_threads())
    assert in_use() == before

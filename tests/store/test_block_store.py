"""The store as its users see it."""

import gc
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_tools import (
    NAMESPACE,
    OTHER,
    chain,
    check_all,
    config,
    entries,
    objects,
    read_all,
    segment_files,
)

from spillcache.chain import BlockHash
from spillcache.config import MIB
from spillcache.errors import ObjectMissing, StoreIndexError
from spillcache.metrics import Metrics
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.eviction import evict

ALL = tuple(Part)


def open_files() -> set[str]:
    names = set()
    for fd in list(Path("/proc/self/fd").iterdir()):
        try:
            names.add(str(fd.readlink()))
        except FileNotFoundError:
            continue
    return names


def test_put_find_read(store):
    wanted = objects(1, 20, 5000, ALL)
    result = store.put(NAMESPACE, wanted)
    assert (result.written, result.present, result.dropped) == (60, 0, 0)
    assert result.written_bytes == 60 * 8192
    check_all(store, wanted)


@pytest.mark.parametrize("size", [0, 1, 3904, 3905, 100_000, 3 * MIB, 12 * MIB])
def test_sizes(store, size):
    wanted = objects(1, 2, size)
    store.put(NAMESPACE, wanted)
    check_all(store, wanted)


def test_it_is_there_after_reopening(tmp_path):
    wanted = objects(1, 10, 20_000, ALL)
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, wanted)
        store_id = store.store_id
    with BlockStore.open(config(tmp_path)) as store:
        assert store.store_id == store_id
        check_all(store, wanted)
        assert store.put(NAMESPACE, wanted).present == 30


def test_find_tells_what_is_there(store):
    store.put(NAMESPACE, objects(1, 3))
    _, hashes = chain(1, 5)
    found = store.find(NAMESPACE.id, hashes, ALL)
    assert [list(each) for each in found] == [[Part.KV]] * 3 + [[], []]
    entry = found[1][Part.KV]
    assert (entry.block, entry.part, entry.block_index) == (hashes[1], Part.KV, 1)
    assert entry.raw_bytes == entry.stored_bytes == 3000
    assert list(store.find(OTHER.id, hashes, ALL)) == [{}] * 5
    assert list(store.find(NAMESPACE.id, [], ALL)) == []


def test_present_objects_are_not_written_again(store):
    wanted = objects(1, 5, parts=ALL)
    store.put(NAMESPACE, wanted[:6])
    before = store.usage().allocated_bytes
    result = store.put(NAMESPACE, wanted[:6] + wanted[:3])
    assert (result.written, result.present, result.written_bytes) == (0, 9, 0)
    assert store.usage().allocated_bytes <= before + 64 * 1024
    result = store.put(NAMESPACE, [*wanted, wanted[-1]])
    assert (result.written, result.present) == (9, 7)
    check_all(store, wanted)


def test_a_child_without_its_parent_is_dropped(store):
    wanted = objects(1, 4, parts=(Part.KV, Part.WINDOW))
    result = store.put(NAMESPACE, wanted[2:])
    assert (result.written, result.dropped) == (0, 6)
    assert store.usage().objects == 0
    result = store.put(NAMESPACE, wanted[:2] + wanted[4:])
    assert (result.written, result.dropped) == (2, 4)
    assert store.put(NAMESPACE, wanted).written == 6
    check_all(store, wanted)


def test_windows_and_boundaries_need_no_kv(store):
    wanted = [o for o in objects(1, 4, parts=ALL) if o.part is not Part.KV]
    assert store.put(NAMESPACE, wanted).written == 8
    check_all(store, wanted)


def test_namespaces_are_apart(store):
    ours, theirs = objects(1, 3), objects(1, 3, namespace=OTHER, parts=ALL)
    store.put(NAMESPACE, ours)
    store.put(OTHER, theirs)
    # The very same hash in two namespaces is two objects.
    same = [replace(o, payload=b"another's") for o in ours]
    store.put(OTHER, same)
    check_all(store, ours)
    assert read_all(store, entries(store, same, OTHER)) == [b"another's"] * 3
    infos = {info.namespace: info for info in store.namespaces()}
    assert set(infos) == {NAMESPACE, OTHER}
    info = infos[OTHER]
    assert (info.objects, info.blocks) == (12, 6)
    assert info.parts == {Part.KV: 6, Part.WINDOW: 3, Part.BOUNDARY: 3}
    assert info.raw_bytes == info.stored_bytes == 9 * 3000 + 27
    assert abs(info.created - time.time()) < 60
    assert info.created <= info.last_used


def test_a_touch_is_a_use_of_the_namespace(store):
    store.put(NAMESPACE, objects(1, 2))
    store.put(OTHER, objects(2, 2, namespace=OTHER))
    assert [info.namespace for info in store.namespaces()] == [OTHER, NAMESPACE]
    store.touch(NAMESPACE.id, chain(1, 2)[1][-1])
    assert [info.namespace for info in store.namespaces()] == [NAMESPACE, OTHER]


def test_zstd(tmp_path):
    wanted = [replace(o, payload=bytes(o.payload[:100]) * 500) for o in objects(1, 6, parts=ALL)]
    mixed = objects(2, 3, 20_000)
    with BlockStore.open(config(tmp_path, codec="zstd")) as store:
        store.put(NAMESPACE, wanted + mixed)
        found = entries(store, wanted)
        assert all(e.stored_bytes < e.raw_bytes // 10 for e in found)
        assert all(e.stored_bytes == e.raw_bytes for e in entries(store, mixed))
        check_all(store, wanted + mixed)
        info = store.namespaces()[0]
        assert info.stored_bytes < info.raw_bytes
    # Which codec a store was written with is in its records, not in its settings.
    with BlockStore.open(config(tmp_path, codec="raw")) as store:
        check_all(store, mixed + wanted)


def test_payloads_may_be_any_buffer(store):
    array = np.arange(1000, dtype=np.float32)
    block = objects(1, 1)[0]
    for part, data in zip(ALL, (bytearray(b"abc"), memoryview(array), b""), strict=True):
        store.put(NAMESPACE, [replace(block, part=part, payload=data)])
    found = store.find(NAMESPACE.id, [block.block], ALL)[0]
    assert read_all(store, [found[p] for p in ALL]) == [b"abc", array.tobytes(), b""]


@pytest.mark.parametrize(
    "changes",
    [
        {"block": BlockHash(b"short")},
        {"parent": BlockHash(b"")},
        {"rank": 256},
        {"rank": -1},
        {"payload": memoryview(b"abcdef")[::2]},
    ],
)
def test_what_can_not_be_stored_is_refused_before_anything_is_written(store, changes):
    good, bad = objects(1, 2)
    with pytest.raises(ValueError):
        store.put(NAMESPACE, [good, replace(bad, **changes)])
    assert store.usage().objects == 0


def test_notes(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        assert store.note("digest:1") is None
        store.set_note("digest:1", b"one")
        store.set_note("digest:1", b"two")
        store.set_note("long" * 1000, b"three")
    with BlockStore.open(config(tmp_path)) as store:
        assert store.note("digest:1") == b"two"
        assert store.note("long" * 1000) == b"three"
        assert store.note("long" * 999) is None


def test_usage_and_metrics(tmp_path):
    metrics = Metrics()
    with BlockStore.open(config(tmp_path, min_free_bytes=MIB), metrics) as store:
        store.put(NAMESPACE, objects(1, 50, 50_000))
        usage = store.usage()
        assert usage.objects == 50
        assert usage.segments == 1
        assert 50 * 50_000 < usage.allocated_bytes < 50 * 50_000 + MIB
        assert (usage.quota_bytes, usage.min_free) == (64 * MIB, MIB)
        assert usage.free_bytes > 0
        gauge = metrics.registry.get_sample_value("spillcache_disk_bytes")
        assert usage.allocated_bytes <= gauge <= usage.allocated_bytes + 2 * MIB
        about = store.describe()
        assert about["reads"] in ("direct", "buffered+dontneed")
        assert about["quota_bytes"] == 64 * MIB


def test_buffered_reads(tmp_path):
    wanted = objects(1, 30, 30_000)
    with BlockStore.open(config(tmp_path, direct_io=False)) as store:
        assert store.describe()["reads"] == "buffered+dontneed"
        store.put(NAMESPACE, wanted)
        check_all(store, wanted)


def test_close_leaves_nothing_and_may_be_repeated(tmp_path):
    files, threads = open_files(), threading.active_count()
    store = BlockStore.open(config(tmp_path))
    store.put(NAMESPACE, objects(1, 10))
    reading = store.read(entries(store, objects(1, 10)))
    next(reading).release()
    reading.close()
    store.close()
    store.close()
    gc.collect()
    assert open_files() <= files
    assert threading.active_count() == threads
    with pytest.raises(StoreIndexError, match="closed"):
        store.put(NAMESPACE, [])


def test_two_handles_in_one_process_share(tmp_path):
    wanted = objects(1, 5)
    first = BlockStore.open(config(tmp_path))
    with BlockStore.open(config(tmp_path, quota_bytes=128 * MIB)) as second:
        second.put(NAMESPACE, wanted)
        check_all(first, wanted)
        assert first.usage().quota_bytes == 128 * MIB
    check_all(first, wanted)
    assert first.put(NAMESPACE, objects(2, 5)).written == 5
    first.close()


def test_several_threads(store):
    failures = []

    def work(seed: int) -> None:
        try:
            for turn in range(5):
                wanted = objects(seed * 100 + turn, 5, 20_000)
                store.put(NAMESPACE, wanted)
                check_all(store, wanted)
                store.touch(NAMESPACE.id, wanted[-1].block)
        except BaseException as error:  # seen by the test, not swallowed by the thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.usage().objects == 100


def test_a_long_chain_over_several_segments(store):
    wanted = objects(1, 120, 200_000)
    assert store.put(NAMESPACE, wanted).written == 120
    assert store.usage().segments > 4
    check_all(store, wanted)


def test_inspect_within_the_process_and_without_a_store(tmp_path):
    wanted = objects(1, 5, 10_000)
    with BlockStore.open(config(tmp_path, min_free_bytes=7)) as store:
        store.put(NAMESPACE, wanted)
        # What the store was opened with counts, if it is known.
        view = BlockStore.inspect(tmp_path, min_free_bytes=8)
        assert view.store_id == store.store_id
        assert view.namespaces() == store.namespaces()
        assert view.usage().objects == 5
        assert view.usage().min_free == 7
        check_all(store, wanted)
    with BlockStore.open(config(tmp_path)) as store:
        store.set_note("store:limits", b"[]")
        assert BlockStore.inspect(tmp_path, min_free_bytes=8).usage().min_free == 8
        store.set_note("store:limits", b"{")
        assert BlockStore.inspect(tmp_path, min_free_bytes=9).usage().min_free == 9
    names = sorted(tmp_path.rglob("*"))
    view = BlockStore.inspect(tmp_path)
    assert view.namespaces()[0].blocks == 5
    assert sorted(tmp_path.rglob("*")) == names


def test_an_object_evicted_after_find_is_missing(store):
    wanted = objects(1, 1)
    store.put(NAMESPACE, wanted)
    stale = entries(store, wanted)
    opened = store._opened
    places = opened.index.write(lambda catalog: catalog.remove(catalog.current(stale[0])))
    opened.segments.free(places)
    with pytest.raises(ObjectMissing):
        read_all(store, stale)
    assert list((store.path / "quarantine").iterdir()) == []
    # Written again, elsewhere: the stale entry is still a miss, a new one is not.
    store.put(NAMESPACE, wanted)
    with pytest.raises(ObjectMissing):
        read_all(store, stale)
    check_all(store, wanted)


def test_an_object_whose_whole_segment_was_freed_after_find_is_missing(store):
    wanted = objects(1, 3)
    store.put(NAMESPACE, wanted)
    stale = entries(store, wanted)
    opened = store._opened
    opened.writer.close()  # seals the segment
    opened.segments.free(opened.index.write(lambda c: evict(c, 1 << 40, lambda _: False, 0)).places)
    assert segment_files(store.path) == []
    with pytest.raises(ObjectMissing):
        read_all(store, stale)


def test_a_fork_is_refused(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 2))
        child = os.fork()
        if child == 0:
            try:
                store.usage()
            except StoreIndexError:
                store.close()
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        check_all(store, objects(1, 2))

"""Plans, and what collecting does."""

import os
import time

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects, segment_files

from spillcache.config import MIB
from spillcache.errors import StoreFormatError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.eviction import evict
from spillcache.store.gc import _Order
from spillcache.store.view import directory_bytes

PARTS = (Part.KV, Part.WINDOW)
RANKS = {Part.WINDOW: 5}
ALWAYS = (1 << 64) - 1


def fill(store: BlockStore, seeds: range, size: int = 200_000) -> None:
    for seed in seeds:
        namespace = OTHER if seed % 3 == 0 else NAMESPACE
        store.put(namespace, objects(seed, 5, size, PARTS, namespace, RANKS))


def keys(found):
    return [(e.namespace_id, e.block, e.part) for e in found]


def snapshot(path):
    return {
        str(each): (found.st_size, found.st_mtime_ns, found.st_blocks)
        for each in path.rglob("*")
        if each.name != "lock.mdb" and (found := each.lstat())
    }


def branch(store: BlockStore) -> None:
    """A trunk with two branches, one of them used last; a block in the middle is damaged."""
    trunk = objects(1, 6, 3000, PARTS, ranks=RANKS)
    store.put(NAMESPACE, trunk)
    for seed in (8, 9):
        ends = objects(seed, 3, 3000)
        first = type(trunk[0])(ends[0].block, Part.KV, trunk[4].block, 3, 4, b"x")
        rest = [
            type(trunk[0])(o.block, Part.KV, ends[n].block, 4 + n, 4, b"y")
            for n, o in enumerate(ends[1:])
        ]
        store.put(NAMESPACE, [first, *rest])
    store.touch(NAMESPACE.id, objects(8, 3)[-1].block)
    damaged = entries(store, [trunk[2]])[0]
    opened = store._opened
    opened.segments.free(opened.index.write(lambda c: c.remove(c.current(damaged))))


def test_the_order_of_a_plan_is_that_of_eviction(store):
    branch(store)
    fill(store, range(20, 24), 5000)
    store.namespaces()  # writes touches
    index = store._opened.index
    with index.read() as catalog:
        total = sum(u.objects for u in catalog.usage().values())
        steps = list(_Order(catalog).until(ALWAYS))
    planned = [(e.segment, e.offset) for step in steps for e in step]
    assert len(planned) == len(set(planned)) == total
    # Eviction looks again from where it was, so whole ranks come one after the other in both.
    done = []
    while True:
        places = index.write(lambda c: evict(c, 1, lambda _: False, ALWAYS)).places
        if not places:
            break
        done += [(p.segment, p.offset) for p in places]
    assert done == planned


def test_a_plan_changes_nothing_and_is_what_happens(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store, range(12))
    before = snapshot(tmp_path)
    plan = BlockStore.plan_gc(tmp_path, 10 * MIB)
    assert snapshot(tmp_path) == before
    assert plan.objects > 20
    assert plan.reached
    assert plan.left_bytes <= 10 * MIB
    assert plan.aged_objects == 0
    assert set(plan.namespaces) == {NAMESPACE.id, OTHER.id}
    assert sum(share.objects for share in plan.namespaces.values()) == plan.objects
    with BlockStore.open(config(tmp_path)) as store:
        seen = []
        done = store.gc(10 * MIB, progress=lambda now, total: seen.append((now, total)))
        assert (done.objects, done.freed_bytes) == (plan.objects, plan.freed_bytes)
        assert done.reached
        assert seen[-1] == (done.freed_bytes, done.freed_bytes)
        assert all(now <= total for now, total in seen)
        assert directory_bytes(tmp_path) <= 10 * MIB
        last = objects(11, 5, 200_000, (Part.KV,))
        check_all(store, last)


def test_nothing_to_do(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store, range(3))
        assert store.gc().objects == 0
        assert BlockStore.plan_gc(tmp_path).objects == 0
        check_all(store, objects(1, 5, 200_000, PARTS))


def test_a_target_below_the_least_is_said_not_to_be_reached(store):
    fill(store, range(3))
    done = store.gc(0)
    assert done.objects == 30
    assert not done.reached
    assert store.usage().objects == 0
    assert not BlockStore.plan_gc(store.path, 0).reached


def test_the_limits_are_kept_without_a_target(tmp_path, monkeypatch):
    """What another program took from the filesystem since the last put."""
    with BlockStore.open(config(tmp_path)) as store:
        fill(store, range(8))
        used = store._opened
        monkeypatch.setattr(used.files, "free_bytes", lambda _: 0)
        used.room.limits.min_free_bytes = 5 * MIB
        done = store.gc()
        assert done.freed_bytes > 0
        assert store.usage().objects == 0


def test_pinned_blocks_stay(store):
    fill(store, range(4))
    kept = objects(1, 5, 200_000, PARTS)
    with store.pin(entries(store, kept)):
        assert not store.gc(0).reached
        check_all(store, kept)
    store.gc(0)
    assert entries(store, kept) == []


def test_a_touch_that_was_not_written_counts(store):
    fill(store, range(1, 3), 50_000)
    store.touch(NAMESPACE.id, objects(1, 5)[-1].block, window_blocks=5)
    with store._opened.index.read() as catalog:
        used = store._opened.room.used_bytes(catalog)
    store.gc(used - 200_000)  # four windows, or five
    check_all(store, objects(1, 5, 50_000, PARTS))
    assert len(entries(store, objects(2, 5, 0, PARTS))) < 7


def test_leftovers_are_freed(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store, range(2))
    damaged = tmp_path / "index.damaged"
    damaged.mkdir()
    (damaged / "data.mdb").write_bytes(bytes(100_000))
    old, new = tmp_path / ".spillcache-1-old", tmp_path / ".spillcache-1-new"
    for each in (old, new):
        each.write_bytes(bytes(5000))
    os.utime(old, (time.time() - 7200,) * 2)
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    plan = BlockStore.plan_gc(tmp_path)
    assert plan.leftover_bytes >= 105_000
    with BlockStore.open(config(tmp_path)) as store:
        assert store._opened.room.set_aside_bytes >= 100_000
        assert store.gc().leftover_bytes == plan.leftover_bytes
        assert store._opened.room.set_aside_bytes == 0
    assert not damaged.exists()
    assert not old.exists()
    assert new.exists()
    assert mine.read_text() == "mine"


def test_a_link_in_place_of_leftovers_is_left_alone(tmp_path):
    with BlockStore.open(config(tmp_path / "cache")) as store:
        fill(store, range(1))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data.mdb").write_text("mine")
    (tmp_path / "cache" / "index.damaged").symlink_to(precious)
    with BlockStore.open(config(tmp_path / "cache")) as store:
        store.gc(0)
    assert (precious / "data.mdb").read_text() == "mine"


def test_space_returns_to_the_filesystem(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store, range(12))
        taken = sum(p.stat().st_blocks for p in segment_files(tmp_path))
        store.gc(10 * MIB)
        left = sum(p.stat().st_blocks for p in segment_files(tmp_path))
        assert (taken - left) * 512 >= 10 * MIB


def test_there_is_nothing_to_plan_without_a_store(tmp_path):
    with pytest.raises(StoreFormatError):
        BlockStore.plan_gc(tmp_path)
    assert list(tmp_path.iterdir()) == []

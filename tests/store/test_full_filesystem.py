"""A filesystem that is really full, whatever the quota says; needs the right to mount one."""

import os
from pathlib import Path

import pytest
from store_tools import NAMESPACE, check_all, config, entries, objects, read_all

from spillcache.config import MIB
from spillcache.errors import StoreFullError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore

PARTS = (Part.KV, Part.WINDOW)


@pytest.fixture
def small(filesystem):
    return filesystem(40)


def ballast(path: Path, size: int) -> Path:
    """Somebody else's file."""
    other = path / "other"
    with open(other, "ab") as file:
        for _ in range(size // 65536):
            try:
                file.write(bytes(65536))
                file.flush()
            except OSError:
                break
    return other


def test_eviction_makes_room_and_the_last_put_is_there(small):
    with BlockStore.open(config(small / "cache", quota_bytes=1 << 30)) as store:
        for seed in range(40):
            wanted = objects(seed, 6, 250_000, PARTS)
            assert store.put(NAMESPACE, wanted).written == 12
            check_all(store, wanted)
        assert entries(store, objects(0, 6, 0, PARTS)) == []
        assert store.usage().objects > 12


def test_what_others_take_is_given_way_to_and_then_said(small):
    """The space goes while the store is open: down to nothing, and back."""
    with BlockStore.open(config(small / "cache", quota_bytes=1 << 30)) as store:
        for seed in range(5):
            store.put(NAMESPACE, objects(seed, 6, 250_000, PARTS))
        other = ballast(small, 60 * MIB)
        refused = 0
        for seed in range(5, 25):
            wanted = objects(seed, 6, 250_000, PARTS)
            try:
                store.put(NAMESPACE, wanted)
            except StoreFullError:
                refused += 1
            else:
                expected = {(each.block, each.part): each.payload for each in wanted}
                found = entries(store, wanted)
                assert read_all(store, found) == [expected[e.block, e.part] for e in found]
            ballast(small, 60 * MIB)
        assert refused
        other.unlink()
        wanted = objects(99, 6, 250_000, PARTS)
        assert store.put(NAMESPACE, wanted).written == 12
        check_all(store, wanted)
    with BlockStore.open(config(small / "cache", quota_bytes=1 << 30)) as store:
        check_all(store, objects(99, 6, 250_000, PARTS))


def test_free_space_is_left_to_others(small):
    with BlockStore.open(
        config(small / "cache", quota_bytes=1 << 30, min_free_bytes=16 * MIB)
    ) as store:
        for seed in range(30):
            store.put(NAMESPACE, objects(seed, 6, 250_000, PARTS))
            assert store.usage().free_bytes >= 16 * MIB
        check_all(store, objects(29, 6, 250_000, PARTS))


def test_what_is_evicted_is_the_filesystems_again(small):
    with BlockStore.open(config(small / "cache")) as store:
        for seed in range(5):
            store.put(NAMESPACE, objects(seed, 6, 250_000, PARTS))
        before = store.usage()
        done = store.gc(4 * MIB)
        after = store.usage()
        gave_up = before.allocated_bytes - after.allocated_bytes
        assert done.freed_bytes > 8 * MIB
        assert after.free_bytes - before.free_bytes == gave_up >= done.freed_bytes - MIB
        store.purge()
    assert BlockStore.remove(small / "cache").foreign == []
    assert store_free(small) >= 40 * MIB - 65536


def store_free(path: Path) -> int:
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


def test_gc_makes_room_where_nothing_at_all_is_left(small):
    """The index must be changed before anything can be freed, and has no room to grow."""
    with BlockStore.open(config(small / "cache", quota_bytes=1 << 30)) as store:
        for seed in range(20):
            store.put(NAMESPACE, objects(seed, 30, 20_000, PARTS))
    ballast(small, 64 * MIB)
    with BlockStore.visit(small / "cache") as store:
        done = store.gc(target_bytes=0)
        assert done.objects == 1200
        assert store.usage().objects == 0
        assert store.usage().free_bytes > 20 * MIB

"""Who goes first."""

import contextlib
import time

from store_tools import NAMESPACE, chain, check_all, config, entries, objects, read_all

from spillcache.config import MIB
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.eviction import evict

NEVER_FRESH = (1 << 64) - 1


def victims(store, need, *, spared=lambda _: False, fresh_after=NEVER_FRESH, seeds=(1, 2, 3)):
    """What an eviction of ``need`` bytes would take, as (seed, index, part); nothing is changed."""
    names = {
        block: (seed, index) for seed in seeds for index, block in enumerate(chain(seed, 20)[1])
    }
    before = {(e.block, e.part) for e in everything(store, seeds)}

    class Undo(Exception):
        pass

    left = []

    def work(catalog):
        evict(catalog, need, spared, fresh_after)
        for block in names:
            left.extend((block, p) for p in Part if catalog.has(NAMESPACE.id, block, p))
        raise Undo

    with contextlib.suppress(Undo):
        store._opened.index.write(work)
    return sorted((*names[block], part.name) for block, part in before - set(left))


def everything(store, seeds):
    return [e for seed in seeds for e in entries(store, objects(seed, 20, 0, tuple(Part)))]


def test_the_least_recently_used_leaf_goes_first(store):
    for seed in (1, 2, 3):
        store.put(NAMESPACE, objects(seed, 3))
    assert victims(store, 1) == [(1, 2, "KV")]
    assert victims(store, 4 * 4096) == [(1, 0, "KV"), (1, 1, "KV"), (1, 2, "KV"), (2, 2, "KV")]


def test_a_touch_of_the_deepest_block_keeps_the_chain(store):
    for seed in (1, 2, 3):
        store.put(NAMESPACE, objects(seed, 3))
    store.touch(NAMESPACE.id, chain(1, 3)[1][-1])
    store.namespaces()  # writes touches
    assert victims(store, 6 * 4096) == [
        (seed, index, "KV") for seed in (2, 3) for index in range(3)
    ]
    # Its blocks follow it in age: none of them is older than the others' chains.
    assert victims(store, 7 * 4096)[0] == (1, 2, "KV")


def test_a_shared_prefix_outlives_its_branches(store):
    trunk = objects(1, 4)
    store.put(NAMESPACE, trunk)
    _, hashes = chain(1, 4)
    branch = [type(trunk[0])(block, Part.KV, hashes[1], 2, 4, b"x") for block in chain(9, 3)[1]]
    store.put(NAMESPACE, branch)
    gone = victims(store, 5 * 4096, seeds=(1, 9))
    assert (1, 0, "KV") not in gone
    assert (1, 1, "KV") not in gone
    assert len(gone) == 5


def test_higher_ranks_go_first(store):
    ranks = {Part.WINDOW: 5, Part.BOUNDARY: 9}
    store.put(NAMESPACE, objects(1, 3, parts=tuple(Part), ranks=ranks))
    store.put(NAMESPACE, objects(2, 1, parts=tuple(Part), ranks=ranks))
    assert victims(store, 4 * 4096) == [
        (1, 0, "BOUNDARY"),
        (1, 1, "BOUNDARY"),
        (1, 2, "BOUNDARY"),
        (2, 0, "BOUNDARY"),
    ]
    assert (1, 0, "WINDOW") in victims(store, 5 * 4096)


def test_a_block_just_written_is_not_the_next_victim(tmp_path):
    ranks = {Part.WINDOW: 5}
    with BlockStore.open(config(tmp_path)) as store:
        last: list = []
        for seed in range(60):
            wanted = objects(seed, 3, 250_000, (Part.KV, Part.WINDOW), ranks=ranks)
            store.put(NAMESPACE, wanted)
            # Windows have the rank that goes first, yet those of the last puts are there.
            check_all(store, last + wanted)
            last = wanted
        assert store.usage().objects < 60 * 6


def test_the_pinned_and_the_spared_stay(store):
    for seed in (1, 2, 3):
        store.put(NAMESPACE, objects(seed, 3))
    leaf = NAMESPACE.id + chain(1, 3)[1][-1]
    assert victims(store, 1, spared=lambda block: block == leaf) == [(2, 2, "KV")]
    assert len(victims(store, 1 << 40)) == 9
    assert victims(store, 1 << 40, spared=lambda _: True) == []


def test_fresh_objects_go_last(store):
    for seed in (1, 2):
        store.put(NAMESPACE, objects(seed, 2, parts=(Part.KV, Part.WINDOW), ranks={Part.WINDOW: 1}))
    between = entries(store, objects(1, 2))[-1].last_use + 1
    fresh = victims(store, 4 * 4096, fresh_after=between, seeds=(1, 2))
    assert {seed for seed, _, _ in fresh} == {1}
    assert len(victims(store, 1 << 40, fresh_after=0, seeds=(1, 2))) == 8


def test_the_highest_rank_alone(store):
    store.put(NAMESPACE, objects(1, 1, parts=(Part.BOUNDARY,), ranks={Part.BOUNDARY: 255}))
    store.put(NAMESPACE, objects(2, 1, parts=(Part.KV,), ranks={Part.KV: 0}))
    assert victims(store, 1, fresh_after=0, seeds=(1, 2)) == [(1, 0, "BOUNDARY")]
    assert len(victims(store, 1 << 30, fresh_after=0, seeds=(1, 2))) == 2


def test_windows_are_touched_along(store):
    parts = (Part.KV, Part.WINDOW)
    for seed in (1, 2):
        store.put(NAMESPACE, objects(seed, 5, parts=parts, ranks={Part.WINDOW: 1}))
    store.touch(NAMESPACE.id, chain(1, 5)[1][-1], window_blocks=2)
    store.touch(NAMESPACE.id, chain(1, 9)[1][8], window_blocks=2)  # not there
    store.namespaces()
    gone = victims(store, 8 * 4096, seeds=(1, 2))
    assert [g for g in gone if g[0] == 1] == [(1, n, "WINDOW") for n in range(3)]
    # A chain shorter than its window ends the walk.
    store.touch(NAMESPACE.id, chain(1, 5)[1][1], window_blocks=100)
    store.namespaces()


def test_pinned_blocks_survive_a_flood_and_may_go_when_released(tmp_path):
    kept = objects(1, 10, 200_000, (Part.KV, Part.WINDOW))
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, kept)
        pin = store.pin(entries(store, kept))
        with store.pin(entries(store, kept[:2])):
            pass
        for seed in range(2, 60):
            store.put(NAMESPACE, objects(seed, 10, 200_000))
        check_all(store, kept)
        pin.release()
        pin.release()
        for seed in range(60, 100):
            store.put(NAMESPACE, objects(seed, 10, 200_000))
        assert entries(store, kept) == []


def test_shrinking_the_quota_evicts_at_open(tmp_path):
    with BlockStore.open(config(tmp_path, quota_bytes=200 * MIB)) as store:
        for seed in range(10):
            store.put(NAMESPACE, objects(seed, 10, MIB))
        assert store.usage().allocated_bytes > 100 * MIB
    with BlockStore.open(config(tmp_path, quota_bytes=64 * MIB)) as store:
        assert store.usage().allocated_bytes <= 64 * MIB
        check_all(store, objects(9, 10, MIB))
        with store.pin(entries(store, objects(9, 10, MIB))):
            assert read_all(store, entries(store, objects(0, 10, MIB))) == []


def test_a_damaged_block_that_is_put_again_is_a_parent_again(store):
    wanted = objects(1, 3)
    store.put(NAMESPACE, wanted)
    opened = store._opened
    second = entries(store, wanted)[1]
    opened.segments.free(opened.index.write(lambda c: c.remove(c.current(second))))
    store.put(NAMESPACE, wanted)
    check_all(store, wanted)
    # The block that follows is used last, and goes first all the same.
    store.touch(NAMESPACE.id, wanted[2].block)
    store.namespaces()
    assert victims(store, 1, seeds=(1,)) == [(1, 2, "KV")]
    assert victims(store, 4097, seeds=(1,)) == [(1, 1, "KV"), (1, 2, "KV")]


def test_ghost_rows_go_with_their_last_child(store):
    """A damaged block that others follow: its row stays for them, and goes when they go."""
    wanted = objects(1, 4)
    store.put(NAMESPACE, wanted)
    opened = store._opened
    second = entries(store, wanted)[1]
    opened.segments.free(opened.index.write(lambda c: c.remove(c.current(second))))
    assert len(entries(store, wanted)) == 3
    assert victims(store, 1 << 40, seeds=(1,)) == [(1, n, "KV") for n in (0, 2, 3)]
    opened.index.write(lambda c: evict(c, 1 << 40, lambda _: False, NEVER_FRESH))
    with opened.index.read() as catalog:
        assert all(catalog.entry(NAMESPACE.id, o.block, Part.KV) is None for o in wanted)
        assert catalog.usage() == {}


def test_what_is_touched_ahead_goes_later_with_all_before_it(store):
    for seed in (1, 2, 3):
        store.put(NAMESPACE, objects(seed, 3))
    store.touch(NAMESPACE.id, chain(1, 3)[1][1], ahead_s=3600.0)
    store.namespaces()
    for seed in (4, 5):
        store.put(NAMESPACE, objects(seed, 2))
    gone = victims(store, 11 * 4096, seeds=(1, 2, 3, 4, 5))
    assert [g for g in gone if g[0] == 1] == [(1, 2, "KV")], (
        "its private tail, but not what is shared"
    )
    assert victims(store, 12 * 4096, seeds=(1, 2, 3, 4, 5))[:2] == [(1, 1, "KV"), (1, 2, "KV")]
    assert store.namespaces()[0].last_used <= time.time()


def test_what_is_put_again_soon_after_it_went_stays_longer(store):
    wanted = objects(1, 2)
    store.put(NAMESPACE, wanted)
    store.gc(0)
    assert entries(store, wanted) == []
    store.touch(NAMESPACE.id, chain(9, 1)[1][0], ahead_s=3600.0)  # not there; tells how long
    store.put(NAMESPACE, wanted)
    store.put(NAMESPACE, objects(2, 2))
    assert victims(store, 2 * 4096, seeds=(1, 2)) == [(2, 0, "KV"), (2, 1, "KV")]

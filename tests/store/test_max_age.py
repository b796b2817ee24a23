"""What was not used for long goes."""

import time

import pytest
from store_tools import NAMESPACE, check_all, config, entries, objects

from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.catalog import Catalog
from spillcache.store.eviction import evict_older

PARTS = (Part.KV, Part.WINDOW)
RANKS = {Part.WINDOW: 5}
DAY_S = 86400
NS = 1_000_000_000


class Clock:
    """The time of the store's clock, and of who looks for old objects."""

    def __init__(self, monkeypatch):
        self.offset_s = 0.0
        for module in ("catalog", "touches", "room", "gc"):
            monkeypatch.setattr(f"spillcache.store.{module}.time", self)

    def time_ns(self):
        return self.now_ns()

    def now_ns(self):
        return 1_800_000_000 * NS + int(self.offset_s * NS)

    def monotonic(self):
        return 1000.0 + self.offset_s


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def put(store, seed):
    store.put(NAMESPACE, objects(seed, 4, 3000, PARTS, ranks=RANKS))


def there(store, seed):
    return len(entries(store, objects(seed, 4, 0, PARTS)))


def test_at_open_what_was_not_used_for_longer_goes(tmp_path, clock):
    with BlockStore.open(config(tmp_path)) as store:
        put(store, 1)
        put(store, 2)
        clock.offset_s = 20 * DAY_S
        put(store, 3)
        store.touch(NAMESPACE.id, objects(2, 4)[-1].block, window_blocks=2)
    clock.offset_s = 31 * DAY_S
    with BlockStore.open(config(tmp_path, max_age_s=30 * DAY_S)) as store:
        assert there(store, 1) == 0
        # A used prefix is kept whole, and so are the windows that a restore at its end reads.
        assert len(entries(store, objects(2, 4, 0))) == 4
        assert len(entries(store, objects(2, 4, 0, (Part.WINDOW,)))) == 2
        check_all(store, objects(3, 4, 3000, PARTS))


def test_the_writer_looks_now_and_then(tmp_path, clock):
    with BlockStore.open(config(tmp_path, max_age_s=600.0)) as store:
        put(store, 1)
        clock.offset_s = 590
        put(store, 2)
        assert there(store, 1) == 8
        clock.offset_s = 610
        put(store, 3)
        assert there(store, 1) == 8  # looked less than a minute ago
        clock.offset_s = 660
        put(store, 4)
        assert there(store, 1) == 0
        assert [there(store, seed) for seed in (2, 3, 4)] == [8, 8, 8]


def test_without_an_age_nothing_goes(tmp_path, clock):
    with BlockStore.open(config(tmp_path)) as store:
        put(store, 1)
        clock.offset_s = 9999 * DAY_S
        put(store, 2)
        assert there(store, 1) == 8


def test_pinned_blocks_and_the_prefix_that_is_put_stay(tmp_path, clock):
    with BlockStore.open(config(tmp_path, max_age_s=600.0)) as store:
        put(store, 1)
        put(store, 2)
        clock.offset_s = 700
        longer = objects(2, 6, 3000)
        with store.pin(entries(store, objects(1, 4, 0, PARTS))):
            store.put(NAMESPACE, longer)
            assert there(store, 1) == 8
        assert len(entries(store, longer)) == 6


def test_gc_by_age(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("spillcache.store.gc._STEPS_OBJECTS", (3,))
    with BlockStore.open(config(tmp_path)) as store:
        put(store, 1)
        clock.offset_s = 500
        put(store, 2)
        clock.offset_s = 700
        plan = BlockStore.plan_gc(tmp_path, max_age_s=600)
        assert (plan.objects, plan.aged_objects) == (8, 8)
        done = store.gc(max_age_s=600)
        assert (done.objects, done.aged_objects) == (8, 8)
        assert (there(store, 1), there(store, 2)) == (0, 8)
        assert BlockStore.plan_gc(tmp_path, max_age_s=600).objects == 0


def test_it_costs_what_goes_and_not_what_there_is(tmp_path, clock, monkeypatch):
    """Keys that are looked at: those that go, and one in each rank that stays."""
    with BlockStore.open(config(tmp_path)) as store:
        put(store, 1)
        clock.offset_s = 500
        for seed in range(2, 40):
            put(store, seed)
        looked = []
        plain = Catalog.evictable_from

        def counting(self, start):
            for key in plain(self, start):
                looked.append(key)
                yield key

        monkeypatch.setattr(Catalog, "evictable_from", counting)
        oldest = clock.now_ns() - 100 * NS
        gone = store._opened.index.write(lambda c: evict_older(c, oldest, lambda _: False, 1 << 40))
        assert len(gone.places) == 8
        assert len(looked) < 30


def test_uses_count_when_the_system_s_clock_goes_back(tmp_path, monkeypatch):
    """The store's clock does not, so a use must not seem older than what was written before it."""
    ahead = time.time_ns() + 10**18
    with BlockStore.open(config(tmp_path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: ahead)
            store.put(NAMESPACE, objects(1, 1))
            store.put(NAMESPACE, objects(2, 1))
        store.touch(NAMESPACE.id, objects(1, 1)[0].block)
        (first,), (second,) = (entries(store, objects(seed, 1)) for seed in (1, 2))
        assert first.last_use < second.last_use
        store.gc()
        store.namespaces()
        (first,), (second,) = (entries(store, objects(seed, 1)) for seed in (1, 2))
        assert first.last_use > second.last_use

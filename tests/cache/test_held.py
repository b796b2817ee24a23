"""What the tiers hold, told: RAM and disk as one, bounded, and never a disk that is out of use."""

import time

import pytest
from cache_tools import BLOCK, NS, SIZE, OpenCache, WatchedStore, chain, offer

from spillcache.cache.held import HeldBlock
from spillcache.cache.order import Order
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import BlockHash
from spillcache.errors import StoreIndexError
from spillcache.state import Part


def told(cache: PrefixCache, most: int = 100) -> dict[BlockHash, HeldBlock]:
    return {each.hash: each for each in cache.facts(most).blocks}


def test_ram_is_told_as_it_is(open_cache: OpenCache) -> None:
    cache, c = open_cache(), chain(3)
    assert cache.facts(10).complete
    offer(cache, c)
    cache.offer(c, 3, {Part.KV: b"tail"})
    cache.used(c)
    found = told(cache)
    assert found.keys() == {*c.hashes, c.hash_of(3)}
    middle, tail = found[c.hashes[1]], found[c.hash_of(3)]
    assert abs(middle.last_use - time.time()) < 60
    middle.last_use = 0.0
    assert middle == HeldBlock(NS.id, c.hashes[1], c.hashes[0], 1, BLOCK, 0.0, SIZE + Part.KV)
    assert (tail.parent, tail.index, tail.tokens, tail.ram_bytes) == (c.hashes[2], 3, 1, 4)


def test_no_more_than_asked_for_and_the_latest(open_cache: OpenCache) -> None:
    cache, old, new = open_cache(), chain(3, 1), chain(3, 2)
    for each in (old, new):
        offer(cache, each)
        cache.used(each)
    assert told(cache, 3).keys() == set(new.hashes)
    assert not cache.facts(3).complete
    assert cache.facts(6).complete
    cache.used(old)
    assert told(cache, 2).keys() == set(old.hashes[:2]), "from the beginning on"


def test_what_ram_and_disk_have_is_one(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, c, later = open_cache(store), chain(2, 1), chain(2, 2)
    offer(cache, c)
    assert {(each.disk_bytes, each.unsaved) for each in told(cache).values()} == {(0, True)}
    cache.flush()
    offer(cache, later)
    found = told(cache)
    assert len(found) == 4
    for name in c.hashes:
        assert found[name].ram_bytes
        assert found[name].disk_bytes
        assert not found[name].unsaved
    assert {found[name].disk_bytes for name in later.hashes} == {0}


def test_after_a_restart_the_disk_has_all_of_it(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, c = open_cache(store), chain(3)
    offer(cache, c)
    cache.flush()
    with cache._lock:
        for block in reversed(c.hashes):
            cache._ram.remove(cache._ram._blocks[block])
    found = told(cache)
    assert found.keys() == set(c.hashes)
    assert {(each.ram_bytes, each.unsaved) for each in found.values()} == {(0, False)}
    assert [found[name].index for name in c.hashes] == [0, 1, 2]


def test_a_disk_that_is_out_of_use_is_not_asked(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, c = open_cache(store), chain(2)
    offer(cache, c)
    asked: list[int] = []

    def fails(most: int) -> None:
        asked.append(most)
        raise StoreIndexError("damaged")

    monkeypatch.setattr(store, "recent", fails)
    while not cache.disk_reason:
        held = cache.facts(10)
        assert len(held.blocks) == 2
        assert not held.complete
        assert len(asked) < 10
    count = len(asked)
    held = cache.facts(10)
    assert (len(held.blocks), held.complete, len(asked)) == (2, True, count)


def test_the_order_tells_those_used_last() -> None:
    order: Order[str] = Order()
    for at, key in enumerate("abcd"):
        order.add(key, float(at))
    for at, key in enumerate("bbaa"):  # used twice, so these stand elsewhere
        order.use(key, 10.0 + at)
    assert order.latest(10) == ["a", "b", "d", "c"]
    assert order.latest(3) == ["a", "b", "d"]
    assert order.latest(0) == []

"""The disk tier as matches see it: its failures are misses, and enough of them a pause."""

import pytest
from cache_tools import NS, PLAIN, WatchedStore, sample

from spillcache.cache.breaker import FAILURES, Breaker
from spillcache.cache.disk import DiskTier
from spillcache.chain import Chain
from spillcache.errors import CorruptBlock, ObjectMissing, StoreIOError
from spillcache.metrics import Metrics
from spillcache.state import Part


@pytest.fixture
def chain() -> Chain:
    return Chain(NS, PLAIN.block_tokens, list(range(10)))


def failing(*_: object, **__: object) -> None:
    raise StoreIOError("the disk is gone")


def test_without_a_store_there_is_nothing(chain: Chain, metrics: Metrics) -> None:
    disk = DiskTier(None, PLAIN, Breaker(), metrics)
    assert not disk.usable
    assert disk.find(chain, chain.hashes) is None
    assert disk.find_tails(chain, [0, 1], ()) == {}
    assert disk.find_next(chain, chain.hashes, Part.KV, [0, 1]) == ([], {})
    assert disk.pin([]) is None
    disk.touch(chain, [], {2: 0.0})


def test_what_fails_is_a_miss_and_then_a_pause(
    chain: Chain, metrics: Metrics, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskTier(store, PLAIN, Breaker(), metrics)
    assert list(disk.find(chain, chain.hashes) or ()) == [{}, {}]
    for name in ("find", "find_next", "tails"):
        monkeypatch.setattr(store, name, failing)
    assert disk.find(chain, chain.hashes) is None
    assert disk.find_tails(chain, [0, 1], ()) == {}
    assert disk.usable
    assert disk.find_next(chain, chain.hashes, Part.KV, [0, 1]) == ([], {})
    assert sample(metrics, "errors_total", code=StoreIOError.code) == FAILURES
    assert not disk.usable


def test_a_use_that_cannot_be_noted_is_a_failure(
    chain: Chain, metrics: Metrics, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskTier(store, PLAIN, Breaker(), metrics)
    monkeypatch.setattr(store, "touch", failing)
    disk.touch(chain, [], {2: 0.0})
    assert sample(metrics, "errors_total", code=StoreIOError.code) == 1


@pytest.mark.parametrize("error", [ObjectMissing("x"), CorruptBlock("x")])
def test_what_will_not_fail_again_is_no_reason_for_a_pause(
    error: ObjectMissing | CorruptBlock, metrics: Metrics, store: WatchedStore
) -> None:
    disk = DiskTier(store, PLAIN, Breaker(), metrics)
    for _ in range(FAILURES):
        disk.failed(error)
    assert disk.usable
    assert sample(metrics, "errors_total", code=error.code) == FAILURES


def test_a_use_of_no_blocks_is_none(chain: Chain, metrics: Metrics, store: WatchedStore) -> None:
    disk = DiskTier(store, PLAIN, Breaker(), metrics)
    disk.touch(chain, [], {2: 0.0, 0: 1.0})
    assert [name for name, _ in store.touched] == [chain.hashes[1]]

"""A disk that fails in every way, under the tiers: requests go on, the tier pauses and returns."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cache_tools import (
    PLAIN,
    OpenCache,
    cache_config,
    chain,
    each,
    objects,
    offer,
    open_store,
    reused,
    sample,
    state_of,
)

from spillcache.cache.breaker import FAILURES, PAUSE_S
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.errors import StoreError
from spillcache.metrics import Metrics
from spillcache.store.files import Files

CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EACCES)
WRITES = ("pwrite", "sync", "allocated_at", "free_bytes")
OLD = [chain(4, seed) for seed in range(3)]


class Failing(Files):
    """Real files; all calls of the methods named in ``failing`` fail."""

    failing: tuple[str, ...] = ()
    code = errno.EIO


def method_that_may_fail(name: str) -> Callable[..., object]:
    real = getattr(Files, name)

    def method(self: Failing, *args: object, **kwargs: object) -> object:
        if name in self.failing:
            raise OSError(self.code, os.strerror(self.code))
        return real(self, *args, **kwargs)

    return method


for each_name in (*WRITES, "pread", "create"):
    setattr(Failing, each_name, method_that_may_fail(each_name))


@pytest.fixture
def disk() -> Failing:
    return Failing()


@pytest.fixture
def filled(tmp_path: Path, disk: Failing) -> Iterator[object]:
    """A store with three chains of an earlier run."""
    with open_store(tmp_path, disk) as store:
        for c in OLD:
            store.put(c.namespace, objects(c))
        yield store


def request(cache: PrefixCache, c: Chain) -> int:
    """What serving one prompt does: restore what is there; if that fails, compute. How many blocks
    were reused, every byte of which was compared. Never raises.
    """
    match = cache.match(c)
    blocks = 0
    stream = cache.restore(match)
    try:
        for index, parts in each(stream):
            assert parts == state_of(c, index, list(parts))
            blocks = index + 1
    except StoreError:
        blocks = 0
    finally:
        stream.close()
        match.release()
    offer(cache, c, blocks)
    return blocks


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("failing", [WRITES, ("pread",), ("pread", *WRITES, "create")])
def test_requests_go_on_and_the_tier_comes_back(
    filled: object,
    disk: Failing,
    open_cache: OpenCache,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    failing: tuple[str, ...],
    code: int,
) -> None:
    cache = open_cache(filled)
    now = [1000.0]
    monkeypatch.setattr(cache._breaker, "_clock", lambda: now[0])
    disk.failing, disk.code = failing, code
    for turn in range(FAILURES + 2):
        request(cache, OLD[turn % 3])
        request(cache, chain(2, 100 + turn))
        cache.flush()
    failures = sum(
        sample(metrics, "errors_total", code=name) for name in ("KV_STORE_IO", "KV_STORE_FULL")
    )
    assert failures > 0
    # A disk that only fails to read is given up, too, though it takes writes.
    assert failures >= FAILURES
    assert cache.disk_reason.startswith("paused after KV_STORE_")
    disk.failing = ()
    now[0] += PAUSE_S + 1
    assert cache.disk_reason == ""
    cache.flush()
    for turn in range(FAILURES + 2):
        assert reused(cache, chain(2, 100 + turn)) == 2
    cache.close()


@pytest.mark.parametrize("code", CODES)
def test_nothing_on_disk_is_lost_by_failing_reads(
    tmp_path: Path, disk: Failing, metrics: Metrics, code: int
) -> None:
    with open_store(tmp_path, disk) as store:
        for c in OLD:
            store.put(c.namespace, objects(c))
    with open_store(tmp_path, disk) as store:
        cache = PrefixCache(cache_config(), PLAIN, store, metrics)
        disk.failing, disk.code = ("pread",), code
        assert [request(cache, c) for c in OLD] == [0, 0, 0]
        assert cache.disk_reason.startswith("paused")
        disk.failing = ()
        cache.close()
    with open_store(tmp_path, disk) as store:
        cache = PrefixCache(cache_config(), PLAIN, store, metrics)
        assert [request(cache, c) for c in OLD] == [4, 4, 4]
        cache.close()
    assert list((tmp_path / "store" / "quarantine").iterdir()) == []

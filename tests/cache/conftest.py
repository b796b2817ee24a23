"""Fixtures of the tiers: stores and caches that are closed in the end, and leave no thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_tools import (
    PLAIN,
    FaultyFiles,
    OpenCache,
    WatchedStore,
    cache_config,
    eventually,
    open_store,
    our_threads,
)

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.metrics import Metrics
from spillcache.state import Geometry


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not our_threads())


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def store(tmp_path: Path, files: FaultyFiles) -> Iterator[WatchedStore]:
    with open_store(tmp_path, files) as opened:
        assert isinstance(opened, WatchedStore)
        yield opened


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def open_cache(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> Iterator[OpenCache]:
    """``open_cache(store, geometry=…, **config)``: the RAM that it asks for, and a quick clock."""
    monkeypatch.setattr("spillcache.cache.prefix_cache.STAGING_BYTES", 0)
    monkeypatch.setattr("spillcache.cache.spill._TICK_S", 0.02)
    caches: list[PrefixCache] = []

    def opened(
        store: WatchedStore | None = None, geometry: Geometry = PLAIN, **config: object
    ) -> PrefixCache:
        caches.append(PrefixCache(cache_config(**config), geometry, store, metrics))
        return caches[-1]

    yield opened
    for cache in caches:
        cache.close()

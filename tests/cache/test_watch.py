"""Threads that end or hang on the disk are noticed, and nobody waits for them."""

import logging
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from cache_tools import (
    FaultyFiles,
    OpenCache,
    WatchedStore,
    chain,
    eventually,
    objects,
    offer,
    open_store,
    sample,
    state_of,
    taken,
)

from spillcache.cache import prefix_cache, spill, watch
from spillcache.cache.watch import Trouble, Watch
from spillcache.metrics import Metrics
from spillcache.state import Part


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TICK_S", 0.02)
    monkeypatch.setattr(spill, "STEP_S", 0.15)
    monkeypatch.setattr(prefix_cache, "STEP_S", 0.15)


class StuckFiles(FaultyFiles):
    """Reads or writes that wait until they are let go, as on a dead network disk."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.writing = threading.Event(), threading.Event()
        self.reading.set()
        self.writing.set()

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        assert self.reading.wait(30)
        return super().pread(fd, buffer, offset)

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        assert self.writing.wait(30)
        return super().pwrite(fd, buffer, offset)


@pytest.fixture
def files() -> StuckFiles:
    return StuckFiles()


def test_a_write_that_hangs_is_noticed_and_the_tier_pauses(
    store: WatchedStore,
    files: StuckFiles,
    open_cache: OpenCache,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = open_cache(store)
    c = chain(3)
    offer(cache, c)
    assert sample(metrics, "disk_up") == 1
    files.writing.clear()
    flushed = cache.flush(0.05)
    assert not flushed.complete
    with caplog.at_level(logging.INFO):
        # The tier is paused first, then its reason is told.
        eventually(lambda: cache.disk_reason == "a write has taken more than 0 s")
        assert not cache._breaker.closed
        assert "the disk tier does not work: a write has taken" in caplog.text
        assert sample(metrics, "disk_up") == 0
        began = time.monotonic()
        assert Counter(cache.match(c).sources()) == {"ram": 3}, "RAM serves on"
        flushed = cache.flush(30)
        assert time.monotonic() - began < 5, "nobody waits for a disk that is known to hang"
        assert (flushed.left, flushed.problem) == (3, "a write has taken more than 0 s")
        files.writing.set()
        eventually(lambda: not cache.disk_reason)
        assert "works again" in caplog.text
    assert sample(metrics, "disk_up") == 1
    assert cache.flush().left == 0
    assert all(store.find(c.namespace.id, c.hashes, (Part.KV,)))


def test_a_read_that_hangs_is_noticed(
    tmp_path: Path, files: StuckFiles, open_cache: OpenCache, metrics: Metrics
) -> None:
    c = chain(3)
    with open_store(tmp_path, files) as store:
        store.put(c.namespace, objects(c))
        cache = open_cache(store)
        files.reading.clear()
        match = cache.match(c)
        stream = cache.restore(match)
        assert stream.take(0.05) is None
        stream.close()  # its request goes on without it
        eventually(lambda: "a read has taken" in cache.disk_reason)
        assert cache.match(c).blocks == 0, "no other request waits for it"
        files.reading.set()
        eventually(lambda: cache._watch is not None and not cache._watch.reason)
        assert "paused after KV_STORE_IO" in cache.disk_reason, "until a read has worked"
        now = time.monotonic() + 61
        cache._breaker._clock = lambda: now
        match = cache.match(c)
        assert len(taken(cache.restore(match))) == 3
        cache.restored(match, match.blocks)
        assert cache.disk_reason == ""
        match.release()
        assert not store.unreleased
        cache.close()


def test_a_spill_thread_that_ends_is_noticed(
    store: WatchedStore,
    open_cache: OpenCache,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    cache = open_cache(store, ram_bytes=4000, spill_queue_bytes=1000)
    c = chain(2)
    offer(cache, c)
    store.bug = SystemExit()  # type: ignore[assignment]  # not even a bug that it survives
    cache.flush()
    eventually(lambda: "has ended" in cache.disk_reason)
    assert sample(metrics, "disk_up") == 0
    flushed = cache.flush(30)
    assert (flushed.left, flushed.complete) == (2, False)
    assert "has ended" in flushed.problem
    for seed in range(5):
        offer(cache, chain(1, 10 + seed))  # evicts: nothing waits for a thread that is not there
    assert cache._spiller is not None
    assert cache._spiller.leaving_bytes == 0
    cache.offer(c, 0, state_of(c, 0))
    cache.close()
    assert len(store.puts) > 0, "at the end another thread writes what is left"
    assert cache.disk_reason == ""


def test_a_disk_that_begins_to_hang_at_the_end_is_left_behind(
    store: WatchedStore, files: StuckFiles, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "HANG_S", 0.1)
    cache = open_cache(store, shutdown_spill_s=0.2)
    offer(cache, chain(3))
    files.writing.clear()
    lines: list[str] = []
    began = time.monotonic()
    cache.close(lines.append)
    assert time.monotonic() - began < 5
    assert lines[-1] == "the disk does not answer; what was not saved is lost"
    files.writing.set()


def test_a_bug_in_the_watch_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Trouble | Exception | None] = [ZeroDivisionError("a bug"), None]
    told: list[Trouble] = []
    trouble = Trouble("all is lost", "read", hangs=True)

    def ask() -> Trouble | None:
        answer = answers.pop(0) if answers else trouble
        if isinstance(answer, Exception):
            raise answer
        return answer

    watching = Watch(ask, told.append)
    try:
        eventually(lambda: len(told) > 2)
        assert watching.reason == "all is lost"
    finally:
        watching.close()
        watching.close()
    assert "a bug" in caplog.text
    assert caplog.text.count("all is lost") == 1, "said once"

"""No 24 hours see more bytes written than the limit."""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cache_tools import (
    NEVER_S,
    OpenCache,
    WatchedStore,
    chain,
    dropped,
    offer,
    open_store,
    reused,
)
from hypothesis import given
from hypothesis import strategies as st

from spillcache.cache.write_limit import NOTE, RETRY_S, WriteLimit
from spillcache.errors import StoreIOError
from spillcache.metrics import Metrics

DAY_S = 86400.0


class Notes(dict[str, bytes]):
    def change(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        self[key] = change(self.get(key))
        return self[key]


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def limit_of(bytes_day: int | None, notes: Notes | None = None) -> tuple[WriteLimit, Clock]:
    clock = Clock()
    return WriteLimit(
        bytes_day, (notes if notes is not None else Notes()).change, clock, clock
    ), clock


def write(limit: WriteLimit, size: int) -> bool:
    if not limit.allows(size):
        return False
    limit.wrote(size, size)
    return True


def test_without_a_limit_nothing_is_counted() -> None:
    notes = Notes()
    limit, _ = limit_of(None, notes)
    assert write(limit, 1 << 60)
    assert not limit.closed
    assert limit.status() == {}
    assert notes == {}


def test_a_days_worth_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    limit, clock = limit_of(1000)
    with caplog.at_level(logging.INFO):
        assert write(limit, 600)
        assert write(limit, 400)
        assert limit.status() == {"bytes_day": 1000, "written_bytes": 1000, "reached": False}
        for _ in range(3):
            assert not write(limit, 1)
        assert limit.status() == {"bytes_day": 1000, "written_bytes": 1000, "reached": True}
        assert limit.closed
        clock.now += RETRY_S
        assert not limit.closed, "somebody may ask again"
        assert not write(limit, 1)
        clock.now += DAY_S
        assert not write(limit, 1), "within the hour that began a day ago"
        clock.now += 3600
        assert write(limit, 1)
        assert limit.status() == {"bytes_day": 1000, "written_bytes": 1, "reached": False}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], "said once"


def test_only_what_was_written_counts() -> None:
    limit, _ = limit_of(1000)
    assert limit.allows(900)
    limit.wrote(900, 0)
    assert limit.allows(500)
    limit.wrote(500, 700)
    assert limit.status()["written_bytes"] == 700
    assert not limit.allows(301)
    assert limit.allows(300)


def test_it_is_remembered_and_shared() -> None:
    notes = Notes()
    one, _ = limit_of(1000, notes)
    other, _ = limit_of(1000, notes)
    assert write(one, 600)
    assert not write(other, 600)
    assert write(other, 400)
    assert not write(limit_of(1000, notes)[0], 1), "after a restart"
    assert write(limit_of(2000, notes)[0], 1), "with a higher limit"


@pytest.mark.parametrize("note", [b"", b"x", b"[]", b"7", b'{"a": 1}', b'{"5": "x"}', b"\xff"])
def test_a_note_that_makes_no_sense_counts_as_nothing(note: bytes) -> None:
    notes = Notes()
    notes[NOTE] = note
    limit, _ = limit_of(1000, notes)
    assert write(limit, 1000)
    assert not write(limit, 1)


def test_a_clock_that_was_wrong_does_not_stop_writing_for_years() -> None:
    notes = Notes()
    notes[NOTE] = json.dumps({int(4e9 // 3600): 5000}).encode()
    limit, clock = limit_of(1000, notes)
    assert write(limit, 1000)
    clock.now -= 7 * DAY_S
    assert write(limit, 1000)


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 30_000)), max_size=60))
def test_no_24_hours_see_more(steps: list[tuple[int, int]]) -> None:
    limit, clock = limit_of(1000)
    written: list[tuple[float, int]] = []
    for size, wait_s in steps:
        clock.now += wait_s
        if write(limit, size):
            written.append((clock.now, size))
        recent = [n for at, n in written if at > clock.now - DAY_S]
        assert sum(recent) <= 1000


def test_when_it_is_reached_nothing_is_written_and_what_is_there_is_read(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics, tmp_path: Path
) -> None:
    cache = open_cache(store, write_limit_bytes_day=20_000)
    early, late = chain(3, 1), chain(4, 2)
    offer(cache, early)
    assert cache.flush().left == 0
    offer(cache, late)
    flushed = cache.flush()
    assert (flushed.left, flushed.problem) == (4, "the daily limit")
    assert cache.write_limit()["reached"] is True
    assert reused(cache, late) == 4, "from RAM"
    cache.close()
    assert dropped(metrics, "limit") == 4
    again = open_cache(open_store(tmp_path), write_limit_bytes_day=20_000)
    assert reused(again, early) == 3
    assert reused(again, late) == 0


def test_what_ram_evicts_is_given_up_with_the_reason(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, write_limit_bytes_day=1, ram_bytes=8008, spill_queue_bytes=1001)
    for seed in range(5):
        offer(cache, chain(3, seed))
    cache.flush()
    for seed in range(5, 10):
        offer(cache, chain(3, seed))
    assert dropped(metrics, "limit") > 0
    assert store.written == []


def test_a_note_that_can_not_be_written_is_a_failure_of_the_disk(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise StoreIOError("no")

    monkeypatch.setattr(store, "change_note", fail)
    cache = open_cache(store, write_limit_bytes_day=1000_000, dirty_spill_s=NEVER_S)
    offer(cache, chain(3))
    assert cache.flush().left == 3
    assert store.written == []


def test_a_disk_that_fails_for_notes_as_well_holds_on_to_no_block(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was allowed is not written, and that can't be noted either."""
    cache = open_cache(store, write_limit_bytes_day=1000_000, dirty_spill_s=NEVER_S)
    assert cache._spiller is not None
    limit = cache._spiller.limit

    def put_each(_namespace: object, batches: Iterable[object], _done: object) -> None:
        assert list(batches)
        patched.setattr(limit, "_change_note", fail)
        raise StoreIOError("no")

    def fail(*_: object) -> bytes:
        raise StoreIOError("no")

    offer(cache, chain(3))
    with monkeypatch.context() as patched:
        patched.setattr(store, "put_each", put_each)
        assert cache.flush().left == 3
    assert cache.status()["pinned_blocks"] == 0
    assert all(not block.pins for block in cache._ram.all())
    assert cache.flush().left == 0

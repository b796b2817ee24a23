import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from cache_tools import (
    EIO,
    ENOSPC,
    NEVER_S,
    PLAIN,
    SIZE,
    WINDOWED,
    FaultyFiles,
    OpenCache,
    WatchedStore,
    chain,
    dropped,
    eventually,
    offer,
    our_threads,
    sample,
    state_of,
)

from spillcache.cache import spill
from spillcache.cache.breaker import FAILURES
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.state import Part

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY
BLOCK_BYTES = SIZE + K


def ram_of(blocks: int) -> dict[str, int]:
    """Settings under which ``blocks`` plain blocks are resident and one may wait for the disk."""
    queue = BLOCK_BYTES
    return {"ram_bytes": blocks * BLOCK_BYTES + queue, "spill_queue_bytes": queue}


def on_disk(store: WatchedStore, c: Chain, parts: tuple[Part, ...] = (K,)) -> list[set[Part]]:
    return [set(found) for found in store.find(c.namespace.id, c.hashes, parts)]


def unsaved(cache: PrefixCache) -> int:
    count = cache.status()["unsaved_blocks"]
    assert isinstance(count, int)
    return count


def test_eviction_writes_the_block_with_its_ancestors_parents_first(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, ram_bytes=8 * (BLOCK_BYTES), spill_queue_bytes=BLOCK_BYTES)
    old, new = chain(7, 1), chain(1, 2)
    offer(cache, old)
    assert not store.puts
    offer(cache, new)  # takes the place of the old chain's deepest block
    eventually(lambda: bool(store.puts))
    assert store.written == [(h, K) for h in old.hashes]
    [objects] = store.puts
    assert [o.parent for o in objects] == [old.parent(i) for i in range(7)]
    assert [bytes(o.payload) for o in objects] == [state_of(old, i)[K] for i in range(7)]
    eventually(lambda: unsaved(cache) == 1)
    assert cache.status()["blocks"] == 7, "six of the old chain, clean now, and the new one"


def test_an_idle_conversation_is_written_and_a_busy_one_is_not(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, idle_spill_s=0.3)
    idle, busy = chain(2, 1), chain(2, 2)
    offer(cache, idle)
    offer(cache, busy)
    deadline = time.monotonic() + 10
    while not store.puts:
        cache.used(busy)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert store.written == [(h, K) for h in idle.hashes]


def test_what_is_dirty_for_long_is_written_however_busy(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, dirty_spill_s=0.3)
    busy = chain(2)
    began = time.monotonic()
    offer(cache, busy)
    while not store.puts:
        cache.used(busy)
        assert time.monotonic() < began + 10
        time.sleep(0.01)
    assert time.monotonic() - began >= 0.3
    assert store.written == [(h, K) for h in busy.hashes]


def test_a_busy_conversation_is_busy_as_a_whole(store: WatchedStore, open_cache: OpenCache) -> None:
    """Its first blocks are old, and yet it does not rest: its last one is new."""
    cache = open_cache(store, idle_spill_s=0.4)
    busy = chain(400)
    began = time.monotonic()
    for block in range(busy.blocks):
        cache.offer(busy, block, state_of(busy, block))
        if time.monotonic() - began > 1.5:
            break
        time.sleep(0.01)
    assert not store.puts
    eventually(lambda: len(store.written) == block + 1)
    assert len(store.puts) == 1, "once it rests, all of it"


def test_what_a_resting_and_a_busy_conversation_share_is_written_once(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, idle_spill_s=0.3)
    idle, busy = chain(5, 1, shared=3), chain(5, 2, shared=3)
    offer(cache, idle)
    offer(cache, busy, 3)
    deadline = time.monotonic() + 10
    while not store.puts:
        cache.used(busy)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert store.written == [(h, K) for h in idle.hashes], "with what it shares"
    cache.flush()
    assert store.written[5:] == [(h, K) for h in busy.hashes[3:]]


def test_when_one_block_is_dirty_for_long_the_whole_conversation_is_written(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    """So that a busy one costs a write a minute, and not one for each of its blocks."""
    cache = open_cache(store, dirty_spill_s=0.5)
    busy, offered = chain(400), 0
    while len(store.puts) < 3:
        cache.offer(busy, offered, state_of(busy, offered))
        offered += 1
        assert offered < busy.blocks
        time.sleep(0.02)
    sizes = [len(objects) for objects in store.puts]
    assert sum(sizes) >= offered - 3, sizes
    assert min(sizes) > 5, "each took all that there was"
    assert store.written == [(h, K) for h in busy.hashes[: sum(sizes)]]


@pytest.mark.parametrize("reason", ["evict", "idle", "shutdown", "flush"])
def test_what_is_not_chosen_writes_nothing(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics, reason: str
) -> None:
    cache = open_cache(
        store,
        spill_on=frozenset({"evict", "idle", "shutdown"} - {reason}),
        idle_spill_s=NEVER_S if reason != "idle" else 0.0,
        dirty_spill_s=NEVER_S if reason != "idle" else 0.0,
        ram_bytes=3 * BLOCK_BYTES if reason == "evict" else 100 * BLOCK_BYTES,
        spill_queue_bytes=BLOCK_BYTES,
    )
    for seed in range(4):
        offer(cache, chain(1, seed))
    time.sleep(0.1)
    assert not store.puts
    assert dropped(metrics, "off") == (2 if reason == "evict" else 0)
    cache.close()
    assert len(store.written) == {"evict": 2, "shutdown": 0}.get(reason, 4)


def test_what_ram_evicts_is_written_between_two_conversations_of_a_flush(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    """It waits in little room; a long flush must not make it overflow."""
    cache = open_cache(store, ram_bytes=24 * BLOCK_BYTES, spill_queue_bytes=3 * BLOCK_BYTES)
    chains = [chain(1, seed) for seed in range(22)]
    for c in chains[:21]:
        offer(cache, c)
    store.gate.clear()
    flush = threading.Thread(target=cache.flush)
    flush.start()
    assert store.putting.wait(10)
    offer(cache, chains[21])  # chains[0] leaves
    store.gate.set()
    flush.join(10)
    order = [objects[0].block for objects in store.puts]
    assert order.index(chains[0].hashes[0]) == 1


def test_a_flush_tells_what_became_of_it(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache
) -> None:
    cache = open_cache(store, WINDOWED, min_tokens=8)
    offer(cache, chain(1, 7))  # too short to count
    offer(cache, chain(3, 1))
    flushed = cache.flush()
    assert (flushed.blocks, flushed.left, flushed.complete) == (3, 0, True)
    assert flushed.size_bytes > 3 * (2 * SIZE)
    assert flushed.problem == ""
    again = cache.flush()
    assert (again.blocks, again.size_bytes, again.left) == (0, 0, 0)
    offer(cache, chain(2, 2))
    files.write_error = EIO
    flushed = cache.flush()
    assert (flushed.blocks, flushed.left, flushed.complete) == (0, 2, True)
    assert flushed.problem == "KV_STORE_IO"
    for _ in range(FAILURES):
        flushed = cache.flush()
    assert flushed.problem.startswith("paused after KV_STORE_IO")
    assert flushed.left == 2


def test_a_flush_of_what_the_disk_has_no_room_for_says_so(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store)
    c = chain(3)
    cache.offer(c, 2, state_of(c, 2))  # its parent is nowhere
    flushed = cache.flush()
    assert (flushed.left, flushed.problem) == (
        1,
        "there is no room, or the blocks before them are gone",
    )


def test_a_flush_keeps_its_time_and_the_writing_goes_on(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store)
    offer(cache, chain(3))
    store.gate.clear()
    began = time.monotonic()
    flushed = cache.flush(0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert (flushed.complete, flushed.left, flushed.problem) == (False, 3, "")
    store.gate.set()
    eventually(lambda: unsaved(cache) == 0)


def test_without_a_disk_a_flush_has_nothing_to_do(open_cache: OpenCache) -> None:
    cache = open_cache()
    offer(cache, chain(3))
    assert cache.flush().left == 0


def test_flush_returns_when_all_is_on_disk(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store, geometry=WINDOWED)
    first, second = chain(3, 1), chain(2, 2)
    offer(cache, first)
    offer(cache, second)
    cache.flush()
    assert on_disk(store, first, (K, W)) == [{K, W}] * 3
    assert on_disk(store, second, (K, W)) == [{K, W}] * 2
    assert unsaved(cache) == 0
    assert [o.part for o in store.puts[0]] == [K, K, W, W], "long runs of kv; the hottest first"
    cache.flush()
    assert len(store.puts) == 2, "there was nothing more to write"


def test_flush_does_not_wait_for_a_thread_that_died(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    cache = open_cache(store)
    offer(cache, chain(1))
    store.gate.clear()
    store.bug = SystemExit()  # type: ignore[assignment]  # not even a bug that it survives
    flushes = [threading.Thread(target=cache.flush) for _ in range(2)]
    flushes[0].start()
    assert store.putting.wait(10)
    flushes[1].start()
    time.sleep(0.05)
    store.gate.set()
    for flush in flushes:
        flush.join(10)
        assert not flush.is_alive()
    assert not [name for name in our_threads() if "spill" in name.split("-")[-1]]
    cache.flush()


def test_a_flush_that_meets_a_close_returns(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store)
    offer(cache, chain(1))
    store.gate.clear()
    first = threading.Thread(target=cache.flush)
    first.start()
    assert store.putting.wait(10)
    late = threading.Thread(target=cache.flush)
    late.start()
    time.sleep(0.05)
    closing = threading.Thread(target=cache.close)
    closing.start()
    time.sleep(0.05)
    store.gate.set()
    for thread in (first, late, closing):
        thread.join(10)
        assert not thread.is_alive()


def test_a_block_is_written_once_however_many_reasons_come_together(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(
        store,
        WINDOWED,
        ram_bytes=40 * (2 * SIZE + 3),
        spill_queue_bytes=5 * (2 * SIZE + 3),
        idle_spill_s=0.0,
        dirty_spill_s=0.0,
    )
    chains = [chain(6, seed, shared=3) for seed in range(12)]
    for c in chains:
        offer(cache, c)  # evicts, from the sixth on
        cache.flush()
    cache.close()
    counts = Counter(store.written)
    assert set(counts.values()) == {1}
    assert len(counts) == 2 * (3 + 12 * 3)


def test_a_full_queue_drops_what_waits_longest_and_decoding_goes_on(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, ram_bytes=24 * BLOCK_BYTES, spill_queue_bytes=3 * BLOCK_BYTES)
    store.gate.clear()
    chains = [chain(1, seed) for seed in range(28)]
    for c in chains[:22]:
        offer(cache, c)  # 21 are resident, three may wait
    assert store.putting.wait(10)
    began = time.monotonic()
    for c in chains[22:]:
        offer(cache, c)
    assert time.monotonic() - began < 1
    assert dropped(metrics, "queue") == 4
    assert cache.status()["blocks"] == 24
    assert sample(metrics, "evicted_objects_total", tier="ram") == 7
    store.gate.set()
    cache.flush()
    missing = [i for i, c in enumerate(chains) if not any(on_disk(store, c))]
    assert missing == [1, 2, 3, 4]


def test_of_a_chain_the_queue_drops_the_deepest(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, ram_bytes=24 * BLOCK_BYTES, spill_queue_bytes=3 * BLOCK_BYTES)
    store.gate.clear()
    first, deep = chain(1, 1), chain(6, 2)
    offer(cache, first)
    offer(cache, deep)
    for seed in range(14):
        offer(cache, chain(1, 3 + seed))
    offer(cache, chain(1, 50))
    assert store.putting.wait(10), "the first one is in the disk's hands"
    for seed in range(4):
        offer(cache, chain(1, 60 + seed))
    assert dropped(metrics, "queue") == 2
    store.gate.set()
    cache.flush()
    assert on_disk(store, deep) == [{K}] * 4 + [set()] * 2


def test_a_queue_that_cannot_drop_refuses(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, ram_bytes=24 * BLOCK_BYTES, spill_queue_bytes=BLOCK_BYTES)
    store.gate.clear()
    chains = [chain(1, seed) for seed in range(25)]
    for c in chains[:24]:
        offer(cache, c)
    assert store.putting.wait(10)
    offer(cache, chains[24])  # the one that waits is being written
    assert dropped(metrics, "queue") == 1
    store.gate.set()
    cache.flush()
    assert [any(on_disk(store, c)) for c in chains[:3]] == [True, False, True]


def test_one_block_may_wait_however_large(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store, ram_bytes=5 * BLOCK_BYTES, spill_queue_bytes=10)
    chains = [chain(1, seed) for seed in range(9)]
    for c in chains:
        offer(cache, c)
        assert cache.status()["bytes"] <= 5 * BLOCK_BYTES
        cache.flush()
    assert all(any(on_disk(store, c)) for c in chains)


def test_short_chains_are_not_written(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, min_tokens=12, **ram_of(4))
    short, long = chain(2, 1), chain(4, 2)
    offer(cache, short)
    cache.flush()
    assert not store.puts
    offer(cache, long, 0)
    cache.flush()
    assert store.written == [(h, K) for h in long.hashes]
    assert dropped(metrics, "short") == 2, "evicted and gone"
    cache.close()
    assert len(store.puts) == 1


@pytest.mark.parametrize("code", [EIO, ENOSPC])
def test_a_failing_disk_pauses_the_tier_and_blocks_are_written_later(
    store: WatchedStore,
    files: FaultyFiles,
    open_cache: OpenCache,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    cache = open_cache(store)
    now = [1000.0]
    monkeypatch.setattr(cache._breaker, "_clock", lambda: now[0])
    c = chain(3)
    offer(cache, c)
    files.write_error = code
    for failures in range(FAILURES):
        assert cache.disk_reason == ""
        cache.flush()
        assert not any(on_disk(store, c))
        assert unsaved(cache) == 3
        name = "KV_STORE_IO" if code == EIO else "KV_STORE_FULL"
        assert sample(metrics, "errors_total", code=name) == failures + 1
    assert cache.disk_reason.startswith("paused after KV_")
    assert cache.match(c).blocks == 3, "RAM still serves them"
    files.write_error = 0
    now[0] += 61
    assert cache.disk_reason == ""
    cache.flush()
    assert on_disk(store, c) == [{K}] * 3
    assert unsaved(cache) == 0
    assert sample(metrics, "spilled_blocks_total") == 3
    assert cache._breaker.reason == "", "all is well again"


def pinned(cache: PrefixCache) -> bool:
    with cache._lock:
        return any(block.pins for block in cache._ram._blocks.values())


def test_while_the_tier_is_paused_nothing_is_queued_or_due(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, idle_spill_s=0.0, **ram_of(4))
    files.write_error = EIO
    offer(cache, chain(4, 1))
    # The tier pauses a moment before the write that failed lets go of its blocks.
    eventually(lambda: bool(cache.disk_reason) and not pinned(cache))
    errors = sample(metrics, "errors_total", code="KV_STORE_IO")
    offer(cache, chain(2, 2))
    assert dropped(metrics, "paused") == 2
    time.sleep(0.1)
    assert sample(metrics, "errors_total", code="KV_STORE_IO") == errors


def test_a_leaving_block_that_cannot_be_written_is_dropped_and_its_memory_returns(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, WINDOWED, **{k: 4 * v for k, v in ram_of(2).items()})
    old, new = chain(3, 1), chain(3, 2)
    offer(cache, old)
    files.write_error = EIO
    offer(cache, new)
    assert cache._spiller is not None
    eventually(lambda: cache._spiller is not None and cache._spiller.leaving_bytes == 0)
    assert dropped(metrics, "failed") > 0
    with cache._lock:
        resident = sum(b.size for b in cache._ram._blocks.values())
        assert not any(b.leaving or b.pins for b in cache._ram._blocks.values())
    assert cache.status()["bytes"] == resident


def test_a_block_that_is_matched_while_it_leaves_goes_when_it_is_released(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, **ram_of(3))
    old = chain(3, 1)
    offer(cache, old)
    store.gate.clear()
    offer(cache, chain(1, 2))
    assert store.putting.wait(10)
    match = cache.match(old)
    assert Counter(match.sources()) == {"ram": 3}, "it is here until it is there"
    store.gate.set()
    cache.flush()
    assert on_disk(store, old) == [{K}] * 3
    assert [bytes(s.ram[K]) for s in match.steps] == [state_of(old, i)[K] for i in range(3)]
    assert cache.status()["blocks"] == 4
    match.release()
    assert cache.status()["blocks"] == 3
    assert cache._spiller is not None
    assert cache._spiller.leaving_bytes == 0
    assert Counter(cache.match(old).sources()) == {"ram": 2, "disk": 1}


def test_a_bug_in_the_thread_costs_one_job_not_the_tier(
    store: WatchedStore, open_cache: OpenCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(store)
    c = chain(2)
    offer(cache, c)
    store.bug = ZeroDivisionError("a bug")
    with caplog.at_level(logging.ERROR):
        cache.flush()
        eventually(lambda: "it goes on" in caplog.text)
    assert "ZeroDivisionError" in caplog.text
    assert not store.puts
    cache.flush()
    assert on_disk(store, c) == [{K}] * 2
    with cache._lock:
        assert not any(b.pins for b in cache._ram._blocks.values())


def test_a_bug_between_two_groups_unpins_the_second(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "GROUP_BYTES", 2 * BLOCK_BYTES)
    cache = open_cache(store)
    c = chain(5)
    offer(cache, c)
    store.bug = ZeroDivisionError("a bug")
    cache.flush()
    with cache._lock:
        assert not any(b.pins for b in cache._ram._blocks.values())
    cache.flush()
    assert [len(objects) for objects in store.puts] == [2, 2, 1]
    assert on_disk(store, c) == [{K}] * 5


def test_close_writes_the_hottest_first_and_says_so(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store)
    chains = [chain(2, seed) for seed in range(3)]
    for c in chains:
        offer(cache, c)
    for c in (chains[0], chains[2], chains[1]):
        cache.used(c)
        time.sleep(0.002)
    lines: list[str] = []
    cache.close(lines.append)
    firsts = [objects[0].block for objects in store.puts]
    assert firsts == [chains[1].hashes[0], chains[2].hashes[0], chains[0].hashes[0]]
    assert len(lines) == 3
    assert lines[0].startswith("saving conversation 1 of 3 (")
    assert not our_threads()
    cache.close(lines.append)
    assert len(lines) == 3


def test_at_the_end_a_paused_disk_is_tried_once_more(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store)
    chains = [chain(2, seed) for seed in range(3)]
    for c in chains:
        offer(cache, c)
    files.write_error = EIO
    cache.flush()
    assert cache.disk_reason.startswith("paused")
    files.write_error = 0
    cache.close()
    assert {h for h, _ in store.written} == {h for c in chains for h in c.hashes}


def test_at_the_end_a_disk_that_still_fails_is_not_tried_for_each_conversation(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store)
    for seed in range(5):
        offer(cache, chain(2, seed))
    files.write_error = EIO
    cache.flush()
    before = sample(metrics, "errors_total", code="KV_STORE_IO")
    lines: list[str] = []
    cache.close(lines.append)
    assert sample(metrics, "errors_total", code="KV_STORE_IO") == before + 1
    assert lines[-1] == "the disk fails: 4 of 5 conversations not saved"
    assert dropped(metrics, "paused") == 10


def test_close_keeps_its_deadline(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store, shutdown_spill_s=0.0)
    for seed in range(3):
        offer(cache, chain(2, seed))
    lines: list[str] = []
    cache.close(lines.append)
    assert lines == ["the deadline came first: 3 of 3 conversations not saved"]
    assert dropped(metrics, "deadline") == 6
    assert not store.puts


def test_a_long_job_stops_at_the_deadline_too(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One conversation of many groups is being written when the end comes."""
    monkeypatch.setattr(spill, "GROUP_BYTES", BLOCK_BYTES)
    cache = open_cache(store, shutdown_spill_s=0.2)
    offer(cache, chain(40))
    put_each = store.put_each

    def slow(namespace: Namespace, batches: Iterable[Any], done: Callable[..., None]) -> None:
        put_each(namespace, (time.sleep(0.05) or batch for batch in batches), done)  # type: ignore[func-returns-value]

    monkeypatch.setattr(store, "put_each", slow)
    flush = threading.Thread(target=cache.flush)
    flush.start()
    assert store.putting.wait(10)
    began = time.monotonic()
    cache.close()
    assert time.monotonic() - began < 1.0
    flush.join(10)
    assert 1 <= len(store.puts) < 20


def test_close_writes_what_waits_in_the_queue(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store, **ram_of(4))
    old = chain(4, 1)
    offer(cache, old)
    store.gate.clear()
    offer(cache, chain(1, 2))
    closing = threading.Thread(target=cache.close)
    closing.start()
    time.sleep(0.05)
    store.gate.set()
    closing.join(10)
    written = Counter(store.written)
    assert set(written.values()) == {1}
    assert set(written) >= {(h, K) for h in old.hashes}


def test_a_use_reaches_the_store_with_all_windows_that_it_needs(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, WINDOWED)
    c = chain(3)
    offer(cache, c)
    cache.used(chain(0))
    cache.used(c)
    assert store.touched == [(c.hashes[-1], WINDOWED.window_blocks)]


def test_a_touch_that_fails_is_counted(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store)
    c = chain(1)
    offer(cache, c)
    cache.flush()
    store.close()
    cache.used(c)
    assert sample(metrics, "errors_total", code="KV_METADATA_IO") == 1


def test_what_the_store_drops_is_counted(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache = open_cache(store)
    c = chain(3)
    cache.offer(c, 2, state_of(c, 2))  # its parent is nowhere
    cache.flush()
    assert dropped(metrics, "store") == 1
    assert sample(metrics, "spilled_blocks_total") == 0
    assert not any(on_disk(store, c))


def test_a_part_that_comes_later_is_written_later(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, PLAIN)
    c = chain(2)
    offer(cache, c)
    cache.flush()
    cache.offer(c, 0, state_of(c, 0, (K, B)))
    cache.flush()
    assert store.written == [(c.hashes[0], K), (c.hashes[1], K), (c.hashes[0], B)]


def test_nothing_is_due_by_itself(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store, idle_spill_s=NEVER_S, dirty_spill_s=NEVER_S)
    offer(cache, chain(3))
    time.sleep(0.2)
    assert not store.puts


def test_a_chain_whose_beginning_the_disk_evicted_is_written_again(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    """RAM thought it saved; the store drops what hangs on nothing."""
    cache, c = open_cache(store), chain(6)
    for block in range(4):
        cache.offer(c, block, state_of(c, block))
    cache.flush()
    assert found(store, c) == 4
    store.purge()
    for block in range(4, 6):
        cache.offer(c, block, state_of(c, block))
    cache.flush()
    assert found(store, c) == 6
    assert cache.status()["unsaved_blocks"] == 0


def test_where_ram_lacks_the_beginning_too_the_rest_is_given_up(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store), chain(6)
    for block in range(3, 6):
        cache.offer(c, block, state_of(c, block))
    cache.flush()
    assert found(store, c) == 0
    assert cache.status()["unsaved_blocks"] == 0, "not tried again and again"


def found(store: WatchedStore, c: Chain) -> int:
    return sum(bool(parts) for parts in store.find(c.namespace.id, c.hashes, (Part.KV,)))


def test_windows_that_a_restore_needs_go_with_their_kv(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store, WINDOWED), chain(40)
    offer(cache, c)
    cache.flush()
    put = [each for objects in store.puts for each in objects]
    assert {o.rank for o in put if o.part is K} == {0}
    late = [o.block_index for o in put if o.part is W and not o.rank]
    assert late == [14, 15, 30, 31, 38, 39]

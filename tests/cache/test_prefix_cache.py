import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cache_tools import (
    BLOCK,
    EIO,
    HYBRID,
    NS,
    PLAIN,
    RECURRENT,
    SIZE,
    WINDOWED,
    FaultyFiles,
    OpenCache,
    WatchedStore,
    cache_config,
    chain,
    damage,
    dropped,
    offer,
    open_store,
    restored,
    reused,
    sample,
    state_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillcache.cache.prefix_cache import STAGING_BYTES, PrefixCache
from spillcache.chain import Chain
from spillcache.config import MIB, CacheConfig
from spillcache.errors import CorruptBlock
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.state import Geometry, Part

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY
BLOCK_BYTES = SIZE + K
GEOMETRIES = [PLAIN, WINDOWED, HYBRID, RECURRENT]
IDS = ["plain", "windowed", "hybrid", "recurrent"]


def forget_ram(cache: PrefixCache, blocks: Sequence[bytes]) -> None:
    """As eviction would, block by block."""
    with cache._lock:
        for block in blocks:
            found = cache._ram.get(block)  # type: ignore[arg-type]
            assert found is not None
            cache._ram.remove(found)


# Which tier.


def test_what_ram_holds_asks_the_disk_nothing(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache
) -> None:
    cache = open_cache(store)
    c = chain(5)
    offer(cache, c)
    cache.flush()
    reads, finds = files.reads, store.finds
    for _ in range(3):
        match = cache.match(c)
        assert Counter(match.sources()) == {"ram": 5}
        assert restored(cache, match) == [state_of(c, i) for i in range(5)]
        cache.used(c)
    assert (files.reads, store.finds) == (reads, finds)
    assert not store.payloads


def test_a_prefix_may_be_split_over_the_tiers(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store)
    c = chain(6)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, [c.hashes[i] for i in (1, 4, 5)])
    match = cache.match(c)
    assert [step.source for step in match.steps] == ["ram", "disk", "ram", "ram", "disk", "disk"]
    assert Counter(match.sources()) == {"ram": 3, "disk": 3}
    assert restored(cache, match) == [state_of(c, i) for i in range(6)]
    assert len(store.payloads) == 3


def test_after_a_restart_all_comes_from_disk(tmp_path: Path, open_cache: OpenCache) -> None:
    c = chain(6)
    first = open_cache(open_store(tmp_path))
    offer(first, c)
    first.close()
    second = open_cache(open_store(tmp_path))
    assert Counter(second.match(c).sources()) == {"disk": 6}
    assert reused(second, c) == 6


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_every_geometry_comes_back_with_the_parts_that_it_needs(
    tmp_path: Path, open_cache: OpenCache, geometry: Geometry
) -> None:
    c = chain(5)
    first = open_cache(open_store(tmp_path), geometry)
    offer(first, c)
    ram = restored(first, first.match(c))
    first.close()
    second = open_cache(open_store(tmp_path), geometry)
    disk = restored(second, second.match(c))
    assert ram == disk
    assert len(disk) == 5
    for index, parts in enumerate(disk):
        wanted = {K} if geometry.has_kv else set()
        wanted |= {W} if geometry.window_blocks and index >= 3 else set()
        wanted |= {B} if geometry.has_boundary and index == 4 else set()
        assert parts == state_of(c, index, sorted(wanted))


def test_a_boundary_that_was_not_taken_shortens_the_match(
    open_cache: OpenCache,
) -> None:
    cache, c = open_cache(geometry=HYBRID), chain(6)
    for index in range(6):
        cache.offer(c, index, state_of(c, index, (K, B) if index in (1, 3) else (K,)))
    assert cache.match(c).blocks == 4
    assert cache.match(c, limit=3).blocks == 2
    assert cache.match(c, limit=1).blocks == 0
    assert restored(cache, cache.match(c)) == [
        *(state_of(c, i) for i in range(3)),
        state_of(c, 3, (K, B)),
    ]


def test_a_window_that_is_gone_shortens_the_match(open_cache: OpenCache) -> None:
    cache, c = open_cache(geometry=WINDOWED), chain(6)
    for index in range(6):
        cache.offer(c, index, state_of(c, index, (K,) if index == 4 else (K, W)))
    assert cache.match(c).blocks == 4


def test_parts_of_one_block_may_lie_on_both_tiers(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store, HYBRID), chain(2)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    for index in range(2):  # computed again, without a boundary
        cache.offer(c, index, state_of(c, index))
    match = cache.match(c)
    assert [(set(s.ram), set(s.disk)) for s in match.steps] == [({K}, set()), ({K}, {B})]
    assert restored(cache, match) == [state_of(c, 0), state_of(c, 1, (K, B))]
    assert cache.match(c, without=[c.hashes[1]]).blocks == 1
    store.finds = 0
    assert cache.match(c, limit=0).blocks == 0
    assert store.finds == 0


def test_a_block_that_needs_nothing_comes_with_its_successor(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store, RECURRENT), chain(3)
    cache.offer(c, 2, state_of(c, 2, (B,)))
    match = cache.match(c)
    assert Counter(match.sources()) == {"ram": 3}
    assert restored(cache, match) == [{}, {}, state_of(c, 2, (B,))]


def test_limits(open_cache: OpenCache) -> None:
    cache, c = open_cache(), chain(4)
    offer(cache, c)
    assert cache.match(c).blocks == 4
    assert cache.match(c, limit=2).blocks == 2
    assert cache.match(c, limit=99).blocks == 4
    c.truncate(4 * BLOCK)
    assert c.blocks == 4
    assert cache.match(c).blocks == 4, "its last token is taken back"
    assert cache.match(chain(0)).blocks == 0


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_only_a_prefix_above_what_is_there_already_is_of_use(
    tmp_path: Path, open_cache: OpenCache, geometry: Geometry, tier: str
) -> None:
    c = chain(6)
    cache = open_cache(open_store(tmp_path), geometry)
    for block in range(4):
        cache.offer(c, block, state_of(c, block, geometry.parts))
    if tier == "disk":
        cache.close()
        cache = open_cache(open_store(tmp_path), geometry)
    assert [cache.match(c, above=n * BLOCK).blocks for n in range(7)] == [4, 4, 4, 4, 0, 0, 0]


def test_above_a_boundary_that_comes_late(open_cache: OpenCache) -> None:
    """Without kv it is not the next block that a longer prefix needs."""
    cache, c = open_cache(geometry=RECURRENT), chain(6)
    cache.offer(c, 4, state_of(c, 4, (B,)))
    assert [cache.match(c, above=n * BLOCK).blocks for n in (0, 2, 4, 5)] == [5, 5, 5, 0]


def test_above_a_resident_conversation_one_block_is_looked_up(
    store: WatchedStore, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, c = open_cache(store), chain(6)
    offer(cache, c, 0)
    cache.flush()
    forget_ram(cache, c.hashes[4:])
    asked: list[Sequence[bytes]] = []
    real = store.find_next
    monkeypatch.setattr(
        store,
        "find_next",
        lambda ns, blocks, *args: asked.append(blocks) or real(ns, blocks, *args),
    )
    finds = store.finds
    assert cache.match(c, above=6 * BLOCK).blocks == 0
    assert (asked, store.finds) == ([[]], finds + 1)
    assert cache.match(c, above=4 * BLOCK).blocks == 6
    assert asked[1] == [c.hashes[4]]


def test_a_block_that_failed_is_not_used_again(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, c = open_cache(store), chain(4)
    offer(cache, c)
    cache.flush()
    assert cache.match(c, without=[c.hashes[1]]).blocks == 1
    forget_ram(cache, c.hashes[1:])
    assert cache.match(c).blocks == 4
    assert cache.match(c, without=[c.hashes[2]]).blocks == 2
    assert cache.match(c, without=c.hashes).blocks == 0


def test_damage_ends_a_restore_and_the_next_match_is_shorter(
    store: WatchedStore, tmp_path: Path, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache, c = open_cache(store), chain(4)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    damage(tmp_path, store.find(NS.id, c.hashes, [K])[2][K])
    with pytest.raises(CorruptBlock):
        restored(cache, cache.match(c))
    assert reused(cache, c) == 2
    assert sample(metrics, "errors_total", code="KV_SNAPSHOT_CORRUPT") == 1
    assert cache.disk_reason == "", "one bad block is no reason to pause"


def test_a_block_that_vanished_is_a_miss_and_no_fault_of_the_disk(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    cache, c = open_cache(store), chain(2)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    match = cache.match(c)
    assert store._opened is not None
    gone = match.steps[1].disk[K]
    store._opened.segments.free(store._opened.index.write(lambda catalog: catalog.remove(gone)))
    with caplog.at_level(logging.INFO, "spillcache.cache"), pytest.raises(Exception, match="evict"):
        restored(cache, match)
    assert [r.levelname for r in caplog.records if r.name == "spillcache.cache"] == ["INFO"]
    assert sample(metrics, "errors_total", code="KV_OBJECT_MISSING") == 1
    assert reused(cache, c) == 1


def test_a_store_that_fails_to_find_is_a_miss(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache, c = open_cache(store), chain(3)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes[1:])
    store.close()
    for failures in range(1, 4):
        match = cache.match(c)
        assert Counter(match.sources()) == {"ram": 1}
        match.release()
        assert sample(metrics, "errors_total", code="KV_METADATA_IO") == failures
    assert cache.disk_reason.startswith("paused after KV_")
    finds = store.finds
    assert cache.match(c).blocks == 1
    assert store.finds == finds, "paused: not even asked"


def test_read_errors_pause_the_tier(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store), chain(2)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    files.read_error = EIO
    for _ in range(3):
        with pytest.raises(Exception, match="nothing was deleted"):
            restored(cache, cache.match(c))
    assert "paused after KV_" in cache.disk_reason
    assert cache.match(c).blocks == 0


def test_failures_between_good_restores_are_not_in_a_row(
    store: WatchedStore, files: FaultyFiles, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store), chain(2)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    for _ in range(5):
        files.read_error = EIO
        with pytest.raises(Exception, match="nothing was deleted"):
            restored(cache, cache.match(c))
        files.read_error = 0
        match = cache.match(c)
        assert len(restored(cache, match)) == 2
        cache.restored(match, match.blocks)
        assert cache.disk_reason == ""


# Pins.


def test_a_match_is_not_evicted_while_it_is_held(open_cache: OpenCache, metrics: Metrics) -> None:
    cache, c = open_cache(ram_bytes=4 * BLOCK_BYTES), chain(4)
    offer(cache, c)
    first, second = cache.match(c), cache.match(c)
    other = chain(1, 2)
    for held in (first, second):
        offer(cache, other)
        assert cache.match(other).blocks == 0, "there is no room for it"
        held.release()
        held.release()
    assert dropped(metrics, "full") == 2
    assert [bytes(s.ram[K]) for s in first.steps] == [state_of(c, i)[K] for i in range(4)]
    offer(cache, other)
    assert cache.match(other).blocks == 1
    assert cache.match(c).blocks == 3


def test_what_a_match_does_not_use_is_not_pinned(open_cache: OpenCache) -> None:
    cache, c = open_cache(geometry=HYBRID), chain(3)
    for index in range(3):
        cache.offer(c, index, state_of(c, index, (K, B) if index == 0 else (K,)))
    match = cache.match(c)
    with cache._lock:
        pins = [b.pins for h in c.hashes if (b := cache._ram.get(h)) is not None]
    assert pins == [1, 0, 0]
    assert cache.status()["pinned_blocks"] == 1
    match.release()
    match.release()
    assert cache.status()["pinned_blocks"] == 0


def test_a_match_pins_what_is_on_disk_too(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, c = open_cache(store), chain(3)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes[1:])
    assert store._opened is not None
    pins = store._opened.pins
    one, two = cache.match(c), cache.match(c)
    one.release()
    one.release()
    assert [NS.id + h in pins for h in c.hashes] == [False, True, True]
    assert store.describe()["pinned_blocks"] == 2
    two.release()
    assert not any(NS.id + h in pins for h in c.hashes)
    assert store.describe()["pinned_blocks"] == 0


# In.


def test_wants_what_ram_lacks(open_cache: OpenCache) -> None:
    cache, c = open_cache(geometry=HYBRID), chain(2)
    assert cache.wants(c, 0)
    cache.offer(c, 0, state_of(c, 0))
    assert not cache.wants(c, 0)
    assert cache.wants(c, 0, boundary=True)
    cache.offer(c, 0, state_of(c, 0, (K, B)))
    assert not cache.wants(c, 0, boundary=True)


def test_an_offer_is_a_copy(open_cache: OpenCache) -> None:
    cache, c = open_cache(), chain(1)
    buffer = bytearray(state_of(c, 0)[K])
    cache.offer(c, 0, {K: memoryview(buffer)})
    buffer[:] = bytes(len(buffer))
    assert restored(cache, cache.match(c)) == [state_of(c, 0)]


def test_an_empty_offer_is_nothing(open_cache: OpenCache) -> None:
    cache, c = open_cache(), chain(1)
    cache.offer(c, 0, {})
    assert cache.status()["blocks"] == 0


def test_what_is_larger_than_ram_is_dropped(open_cache: OpenCache, metrics: Metrics) -> None:
    cache, c = open_cache(ram_bytes=SIZE), chain(1)
    offer(cache, c)
    assert dropped(metrics, "full") == 1
    assert cache.status()["bytes"] == 0


def test_a_part_that_finds_no_room_does_not_evict_its_own_block(
    open_cache: OpenCache, metrics: Metrics
) -> None:
    cache, c = open_cache(geometry=HYBRID, ram_bytes=SIZE + K), chain(1)
    cache.offer(c, 0, state_of(c, 0))
    cache.offer(c, 0, state_of(c, 0, (B,), SIZE - 10))
    assert dropped(metrics, "full") == 1
    with cache._lock:
        block = cache._ram.get(c.hashes[0])
        assert block is not None
        assert (set(block.parts), block.pins) == ({K}, 0)


def test_a_block_on_its_way_to_disk_is_not_offered_again(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store, ram_bytes=8 * BLOCK_BYTES, spill_queue_bytes=BLOCK_BYTES)
    old = chain(7, 1)
    offer(cache, old)
    store.gate.clear()
    offer(cache, chain(1, 2))
    assert store.putting.wait(10)
    blocks = cache.status()["blocks"]
    offer(cache, old, start=6)
    assert cache.status()["blocks"] == blocks
    store.gate.set()
    cache.flush()
    assert reused(cache, old) == 7


def test_cache_ram_0_without_a_disk_keeps_nothing(open_cache: OpenCache, metrics: Metrics) -> None:
    cache, c = open_cache(ram_bytes=0), chain(2)
    offer(cache, c)
    assert cache.match(c).blocks == 0
    assert dropped(metrics, "full") == 2


def test_cache_ram_0_with_a_disk_still_spills(
    tmp_path: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # STAGING_BYTES as it is
    c = chain(5)
    with_disk = PrefixCache(cache_config(ram_bytes=0), PLAIN, open_store(tmp_path))
    assert with_disk.status()["capacity_bytes"] == STAGING_BYTES
    offer(with_disk, c)
    with_disk.close()
    again = PrefixCache(cache_config(ram_bytes=0), PLAIN, open_store(tmp_path))
    assert Counter(again.match(c).sources()) == {"disk": 5}
    again.close()


def test_without_a_store_nothing_is_written(
    tmp_path: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache, c = open_cache(ram_bytes=4 * BLOCK_BYTES), chain(6)
    offer(cache, c)
    cache.flush()
    cache.used(c)
    status = cache.status()
    assert status["unsaved_blocks"] == 0, "nothing waits for a disk that is not there"
    assert cache.disk_reason == "no --cache-disk"
    assert not [t.name for t in threading.enumerate() if t.name.startswith("spillcache")]
    cache.close()
    cache.close()
    assert list(tmp_path.iterdir()) == []


def test_closed_twice_and_used_after(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, c = open_cache(store), chain(3)
    offer(cache, c)
    match = cache.match(c)
    cache.close()
    cache.close()
    assert store._opened is None
    match.release()
    cache.used(c)
    cache.flush()
    assert cache.match(c).blocks == 3, "RAM goes on; the disk is a miss"
    assert cache.match(chain(2, 9)).blocks == 0


def test_restored_is_counted_by_tier(
    store: WatchedStore, open_cache: OpenCache, metrics: Metrics
) -> None:
    cache, c = open_cache(store), chain(5)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes[3:])
    match = cache.match(c)
    tokens = cache.restored(match, 4)
    assert tokens == {"ram": 3 * BLOCK, "disk": BLOCK}
    match.release()
    for tier, blocks in (("ram", 3), ("disk", 1)):
        assert sample(metrics, "restored_blocks_total", tier=tier) == blocks
        assert sample(metrics, "restored_tokens_total", tier=tier) == blocks * BLOCK
        assert sample(metrics, "restored_bytes_total", tier=tier) == blocks * BLOCK_BYTES


# Whose bytes.


def test_two_conversations_that_take_turns_both_hit_every_time(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    """Loading an entry does not consume it, on any tier."""
    one, two = chain(4, 1, shared=2), chain(4, 2, shared=2)
    first = open_cache(open_store(tmp_path))
    for c in (one, two):
        offer(first, c)
    for _ in range(3):
        assert reused(first, one) == reused(first, two) == 4
    first.close()
    second = open_cache(open_store(tmp_path))
    for _ in range(3):
        assert reused(second, one) == reused(second, two) == 4


def test_an_identical_block_of_another_conversation_is_not_matched(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    """The same tokens at the same place, after others: another state."""
    cache = open_cache(store)
    one = Chain(NS, BLOCK, [1, 2, 3, 4, 50, 60, 70, 80, 9])
    two = Chain(NS, BLOCK, [1, 2, 3, 5, 50, 60, 70, 80, 9])
    offer(cache, one)
    cache.flush()
    assert cache.match(one).blocks == 2
    assert cache.match(two).blocks == 0
    cache.offer(two, 0, state_of(two, 0))
    assert reused(cache, two) == 1
    forget_ram(cache, one.hashes)
    assert Counter(cache.match(one).sources()) == {"disk": 2}
    assert cache.match(two).blocks == 1


def test_another_salt_or_namespace_never_matches(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache = open_cache(store)
    mine = chain(3, salt=b"tenant 1")
    offer(cache, mine)
    cache.flush()
    other = Namespace.of({"model": "test", "block_tokens": BLOCK, "tag": "x"})
    strangers = [
        chain(3),
        chain(3, salt=b"tenant 2"),
        chain(3, salt=b"tenant 1", namespace=other),
    ]
    for ram in (True, False):
        if not ram:
            forget_ram(cache, mine.hashes)
        assert cache.match(mine).blocks == 3
        assert [cache.match(stranger).blocks for stranger in strangers] == [0, 0, 0]


CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.config import MIB, CacheConfig, StoreConfig
from spillcache.namespace import Namespace
from spillcache.state import Geometry
from spillcache.store.block_store import BlockStore
store = BlockStore.open(StoreConfig(Path(sys.argv[1]), quota_bytes=64 * MIB, min_free_bytes=0))
cache = PrefixCache(CacheConfig(), Geometry(block_tokens=4), store)
namespace = Namespace.of({"model": "test", "block_tokens": 4})
tokens = np.array(json.loads(sys.argv[2]), np.uint32)
chain = Chain(namespace, 4, tokens, b"salt")
match = cache.match(chain)
stream = cache.restore(match)
digests = []
while not stream.done:
    block = stream.take(10)
    digests.append(bytes(next(iter(block.state.values()))).hex())
    block.release()
stream.close()
match.release()
print(json.dumps({"hashes": [h.hex() for h in chain.hashes], "payloads": digests}))
cache.close()
"""


def test_another_process_names_blocks_alike(tmp_path: Path, open_cache: OpenCache) -> None:
    """No random seed anywhere: what one process wrote another finds."""
    c = chain(3, salt=b"salt")
    cache = open_cache(open_store(tmp_path))
    offer(cache, c)
    cache.close()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "store"), json.dumps(c.tokens.tolist())],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(child.stdout)
    assert found["hashes"] == [h.hex() for h in c.hashes]
    assert found["payloads"] == [state_of(c, i)[K].hex() for i in range(3)]


# Any load.


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 8), st.integers(1, 3000), st.booleans()),
        max_size=40,
    ),
    st.integers(0, 20_000),
    st.booleans(),
)
def test_the_bound_holds_whatever_is_offered(
    open_cache: OpenCache,
    load: list[tuple[int, int, int, bool]],
    ram_bytes: int,
    hold: bool,
) -> None:
    """RAM alone: payloads and free buffers together never exceed what was granted."""
    cache = open_cache(None, WINDOWED, ram_bytes=ram_bytes)
    held = []
    for seed, blocks, size, keep in load:
        c = chain(blocks, seed, shared=seed % 3)
        for block in range(blocks):
            cache.offer(c, block, state_of(c, block, (K, W), size))
            tier = cache._ram
            assert tier.used_bytes + tier._pool.free_bytes <= ram_bytes
            assert tier.used_bytes == sum(b.size for b in tier._blocks.values())
        if keep and hold:
            held.append(cache.match(c))
    for match in held:
        match.release()
    for block in cache._ram._blocks.values():
        assert block.pins == 0


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    load=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 6), st.sampled_from([10, 900, 2500])),
        min_size=5,
        max_size=30,
    ),
    ram_bytes=st.integers(8_000, 40_000),
    queue_bytes=st.sampled_from([100, 2_000, 1 << 30]),
)
def test_the_bound_includes_what_waits_for_the_disk(
    open_cache: OpenCache,
    load: list[tuple[int, int, int]],
    ram_bytes: int,
    queue_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        cache = open_cache(store, PLAIN, ram_bytes=ram_bytes, spill_queue_bytes=queue_bytes)
        store.gate.clear()  # the disk stands still for the first half
        for number, (seed, blocks, size) in enumerate(load):
            if number == len(load) // 2:
                store.gate.set()
            c = chain(blocks, seed)
            for block in range(blocks):
                cache.offer(c, block, state_of(c, block, (K,), size))
                with cache._lock:
                    tier = cache._ram
                    assert tier.used_bytes + tier._pool.free_bytes <= ram_bytes
                    assert tier.used_bytes == sum(b.size for b in tier._blocks.values())
        store.gate.set()
        cache.flush()
        assert cache._spiller is not None
        with cache._lock:
            assert cache._spiller.leaving_bytes == 0
            assert not any(b.pins or b.leaving for b in cache._ram._blocks.values())
        cache.close()


@dataclass
class Model:
    """What was ever offered for a prefix: no other bytes may come back for it."""

    offered: dict[tuple[bytes, tuple[int, ...], Part], set[bytes]] = field(
        default_factory=lambda: defaultdict(set)
    )
    count: int = 0

    def payload(self, salt: bytes, tokens: tuple[int, ...], part: Part) -> bytes:
        """Bytes that were never seen before, as a computation in another batch may give."""
        self.count += 1
        fresh = self.count.to_bytes(4, "little") * 80
        self.offered[salt, tokens, part].add(fresh)
        return fresh


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(
    lambda bits: [token for bit in bits for token in (bit, 7, 7, bit)]
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "match", "match", "flush", "used", "reopen"]),
        PROMPTS,
        st.sampled_from([b"", b"tenant"]),
    ),
    min_size=4,
    max_size=30,
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=OPERATIONS, geometry=st.sampled_from(GEOMETRIES), ram=st.integers(1000, 8000))
def test_never_other_bytes_than_those_offered_for_that_prefix(
    open_cache: OpenCache,
    operations: list[tuple[str, list[int], bytes]],
    geometry: Geometry,
    ram: int,
) -> None:
    model = Model()
    config = {"ram_bytes": ram, "idle_spill_s": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        cache = open_cache(open_store(Path(folder)), geometry, **config)
        for name, tokens, salt in operations:
            c = Chain(NS, cache.geometry.block_tokens, np.array([*tokens, 9], np.uint32), salt)
            if name == "offer":
                for block in range(c.blocks):
                    prefix = tuple(tokens[: (block + 1) * BLOCK])
                    state = {p: model.payload(salt, prefix, p) for p in geometry.parts}
                    cache.offer(c, block, state)
            elif name == "match":
                check(cache, model, c, tokens, salt)
            elif name == "used":
                cache.used(c)
            elif name == "flush":
                cache.flush()
            else:
                cache.close()
                cache = open_cache(open_store(Path(folder)), geometry, **config)
        cache.close()


def check(cache: PrefixCache, model: Model, c: Chain, tokens: list[int], salt: bytes) -> None:
    match = cache.match(c)
    assert match.blocks <= cache.geometry.blocks_reusable(len(c))
    for index, parts in enumerate(restored(cache, match)):
        prefix = tuple(tokens[: (index + 1) * BLOCK])
        for part, payload in parts.items():
            assert payload in model.offered[salt, prefix, part]


def test_many_threads_at_once(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(
        store, WINDOWED, ram_bytes=60 * BLOCK_BYTES, idle_spill_s=0.0, spill_queue_bytes=20_000
    )
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(8):
                c = chain(6, seed + turn % 2, shared=2)
                reused(cache, c)
                offer(cache, c)
                cache.used(c)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    cache.flush()
    with cache._lock:
        assert not any(b.pins or b.leaving for b in cache._ram._blocks.values())
    assert store.unreleased == 0


def test_the_default_settings_open(tmp_path: Path) -> None:
    cache = PrefixCache(CacheConfig(ram_bytes=MIB), PLAIN)
    assert cache.status() == {
        "blocks": 0,
        "bytes": 0,
        "pooled_bytes": 0,
        "capacity_bytes": MIB,
        "unsaved_blocks": 0,
        "waiting_bytes": 0,
        "pinned_blocks": 0,
    }
    cache.close()


def test_without_a_disk_a_chain_larger_than_ram_keeps_its_beginning() -> None:
    """Evicting a block's own parent for it would leave it unreachable."""
    payload = {Part.KV: bytes(MIB)}
    cache = PrefixCache(CacheConfig(ram_bytes=4 * MIB), Geometry())
    chain = Chain(
        Namespace.of({"model": "x"}),
        cache.geometry.block_tokens,
        np.arange(64 * 6, dtype=np.uint32),
    )
    for block in range(6):
        cache.offer(chain, block, payload)
    match = cache.match(chain, limit=6)
    assert match.blocks == 4
    match.release()
    cache.close()


def test_what_was_used_before_is_touched_too(store: WatchedStore, open_cache: OpenCache) -> None:
    cache, first, longer = open_cache(store), chain(3, 1, shared=3), chain(5, 2, shared=3)
    offer(cache, first)
    cache.used(first)
    assert store.touched == [(first.hashes[2], 1)], "all of it is new"
    offer(cache, longer, 3)
    cache.used(longer)
    assert store.touched[1:] == [(longer.hashes[4], 1), (longer.hashes[2], 1)]
    cache.used(longer)
    assert store.touched[3:] == [(longer.hashes[4], 1)], "all of it was used before"


def test_a_restore_from_disk_tells_how_long_it_lay_there(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store), chain(4)
    offer(cache, c)
    cache.flush()
    forget_ram(cache, c.hashes)
    assert cache._ram.order.ahead_s == 0
    match = cache.match(c)
    cache.restored(match, match.blocks)
    match.release()
    assert 0 < cache._ram.order.ahead_s < 100


def test_of_an_engine_whose_state_cannot_be_moved_nothing_is_restored(
    open_cache: OpenCache,
) -> None:
    nothing = Geometry(block_tokens=64, has_kv=False)
    assert not nothing.parts
    cache = open_cache(None, nothing)
    assert cache.match(chain(4)).blocks == 0

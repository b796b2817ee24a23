"""Tails: the longest that a prompt goes on with, from RAM or from disk, and never a wrong one."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from cache_tools import (
    BLOCK,
    HYBRID,
    NS,
    PLAIN,
    RECURRENT,
    WINDOWED,
    OpenCache,
    Parts,
    WatchedStore,
    damage,
    open_store,
    restored,
)

from spillcache.cache.match import Match
from spillcache.cache.policy import needed, tail_places
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.tails import Ends
from spillcache.chain import Chain
from spillcache.errors import CorruptBlock
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore
from spillcache.store.tails import MOST_TAILS

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY
GEOMETRIES = [PLAIN, WINDOWED, HYBRID, RECURRENT]
IDS = ["plain", "windowed", "hybrid", "recurrent"]


def chain(*tokens: int, salt: bytes = b"") -> Chain:
    return Chain(NS, BLOCK, tokens, salt)


def payload(c: Chain, block: int, part: Part) -> bytes:
    return (c.hash_of(block) + bytes([part])) * 30


def state_of(c: Chain, block: int, parts: Sequence[Part]) -> Parts:
    return {part: payload(c, block, part) for part in parts}


def turn(cache: PrefixCache, c: Chain) -> None:
    """What the end of a turn leaves: blocks without boundaries, and a tail with all it has."""
    parts = cache.geometry.parts
    whole = [part for part in parts if part is not B]
    for block in range(c.blocks):
        if whole:
            cache.offer(c, block, state_of(c, block, whole))
    if len(c) % BLOCK:
        cache.offer(c, c.blocks, state_of(c, c.blocks, parts))
    cache.used(c)


def found(cache: PrefixCache, c: Chain) -> tuple[int, int]:
    """Tokens that come back, and how many of them from disk, once every byte was compared."""
    match = cache.match(c)
    count, disk = match.tokens, match.tokens_by_source().get("disk", 0)
    tail, blocks = match.steps[-1].tail_tokens if match.steps else 0, match.blocks
    said = Chain(NS, BLOCK, c.tokens[: (blocks - 1) * BLOCK + tail]) if tail else c
    for index, parts in enumerate(restored(cache, match)):
        assert parts == state_of(said, index, list(parts))
    return count, disk


SAID = tuple(range(100, 111))
"""Two blocks and three tokens."""


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_a_longer_prompt_goes_on_from_the_tail(
    tmp_path: Path, open_cache: OpenCache, geometry: Geometry, tier: str
) -> None:
    cache = open_cache(open_store(tmp_path), geometry)
    turn(cache, chain(*SAID))
    if tier == "disk":
        cache.close()
        cache = open_cache(open_store(tmp_path), geometry)
    disk = len(SAID) if tier == "disk" else 0
    for more in ([7], [7, 8], [7] * 9):
        assert found(cache, chain(*SAID, *more)) == (len(SAID), disk)
    # Not longer, or not the same: only whole blocks, which here lack a boundary on some.
    blocks = 0 if geometry.has_boundary else 2 * BLOCK
    for other in (SAID, SAID[:-1], (*SAID[:-1], 7, 7), (*SAID[:-2], 7, 7, 7, 7)):
        assert cache.match(chain(*other)).tokens == blocks
    assert cache.match(Chain(NS, BLOCK, (*SAID, 7), b"another's")).tokens == 0


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_before_the_first_block(tmp_path: Path, open_cache: OpenCache, tier: str) -> None:
    cache = open_cache(open_store(tmp_path))
    turn(cache, chain(1, 2))
    if tier == "disk":
        cache.close()
        cache = open_cache(open_store(tmp_path))
    assert cache.match(chain(1, 2, 3)).tokens == 2
    assert cache.match(chain(1, 2)).tokens == 0


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_the_longest_of_several(tmp_path: Path, open_cache: OpenCache, tier: str) -> None:
    cache = open_cache(open_store(tmp_path))
    base = SAID[:8]
    for end in ([1], [1, 2, 3], [1, 2], [9, 9, 9]):
        turn(cache, chain(*base, *end))
        cache.flush()
    if tier == "disk":
        cache.close()
        cache = open_cache(open_store(tmp_path))
    assert found(cache, chain(*base, 1, 2, 3, 4))[0] == 11
    assert found(cache, chain(*base, 1, 2, 3))[0] == 10
    assert found(cache, chain(*base, 1, 2, 7, 7))[0] == 10
    assert found(cache, chain(*base, 9, 9, 9, 1, 1))[0] == 11
    assert found(cache, chain(*base, 8, 8))[0] == 8


def test_a_whole_block_is_better_than_a_tail(open_cache: OpenCache) -> None:
    cache = open_cache()
    turn(cache, chain(*SAID))
    turn(cache, chain(*SAID, 1, 2))
    assert found(cache, chain(*SAID, 1, 2))[0] == 12
    assert found(cache, chain(*SAID, 1, 2, 3))[0] == 13
    assert found(cache, chain(*SAID, 2, 2))[0] == 8, "a slot that went on goes back to a block"


def test_no_more_than_a_few_are_kept_of_a_parent(tmp_path: Path, open_cache: OpenCache) -> None:
    cache, base = open_cache(open_store(tmp_path)), SAID[:8]
    tails = [chain(*base, n) for n in range(MOST_TAILS + 2)]
    for c in tails:
        turn(cache, c)
        cache.flush()
    kept = [cache.match(Chain(NS, BLOCK, (*c.tokens, 5))).tokens - 8 for c in tails]
    assert kept == [0, 0, *[1] * MOST_TAILS]
    assert cache.status()["blocks"] == 2 + MOST_TAILS
    for c in tails[:2]:
        turn(cache, c)
    cache.close()
    cache = open_cache(open_store(tmp_path))
    kept = [cache.match(Chain(NS, BLOCK, (*c.tokens, 5))).tokens - 8 for c in tails]
    assert kept == [1, 1, 0, 0, *[1] * (MOST_TAILS - 2)]


def test_one_that_was_outgrown_is_not_written(store: WatchedStore, open_cache: OpenCache) -> None:
    """Only the end of a conversation is of use, as in a live slot."""
    cache = open_cache(store)
    ends = [chain(*range(100, 100 + n)) for n in (6, 7, 11, 12, 15)]
    for c in ends:
        turn(cache, c)
    cache.flush()
    assert [o.block for objects in store.puts for o in objects if o.tail] == [ends[-1].hash_of(3)]
    assert cache.match(chain(*range(100, 107), 1, 1)).tokens == 4
    assert cache.status()["unsaved_blocks"] == 0
    assert cache.status()["blocks"] == 3 + 1


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
@pytest.mark.parametrize("restart", [False, True], ids=["on", "restart"])
@pytest.mark.parametrize("more", [[7], [7, 8, 9]], ids=["within", "past"])
def test_one_on_disk_goes_when_its_conversation_goes_on(
    tmp_path: Path, open_cache: OpenCache, geometry: Geometry, restart: bool, more: list[int]
) -> None:
    """After that a prompt that parts there goes back to a whole block, as a live slot does; but for
    states that no slot can go back to.
    """
    first = SAID[:-1]
    store = open_store(tmp_path)
    cache = open_cache(store, geometry)
    turn(cache, chain(*first))
    cache.flush()
    if restart:
        cache.close()
        store = open_store(tmp_path)
        cache = open_cache(store, geometry)
        match = cache.match(chain(*first, *more))
        assert match.tokens == len(first)
        cache.restored(match, match.blocks)
        match.release()
    later = chain(*first, *more)
    turn(cache, later)
    cache.close()
    cache = open_cache(open_store(tmp_path), geometry)
    kept = len(first) if geometry.has_boundary else 2 * BLOCK
    assert cache.match(chain(*first, 1, 1)).tokens == kept
    assert found(cache, chain(*later.tokens, 1))[0] == len(later)


def test_ends_are_bounded() -> None:
    ends = Ends()
    for n in range(5000):
        c = chain(n, n, n, n, 1)
        ends.add(c.parent(1), c.hash_of(1), 1)
    old, new = chain(0, 0, 0, 0, 1, 2), chain(4999, 4999, 4999, 4999, 1, 2)
    assert ends.take(old, 1, old.hash_of(1)) == []
    assert ends.take(new, 1, new.hash_of(1)) == [chain(4999, 4999, 4999, 4999, 1).hash_of(1)]
    assert ends.take(new, 1, new.hash_of(1)) == []
    for n in (4999, *range(MOST_TAILS)):
        ends.add(new.parent(0), chain(n).hash_of(0), 1)
    assert ends.take(new, 0, new.hash_of(0)) == [], "a parent's last few are known"
    assert len(ends.take(chain(MOST_TAILS - 1, 5), 0, new.hash_of(0))) == 1


def test_a_short_one_is_not_written(store: WatchedStore, open_cache: OpenCache) -> None:
    cache = open_cache(store, min_tokens=11)
    turn(cache, chain(*SAID[:10]))
    cache.flush()
    assert store.written == []
    turn(cache, chain(*SAID))
    cache.flush()
    assert len(store.written) == 3


def test_one_without_all_its_parts_is_not_kept(open_cache: OpenCache) -> None:
    cache, c = open_cache(geometry=WINDOWED), chain(*SAID)
    turn(cache, chain(*SAID[:8]))
    assert cache.wants(c, 2)
    cache.offer(c, 2, state_of(c, 2, [K]))
    assert cache.wants(c, 2)
    cache.offer(c, 2, state_of(c, 2, [K, W]))
    assert not cache.wants(c, 2)


def test_it_needs_the_windows_before_it(open_cache: OpenCache) -> None:
    """A tail of few tokens sees as many whole blocks as a prompt that ends with a block."""
    cache, c = open_cache(geometry=WINDOWED), chain(*SAID)
    cache.offer(c, 0, state_of(c, 0, [K]))
    cache.offer(c, 1, state_of(c, 1, [K, W]))
    cache.offer(c, 2, state_of(c, 2, [K, W]))
    assert cache.match(chain(*SAID, 1)).tokens == 0
    cache.offer(c, 0, state_of(c, 0, [W]))
    assert found(cache, chain(*SAID, 1))[0] == 11


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_where_a_tail_could_be(geometry: Geometry) -> None:
    """The rule, by trying: all parts of blocks that a tail needs are there."""
    options = [set(each) for n in range(3) for each in itertools.combinations((K, W), n)]
    for present in itertools.product(options, repeat=4):
        places = [
            n
            for n in range(5)
            if all(set(needed(geometry, i, n, ends=False)) <= present[i] for i in range(n))
        ]
        assert tail_places(present, geometry, 0) == places
        assert tail_places(present, geometry, 2) == [n for n in places if n >= 2]


def spilled(tmp_path: Path, open_cache: OpenCache) -> tuple[PrefixCache, WatchedStore]:
    cache = open_cache(open_store(tmp_path), WINDOWED)
    turn(cache, chain(*SAID))
    cache.close()
    store = open_store(tmp_path)
    return open_cache(store, WINDOWED), store


def test_a_damaged_one_is_done_without(tmp_path: Path, open_cache: OpenCache) -> None:
    cache, store = spilled(tmp_path, open_cache)
    match: Match = cache.match(chain(*SAID, 1))
    damage(tmp_path, match.steps[-1].disk[W])
    with pytest.raises(CorruptBlock):
        restored(cache, match)
    assert found(cache, chain(*SAID, 1)) == (8, 8)
    assert store.tails(NS.id, [chain(*SAID).parent(2)]) == [[]]
    assert len(list((tmp_path / "store/quarantine").iterdir())) == 1


def test_one_that_just_failed_is_not_used_again(tmp_path: Path, open_cache: OpenCache) -> None:
    cache, _ = spilled(tmp_path, open_cache)
    tail = chain(*SAID).hash_of(2)
    assert cache.match(chain(*SAID, 1), without={tail}).tokens == 8
    cache.doubts.add([tail])
    assert cache.match(chain(*SAID, 1)).tokens == 8
    cache.doubts.acquit([tail])
    assert cache.match(chain(*SAID, 1)).tokens == 11
    turn(cache, chain(*SAID))
    cache.doubts.add([tail])
    assert cache.match(chain(*SAID, 1)).tokens == 8, "RAM has forgotten it"
    cache.doubts.condemn(NS, [tail], "it made the engine fail")
    cache.flush()
    assert cache.match(chain(*SAID, 1)).tokens == 8


def test_those_of_a_block_that_failed_go_with_it(tmp_path: Path, open_cache: OpenCache) -> None:
    cache, store = spilled(tmp_path, open_cache)
    c = chain(*SAID)
    cache.doubts.add(c.hashes)
    cache.doubts.condemn(NS, c.hashes, "they made the engine fail")
    cache.flush()
    assert store.usage().objects == 0


def test_a_store_that_fails_to_find_tails_is_a_miss(
    tmp_path: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, store = spilled(tmp_path, open_cache)

    def fail(*_: object) -> None:
        BlockStore.tails(closed, NS.id, [])

    closed = open_store(tmp_path / "other")
    closed.close()
    monkeypatch.setattr(store, "tails", fail)
    assert cache.match(chain(*SAID, 1)).tokens == 8


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_above_what_is_live(tmp_path: Path, open_cache: OpenCache, tier: str) -> None:
    """A tail that ends where the live sequence does is of no use, a longer one is."""
    cache = open_cache(open_store(tmp_path))
    turn(cache, chain(*SAID))
    if tier == "disk":
        cache.close()
        cache = open_cache(open_store(tmp_path))
    c = chain(*SAID, 1, 2)
    assert [cache.match(c, above=n).tokens for n in (4, 8, 10, 11, 12)] == [11, 11, 11, 0, 0]


def test_pins_are_given_back(tmp_path: Path, open_cache: OpenCache) -> None:
    cache = open_cache(open_store(tmp_path))
    turn(cache, chain(*SAID))
    match = cache.match(chain(*SAID, 1))
    assert cache.status()["pinned_blocks"] == 3
    match.release()
    assert cache.status()["pinned_blocks"] == 0
    cache.match(chain(*SAID[:8], 1)).release()
    assert cache.status()["pinned_blocks"] == 0


def test_one_that_is_kept_after_its_turn_counts_as_used(
    store: WatchedStore, open_cache: OpenCache
) -> None:
    cache, c = open_cache(store), chain(*SAID)
    for block in range(c.blocks):
        cache.offer(c, block, state_of(c, block, cache.geometry.parts))
    cache.used(c)
    assert [name for name, _ in store.touched] == [c.hashes[-1]]
    before = [cache._ram.order._once[name] for name in c.hashes]
    name = c.hash_of(c.blocks)
    cache.offer(c, c.blocks, dict.fromkeys(cache.geometry.parts, b"tail"))
    cache.used_tail(c)
    assert [touched for touched, _ in store.touched][1:] == [name]
    assert cache._ram.order._once[name][1]
    assert [cache._ram.order._once[name] for name in c.hashes] == before, "used once, as before"

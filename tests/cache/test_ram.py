import subprocess
import sys
from pathlib import Path

from spillcache.cache.ram import BufferPool, RamBlock, RamTier
from spillcache.chain import BlockHash, Chain
from spillcache.namespace import Namespace
from spillcache.state import Part

NS = Namespace.of({"model": "x"})


def chain(blocks: int, seed: int = 0) -> Chain:
    return Chain(NS, 4, [seed] * 4 * blocks)


def fill(tier: RamTier, c: Chain, size: int = 100, *, save: bool = False) -> list[RamBlock]:
    blocks = [RamBlock(NS, c.hashes[i], c.parent(i), i) for i in range(c.blocks)]
    for block in blocks:
        tier.add(block, {Part.KV: bytes([block.index]) * size}, save=save)
    return blocks


def test_payloads_are_copies_and_bytes_are_counted() -> None:
    tier, c = RamTier(10_000), chain(1)
    source = bytearray(b"abc")
    block = RamBlock(NS, c.hashes[0], c.parent(0), 0)
    tier.add(block, {Part.KV: source}, save=True)
    source[:] = b"xyz"
    assert bytes(block.parts[Part.KV]) == b"abc"
    assert tier.used_bytes == block.size == 3
    assert block.unsaved == {Part.KV}
    tier.add(block, {Part.KV: b"new", Part.WINDOW: b"w"}, save=True)
    assert bytes(block.parts[Part.KV]) == b"abc", "the first copy stays"
    assert tier.used_bytes == 4
    tier.remove(block)
    assert tier.used_bytes == 0
    assert tier.get(c.hashes[0]) is None


def test_children_go_before_parents_and_old_chains_before_new() -> None:
    tier, old, new = RamTier(10_000), chain(3, 1), chain(3, 2)
    fill(tier, old)
    fill(tier, new)
    tier.touch(old.hashes, 1.0)
    tier.touch(new.hashes, 2.0)
    gone: list[BlockHash] = []
    while (victim := tier.victim()) is not None:
        gone.append(victim.hash)
        tier.remove(victim)
    assert gone == [*reversed(old.hashes), *reversed(new.hashes)]


def test_a_pinned_block_and_its_ancestors_stay() -> None:
    tier, c = RamTier(10_000), chain(3)
    blocks = fill(tier, c)
    blocks[1].pins = 1
    victim = tier.victim()
    assert victim is blocks[2]
    tier.remove(victim)
    assert tier.victim() is None


def test_a_leaving_block_is_found_until_it_is_removed() -> None:
    tier, c = RamTier(10_000), chain(2)
    blocks = fill(tier, c, save=True)
    tier.leave(blocks[1])
    assert tier.get(c.hashes[1]) is blocks[1]
    assert tier.victim() is blocks[0]
    assert list(tier.unsaved()) == blocks
    tier.remove(blocks[1])
    assert len(tier) == 1
    assert tier.victim() is blocks[0]


def test_a_parent_that_comes_after_its_child_goes_after_it() -> None:
    tier, c = RamTier(10_000), chain(2)
    parent, child = (RamBlock(NS, c.hashes[i], c.parent(i), i) for i in range(2))
    tier.add(child, {Part.KV: b"child"}, save=False)
    tier.add(parent, {Part.KV: b"parent"}, save=False)
    tier.touch(c.hashes[1:], 1.0)
    assert tier.victim() is child, "though the parent is the least recently used"
    tier.remove(child)
    assert tier.victim() is parent, "and then it can go"
    tier.remove(parent)
    assert tier.victim() is None
    assert len(tier) == 0


def test_the_pool_reuses_buffers_and_shrinks() -> None:
    pool = BufferPool()
    first = pool.take(b"abcd", 4)
    pool.give(first)
    assert pool.free_bytes == 4
    assert pool.take(memoryview(b"wxyz"), 4) is first
    assert bytes(first) == b"wxyz"
    pool.give(first)
    pool.shrink(1)
    assert pool.free_bytes == 0


def test_a_new_size_hands_others_back_before_it_is_made() -> None:
    pool = BufferPool()
    for buffer in [pool.take(bytes(size), 100) for size in (10, 20, 30)]:
        pool.give(buffer)
    pool.take(bytes(60), 100)
    assert 60 + pool.free_bytes <= 100
    assert pool.free_bytes == 30, "no more than it takes"


def test_a_pinned_block_that_is_removed_keeps_its_buffers_until_it_is_unpinned() -> None:
    tier, c = RamTier(10_000), chain(2)
    blocks = fill(tier, c, save=True)
    blocks[0].pins = 2
    view = blocks[0].parts[Part.KV]
    tier.remove(blocks[0])
    assert tier.get(c.hashes[0]) is None
    assert list(tier.unsaved()) == blocks[1:]
    assert tier.used_bytes == 200
    fresh = fill(tier, c.__class__(NS, 4, [0] * 4), save=True)[0]
    assert tier.get(c.hashes[0]) is fresh, "computed anew"
    tier.saved(blocks[0], Part.KV)
    assert set(tier.unsaved()) == {blocks[1], fresh}, "the old one's fate is not the new one's"
    tier.unpin(blocks[0])
    assert bytes(view) == bytes(100)
    assert tier.used_bytes == 300
    tier.unpin(blocks[0])
    assert tier.used_bytes == 200
    assert tier.pooled_bytes == 100


def test_free_buffers_count_against_the_capacity() -> None:
    tier, c = RamTier(300), chain(3)
    for block in fill(tier, c):
        tier.remove(block)
    tier.add(RamBlock(NS, c.hashes[0], c.parent(0), 0), {Part.KV: bytes(250)}, save=False)
    assert tier.used_bytes + tier._pool.free_bytes <= 300


def test_a_process_grows_by_no_more_than_the_bound() -> None:
    """Sizes of two kinds, six times as much as fits: neither pool nor allocator keeps more."""
    bound_bytes, script = 200_000_000, Path(__file__).parent / "resident_child.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(bound_bytes), "6"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    grown, used = map(int, ran.stdout.split())
    assert 0.98 * bound_bytes < used <= bound_bytes
    assert grown <= 1.01 * bound_bytes


def gone_in_order(tier: RamTier) -> list[BlockHash]:
    gone: list[BlockHash] = []
    while (victim := tier.victim()) is not None:
        gone.append(victim.hash)
        tier.remove(victim)
    return gone


def test_a_prefix_that_was_used_again_outlives_newer_one_off_prompts() -> None:
    tier, again, once = RamTier(10_000), chain(3, 1), chain(2, 2)
    fill(tier, again)
    assert tier.touch(again.hashes, 0.0) == 0, "all of it is new"
    longer = Chain(NS, 4, [1] * 4 * 3 + [7] * 4)
    tier.add(RamBlock(NS, longer.hashes[3], longer.parent(3), 3, last_use=100.0), {}, save=False)
    assert tier.touch(longer.hashes, 100.0) == 3
    fill(tier, once)
    tier.touch(once.hashes, 200.0)
    assert gone_in_order(tier) == [longer.hashes[3], *reversed(once.hashes), *again.hashes[::-1]]


def test_what_ram_does_not_have_may_have_been_used_before() -> None:
    tier, c = RamTier(10_000), chain(4)
    block = RamBlock(NS, c.hashes[3], c.parent(3), 3)
    tier.add(block, {Part.KV: b"x"}, save=False)
    assert tier.touch(c.hashes, 1.0) == 3, "restored from disk"
    assert tier.touch(c.hashes, 2.0) == 4

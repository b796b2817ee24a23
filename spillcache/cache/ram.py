"""The RAM tier: blocks in pooled buffers; who goes first is ``order``'s choice, children before
parents.

Not locked: ``PrefixCache`` guards it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spillcache.cache.order import Order
from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import BlockState, Buffer, Part


@dataclass(slots=True, eq=False)
class RamBlock:
    """One block in RAM. ``unsaved`` parts are not on disk yet; a pinned block is not evicted."""

    namespace: Namespace
    hash: BlockHash
    parent: BlockHash
    index: int
    parts: dict[Part, memoryview] = field(default_factory=dict)
    unsaved: set[Part] = field(default_factory=set)
    dirty_since: float = 0.0
    last_use: float = 0.0
    pins: int = 0
    leaving: bool = False
    """Evicted, and only here until it is on disk."""
    removed: bool = False
    """Nobody finds it any more; its buffers are held until the last pin goes."""
    tail: bytes = b""
    """The tokens (u32 little-endian) of a partial last block; empty for a whole block."""
    outgrows: tuple[BlockHash, ...] = ()
    """Tails that this block goes on from: no longer of use once it is there."""

    @property
    def tail_tokens(self) -> int:
        """How many tokens a tail has; 0 for a whole block."""
        return len(self.tail) // 4

    @property
    def size(self) -> int:
        """Payload bytes."""
        return sum(len(payload) for payload in self.parts.values())


class BufferPool:
    """Reuses buffers by size: fresh ones cost a page fault per 4 KiB, and payload sizes are few."""

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = defaultdict(list)
        self.free_bytes = 0

    def take(self, payload: Buffer, room_bytes: int) -> memoryview:
        """A buffer that holds a copy of ``payload``.

        ``room_bytes``: what it and the free ones may take together; where no free one has its size,
        others are handed back first, so that not even for a moment it is more.
        """
        size = len(payload)
        free = self._free.get(size)
        if free:
            self.free_bytes -= size
            buffer = free.pop()
        else:
            self.shrink(size + self.free_bytes - room_bytes)
            buffer = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        buffer[:] = memoryview(payload).cast("B")
        return buffer

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back; nobody else may hold it."""
        self._free[len(buffer)].append(buffer)
        self.free_bytes += len(buffer)

    def shrink(self, size: int) -> None:
        """Hand at least ``size`` free bytes back to the system, if there are that many."""
        for width, free in self._free.items():
            while free and size > 0:
                free.pop()
                self.free_bytes -= width
                size -= width
            if size <= 0:
                return


class RamTier:
    """Blocks by hash, within ``capacity`` bytes of payload (free pooled buffers included), if room
    is made before ``add``.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._pool = BufferPool()
        self._blocks: dict[BlockHash, RamBlock] = {}
        self.order: Order[BlockHash] = Order()
        self._children: Counter[BlockHash] = Counter()
        """By the parent's hash, whether or not the parent is here: it may come (back) later."""
        self._tails: defaultdict[BlockHash, dict[BlockHash, RamBlock]] = defaultdict(dict)
        """By the parent's hash, those that came first first."""
        self._dirty: dict[BlockHash, RamBlock] = {}
        """Those with unsaved parts, so that a look for them does not cost a look at all."""
        self._dirty_tails: dict[BlockHash, RamBlock] = {}
        """Those of them that are tails."""

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, block: BlockHash) -> RamBlock | None:
        """The block, or None; does not count as a use."""
        return self._blocks.get(block)

    def tails(self, parent: BlockHash) -> list[RamBlock]:
        """The tails that follow ``parent``, the one that came last last."""
        return list(self._tails[parent].values()) if parent in self._tails else []

    def unsaved_tails(self) -> Iterator[RamBlock]:
        """As ``unsaved``, of tails: a few, of the conversations of the last minute."""
        return iter(self._dirty_tails.values())

    def unsaved(self) -> Iterator[RamBlock]:
        """All blocks with parts that are not on disk, those that became so first first."""
        return iter(self._dirty.values())

    @property
    def pooled_bytes(self) -> int:
        """Free buffers, kept for the next blocks."""
        return self._pool.free_bytes

    def all(self) -> list[RamBlock]:
        """Every block that can be found, parents before children."""
        return sorted(self._blocks.values(), key=lambda block: block.index)

    def latest(self, most: int) -> list[RamBlock]:
        """Up to ``most`` blocks, the most recently used first; none that is about to leave."""
        return [self._blocks[name] for name in self.order.latest(most)]

    @property
    def dirty(self) -> int:
        """How many blocks have parts that are not on disk."""
        return len(self._dirty)

    def saved(self, block: RamBlock, *parts: Part) -> None:
        """These parts of ``block`` are on disk, or given up."""
        block.unsaved.difference_update(parts)
        if not block.unsaved and self._dirty.get(block.hash) is block:
            del self._dirty[block.hash]
            self._dirty_tails.pop(block.hash, None)

    def unsave(self, block: RamBlock) -> None:
        """Nothing of ``block`` is on disk any more."""
        block.unsaved.update(block.parts)
        self._soil(block)

    def _soil(self, block: RamBlock) -> None:
        self._dirty[block.hash] = block
        if block.tail:
            self._dirty_tails[block.hash] = block

    def add(self, block: RamBlock, state: BlockState, *, save: bool) -> None:
        """Copy the parts of ``state`` that are new into ``block`` and hold it, as last used at its
        ``last_use``; the room is made before.
        """
        for part, payload in state.items():
            if part in block.parts:
                continue
            block.parts[part] = self._pool.take(payload, self.capacity_bytes - self.used_bytes)
            self.used_bytes += len(payload)
            if save:
                block.unsaved.add(part)
                self._soil(block)
        if block.hash not in self._blocks:
            self._blocks[block.hash] = block
            self._children[block.parent] += 1
            if block.tail:
                self._tails[block.parent][block.hash] = block
        self.order.add(block.hash, block.last_use)

    def touch(self, chain: Sequence[BlockHash], now: float) -> int:
        """Count a use of a chain, given from its root on: its deepest block will go first.

        How many of its blocks were used before, as far as RAM knows: all but those at its end that
        are here and new.
        """
        for block in map(self._blocks.get, chain):
            if block is not None and not block.leaving:
                block.last_use = now
        return self.order.use_chain(chain, now)

    def victim(self) -> RamBlock | None:
        """The block to evict next: the first in order without children here, unpinned."""
        blocks, children = self._blocks, self._children
        first = self.order.first(lambda h: h not in children and not blocks[h].pins)
        return None if first is None else blocks[first]

    def leave(self, block: RamBlock) -> None:
        """Take ``block`` out of the choice of victims; it stays until ``remove``."""
        block.leaving = True
        self.order.forget(block.hash)
        self._orphan(block)

    def remove(self, block: RamBlock) -> None:
        """Have nobody find ``block`` any more, nor write it; its buffers are reused when the last
        pin goes. Nobody else may hold a view of them.
        """
        del self._blocks[block.hash]
        if not block.leaving:
            self.order.forget(block.hash)
            self._orphan(block)
        if block.tail:
            del self._tails[block.parent][block.hash]
            if not self._tails[block.parent]:
                del self._tails[block.parent]
        self.saved(block, *block.parts)
        block.removed = True
        if not block.pins:
            self._recycle(block)

    def unpin(self, block: RamBlock) -> None:
        """Take one pin away."""
        block.pins -= 1
        if block.removed and not block.pins:
            self._recycle(block)

    def _recycle(self, block: RamBlock) -> None:
        for payload in block.parts.values():
            self.used_bytes -= len(payload)
            self._pool.give(payload)
        block.parts.clear()

    def _orphan(self, block: RamBlock) -> None:
        self._children[block.parent] -= 1
        if not self._children[block.parent]:
            del self._children[block.parent]

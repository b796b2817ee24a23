"""Which blocks the tiers hold, as facts that stay true when the blocks are gone: for people."""

import time
from dataclasses import dataclass

from spillcache.cache.ram import RamTier
from spillcache.chain import BlockHash
from spillcache.store.recent import RecentBlocks


@dataclass(slots=True)
class HeldBlock:
    """A block, or a tail. Sizes: payload bytes, on disk as stored; 0 where it is not."""

    namespace_id: bytes
    hash: BlockHash
    parent: BlockHash
    index: int
    """Its place in its chain: how many blocks come before it."""
    tokens: int
    last_use: float
    """Seconds since 1970."""
    ram_bytes: int = 0
    disk_bytes: int = 0
    unsaved: bool = False
    """RAM has something of it that the disk lacks."""


@dataclass(frozen=True, slots=True)
class Held:
    """The blocks that were used most recently, and whether these are all."""

    blocks: list[HeldBlock]
    complete: bool


def held_in_ram(ram: RamTier, most: int, block_tokens: int) -> Held:
    """Facts of up to ``most`` blocks in RAM; under the lock of the tier."""
    since = time.time() - time.monotonic()
    blocks = [
        HeldBlock(
            namespace_id=block.namespace.id,
            hash=block.hash,
            parent=block.parent,
            index=block.index,
            tokens=block.tail_tokens or block_tokens,
            last_use=since + block.last_use,
            ram_bytes=block.size,
            unsaved=bool(block.unsaved),
        )
        for block in ram.latest(most)
    ]
    return Held(blocks, len(ram) <= most)


def with_disk(held: Held, recent: RecentBlocks) -> Held:
    """Those in RAM and those on disk; what both have is one."""
    known = {(block.namespace_id, block.hash): block for block in held.blocks}
    for stored in recent.blocks:
        block = known.setdefault(
            (stored.namespace_id, stored.block),
            HeldBlock(
                namespace_id=stored.namespace_id,
                hash=stored.block,
                parent=stored.parent,
                index=stored.index,
                tokens=stored.tokens,
                last_use=stored.last_use,
            ),
        )
        block.disk_bytes = stored.stored_bytes
        block.last_use = max(block.last_use, stored.last_use)
    return Held(list(known.values()), held.complete and recent.complete)

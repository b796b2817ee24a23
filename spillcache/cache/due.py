"""Which dirty chains are to be written now, or at all. Pure: no clock, no I/O; whoever uses it
locks what it reads.
"""

from collections.abc import Iterable, Sequence

from spillcache.cache.ram import RamBlock
from spillcache.chain import BlockHash
from spillcache.config import CacheConfig
from spillcache.state import Geometry


class Due:
    """The choice by ``--cache-min-tokens`` and by time. Times are seconds of any one clock."""

    def __init__(self, config: CacheConfig, geometry: Geometry) -> None:
        self._config = config
        self._block_tokens = geometry.block_tokens

    def ends(self, dirty: Sequence[RamBlock], now: float) -> list[RamBlock]:
        """The ends of conversations that rest, or that have a block which waited long enough."""
        idle, longest = self._config.idle_spill_s, self._config.dirty_spill_s
        late: set[BlockHash] = set()
        for block in sorted(dirty, key=lambda block: block.index):
            if now - block.dirty_since >= longest or block.parent in late:
                late.add(block.hash)
        return [b for b in self.leaves(dirty) if b.hash in late or now - b.last_use >= idle]

    def leaves(self, dirty: Sequence[RamBlock]) -> list[RamBlock]:
        """The ends of dirty chains, hottest first; short chains are not worth a write."""
        parents = {block.parent for block in dirty}
        leaves = [block for block in dirty if block.hash not in parents and self.long_enough(block)]
        return sorted(leaves, key=lambda block: -block.last_use)

    def worth_writing(self, dirty: Iterable[RamBlock]) -> list[RamBlock]:
        """All dirty blocks but those of short chains."""
        parents: set[BlockHash] = set()
        found: list[RamBlock] = []
        for block in sorted(dirty, key=lambda block: -block.index):
            if block.hash in parents or self.long_enough(block):
                parents.add(block.parent)
                found.append(block)
        return found

    def long_enough(self, block: RamBlock) -> bool:
        """Whether the chain that ends with ``block`` has ``--cache-min-tokens``."""
        size = self._block_tokens
        return block.index * size + (block.tail_tokens or size) >= self._config.min_tokens

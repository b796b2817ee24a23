"""What a slot file holds, in words that need no file."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spillcache.chain import Chain
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer


class SlotRecord(NamedTuple):
    """One part of a block, or of so many ``blocks`` from ``block`` on."""

    block: int
    blocks: int
    part: Part
    payload: memoryview


Run = Sequence[SlotRecord]
"""A few that follow one another, with all that follows of the last block."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """A conversation's tokens, and the parts of its blocks as they are in a file; the tail, if
    there is one, is the last. One thread at a time.

    Payloads are views of ``memory``, which it owns.
    """

    chain: Chain
    tokens: int
    private: bool
    file_bytes: int
    memory: AlignedBuffer = field(repr=False)
    runs: Callable[[], Generator[Run, None, None]] = field(repr=False)
    """Reads all blocks, from the first on; may be called again (``SlotBlocks.runs``). The file must
    still be open then.
    """

    @property
    def tail_tokens(self) -> int:
        """How many tokens follow the last whole block."""
        return self.tokens % self.chain.block_tokens

    @property
    def blocks(self) -> int:
        """How many blocks there are, the tail among them."""
        return -(-self.tokens // self.chain.block_tokens)

    def with_headroom(self, payload: memoryview, count: int) -> memoryview:
        """A payload of a run with ``count`` bytes before it that nobody needs any more: they were
        its record's header.
        """
        start = np.frombuffer(payload, np.uint8).ctypes.data - self.memory.array.ctypes.data
        return self.memory.view[start - count : start + len(payload)]

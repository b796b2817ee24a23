"""What a slot file holds, verified: in memory, or read and verified again where it is not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spillcache.chain import Chain
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer

Payloads = dict[Part, memoryview]
Run = tuple[int, Sequence[Payloads]]
"""The first block's index, and the payloads of a few that follow one another."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """Blocks as they are in a file; the tail, if there is one, is the last. One thread at a time.

    Payloads are views of ``memory``, which it owns.
    """

    chain: Chain
    parts: list[frozenset[Part]]
    """Which ones there are of every block."""
    tokens: int
    private: bool
    file_bytes: int
    memory: AlignedBuffer = field(repr=False)
    source: Callable[[], Iterator[Run]] = field(repr=False)

    @property
    def tail_tokens(self) -> int:
        """How many tokens follow the last whole block."""
        return self.tokens % self.chain.block_tokens

    def runs(self) -> Iterator[Run]:
        """All blocks, from the first on; may be called again. A run is valid until the second after
        it is asked for.

        Where memory does not hold the whole file, they are read and verified again, and must be
        what they were: raises SlotFileIOError. The file must still be open then.
        """
        return self.source()

    def with_headroom(self, payload: memoryview, count: int) -> memoryview:
        """A payload of a run with ``count`` bytes before it that nobody needs any more: they were
        its record's header.
        """
        start = np.frombuffer(payload, np.uint8).ctypes.data - self.memory.array.ctypes.data
        return self.memory.view[start - count : start + len(payload)]

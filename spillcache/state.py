"""The parts that a block's state is made of, and what an engine says about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

Buffer = bytes | bytearray | memoryview
"""Payload bytes; opaque to everyone but the engine that made them."""


class Part(IntEnum):
    """A kind of state that a block may carry. The numbers are on disk: never reuse one."""

    KV = 1
    """Attention layers that see everything: needed for every block of a prefix."""
    WINDOW = 2
    """Sliding-window layers: needed for the last ``Geometry.window_blocks`` blocks."""
    BOUNDARY = 3
    """Recurrent state right after the block: needed at the end of the prefix, exactly."""


HEADROOM_BYTES = 8
"""What an engine wants before a payload that it reads or writes where it lies."""

BlockState = Mapping[Part, Buffer]
"""One block's state: its parts' payloads. Who hands it over says who owns the buffers."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What makes a prefix restorable on this engine; all that the tiers need to know of a model.

    A prefix of n blocks is restorable when there is ``KV`` of all n (if ``has_kv``), ``WINDOW`` of
    the last ``window_blocks``, and ``BOUNDARY`` at block n - 1 (if ``has_boundary``).
    """

    block_tokens: int = 64
    has_kv: bool = True
    window_blocks: int = 0
    has_boundary: bool = False
    boundary_stride: int = 0
    """In blocks: an engine with boundaries exports one at every multiple, besides those at ends.

    0: only at ends.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that a block of this engine may carry."""
        wanted = (
            (Part.KV, self.has_kv),
            (Part.WINDOW, self.window_blocks > 0),
            (Part.BOUNDARY, self.has_boundary),
        )
        return tuple(part for part, present in wanted if present)

    def blocks_reusable(self, prompt_tokens: int) -> int:
        """The most blocks that a prompt can take from a cache.

        Its last token is always computed. Where the state can't go back by a token (recurrent), so
        is the block that this token completes.
        """
        return (prompt_tokens - self.has_boundary) // self.block_tokens if prompt_tokens else 0

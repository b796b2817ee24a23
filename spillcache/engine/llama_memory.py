"""One context's memory: the cells of its sequences, and their state as llama.cpp writes it.

``copy`` only tags cells in a unified cache, so it takes no memory and little time. Engine's thread.
Source: llama.h, ``llama_memory_seq_*`` and ``llama_state_seq_*_ext``.
"""

import ctypes
from collections.abc import Sequence
from mmap import mmap
from typing import Any

from spillcache.engine.llama_sections import HEADER_BYTES
from spillcache.errors import StateRejected
from spillcache.state import Buffer

PARTIAL_ONLY = 1
"""LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: header and second section."""
_FIRST_BYTES = 1 << 20
_GROWTH_BYTES = 4 << 20
"""The most that our buffer grows by beyond what is needed."""


class LlamaMemory:
    """See the module. Positions are those of tokens in their sequence; sizes are bytes."""

    def __init__(self, api: Any, context: Any) -> None:
        self._api = api
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._buffer = bytearray(_FIRST_BYTES)

    # Cells.

    def clear(self) -> None:
        """Forget all sequences; data stays where it is, and is not used."""
        self._api.llama_memory_clear(self._memory, False)

    def copy(self, source: int, target: int, start: int = -1, stop: int = -1) -> None:
        """Have ``target`` share the positions ``start`` … ``stop`` - 1 of ``source``, or all."""
        self._api.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def cut(self, sequence: int, length: int) -> bool:
        """Forget the positions from ``length`` on; False where llama.cpp can't."""
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def oldest(self, sequence: int) -> int:
        """The first position that is still there, of those that windows see; -1: none."""
        return int(self._api.llama_memory_seq_pos_min(self._memory, sequence))

    # State.

    def sizes(self, sequence: int) -> tuple[int, int]:
        """(bytes of the whole blob, bytes of its header and second section)."""
        full, partial = self._size(sequence, 0), self.partial_size(sequence)
        # A plain cache ignores the flag: then there is no second section.
        return full, partial if partial < full else HEADER_BYTES

    def partial_size(self, sequence: int) -> int:
        """Bytes of the blob that has only the second section."""
        return self._size(sequence, PARTIAL_ONLY)

    def _size(self, sequence: int, flags: int) -> int:
        return int(self._api.llama_state_seq_get_size_ext(self._context, sequence, flags))

    def read(self, sequence: int, size: int, offset: int = 0, flags: int = 0) -> memoryview:
        """State of ``sequence`` in our buffer from ``offset`` on; valid until it is used again.

        Raises StateRejected.
        """
        self._grow(offset + size)
        view = memoryview(self._buffer)[offset : offset + size]
        self.read_into(sequence, view, flags)
        return view

    def read_into(self, sequence: int, view: memoryview, flags: int = 0) -> None:
        """State of ``sequence``, of just ``view``'s length, in the caller's memory; raises
        StateRejected.
        """
        size = len(view)
        target = (ctypes.c_uint8 * size).from_buffer(view)
        count = self._api.llama_state_seq_get_data_ext(self._context, target, size, sequence, flags)
        if count != size:
            raise StateRejected(f"llama.cpp exported {count} of {size} bytes")

    def view(self, size: int) -> memoryview:
        """The first ``size`` bytes of our buffer, which ``read`` may have replaced by a larger
        one.
        """
        return memoryview(self._buffer)[:size]

    def write(self, sequence: int, pieces: Sequence[Buffer], flags: int = 0) -> None:
        """Replace ``sequence`` by the state whose blob is all ``pieces``; raises StateRejected."""
        size = sum(len(piece) for piece in pieces)
        self._grow(size)
        # Through a view: a bytearray would copy each piece twice.
        view, at = memoryview(self._buffer), 0
        for piece in pieces:
            view[at : at + len(piece)] = memoryview(piece).cast("B")
            at += len(piece)
        self.set(sequence, self._buffer, size, flags)

    def set(
        self, sequence: int, blob: bytearray | mmap | memoryview, size: int, flags: int = 0
    ) -> None:
        """As ``write``, from the first ``size`` bytes of one buffer."""
        source = (ctypes.c_uint8 * size).from_buffer(blob)
        count = self._api.llama_state_seq_set_data_ext(self._context, source, size, sequence, flags)
        if count != size:
            raise StateRejected(f"llama.cpp took {count} of {size} bytes")

    def _grow(self, size: int) -> None:
        if size > len(self._buffer):
            # A new one, not a resize: views of the old one may still be held.
            more = min(len(self._buffer), _GROWTH_BYTES)
            self._buffer = self._buffer + bytes(max(size - len(self._buffer), more))

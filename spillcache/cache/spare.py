"""Memory that was used once and is kept for the next use, within the RAM tier's bound, as long as
no block needs the room: memory that a process never used may be slow the first time. Any thread.
"""

import threading

from spillcache.cache.ram import RamTier
from spillcache.config import MIB
from spillcache.store.buffers import AlignedBuffer, rounded
from spillcache.store.format import PAGE_BYTES

_STEP_BYTES = 16 * MIB


class Spare:
    """At most one buffer. ``lock`` is the cache's, over ``ram``."""

    def __init__(self, ram: RamTier, lock: threading.Condition, most_bytes: int) -> None:
        """``most_bytes``: what blocks and the buffer may take together."""
        self._ram, self._lock = ram, lock
        self._most_bytes = most_bytes
        self._buffer: AlignedBuffer | None = None
        self._making = 0
        """Bytes that are on their way."""

    def take(self, size_bytes: int) -> AlignedBuffer | None:
        """The buffer, if it has that size; the caller owns it until ``keep``."""
        with self._lock:
            buffer = self._buffer
            if buffer is None or buffer.size < size_bytes:
                return None
            self._drop()
            return buffer

    def keep(self, buffer: AlignedBuffer) -> None:
        """Keep it, if there is room without letting any block go, in place of a smaller one; nobody
        else may hold a view of it.
        """
        with self._lock:
            if self._wants(buffer.size):
                self._drop()
                self._ram.reserve(buffer.size)
                self._buffer = buffer

    def make(self, size_bytes: int) -> None:
        """Use so much memory for the first time, and keep it, if there is room; takes a while."""
        size = rounded(size_bytes)
        with self._lock:
            if self._making or not self._wants(size):
                return
            self._making = size
            self._ram.reserve(size)
        buffer = AlignedBuffer(size)
        for at in range(0, size, _STEP_BYTES):
            if not self._making:  # a block needed the room
                return
            buffer.array[at : at + _STEP_BYTES : PAGE_BYTES] = 0
        with self._lock:
            if self._making:
                self._stop_making()
                self.keep(buffer)

    def go(self) -> bool:
        """Let go of all of it, for a block needs the room: whether there was any. Under the
        lock.
        """
        found = self._buffer is not None or self._making > 0
        self._drop()
        self._stop_making()
        return found

    def _wants(self, size_bytes: int) -> bool:
        """Whether there is room for so much without letting any block go, and it is more."""
        grows = size_bytes - (0 if self._buffer is None else self._buffer.size)
        return grows > 0 and self._ram.used_bytes + grows <= self._most_bytes

    def _drop(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._ram.reserve(-buffer.size)

    def _stop_making(self) -> None:
        size, self._making = self._making, 0
        self._ram.reserve(-size)

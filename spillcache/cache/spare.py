"""Memory that was used once and is kept for the next use, within the RAM tier's bound, as long as
no block needs the room: memory that a process never used may be slow the first time. Any thread.
"""

import threading

from spillcache.cache.ram import RamTier
from spillcache.store.buffers import AlignedBuffer, rounded
from spillcache.store.format import PAGE_BYTES


class Spare:
    """At most one buffer. ``lock`` is the cache's, over ``ram``."""

    def __init__(self, ram: RamTier, lock: threading.Condition, most_bytes: int) -> None:
        """``most_bytes``: what blocks and the buffer may take together."""
        self._ram, self._lock = ram, lock
        self._most_bytes = most_bytes
        self._buffer: AlignedBuffer | None = None

    def take(self, size_bytes: int) -> AlignedBuffer | None:
        """The buffer, if it has that size; the caller owns it until ``keep``."""
        with self._lock:
            buffer = self._buffer
            if buffer is None or buffer.size < size_bytes:
                return None
            self.go()
            return buffer

    def keep(self, buffer: AlignedBuffer) -> None:
        """Keep it, if there is room without letting any block go, in place of a smaller one; nobody
        else may hold a view of it.
        """
        with self._lock:
            if self._wants(buffer.size):
                self.go()
                self._ram.reserve(buffer.size)
                self._buffer = buffer

    def make(self, size_bytes: int) -> None:
        """Use so much memory for the first time, and keep it, if there is room; takes a while."""
        with self._lock:
            if not self._wants(rounded(size_bytes)):
                return
        buffer = AlignedBuffer(size_bytes)
        buffer.array[::PAGE_BYTES] = 0
        self.keep(buffer)

    def _wants(self, size_bytes: int) -> bool:
        """Whether there is room for so much without letting any block go, and it is more."""
        grows = size_bytes - (0 if self._buffer is None else self._buffer.size)
        return grows > 0 and self._ram.used_bytes + grows <= self._most_bytes

    def go(self) -> bool:
        """Let go of it, for a block needs the room: whether there was one. Under the lock."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._ram.reserve(-buffer.size)
        return buffer is not None

"""Page-aligned buffers for direct I/O, pooled, so that huge pages are faulted in only once."""

import contextlib
import mmap
import threading

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 << 20
_PAGE_BYTES = 4096
_LOOSEST_FIT = 4

Bytes = NDArray[np.uint8]


class AlignedBuffer:
    """Anonymous memory in whole huge pages; ``array`` and ``view`` cover all of it. Owned by who
    took it. Little, needed once, is had sooner in pages of the usual size: without ``huge``.
    """

    __slots__ = ("array", "size", "view")

    def __init__(self, size_bytes: int, *, huge: bool = True) -> None:
        page = HUGE_PAGE_BYTES if huge else _PAGE_BYTES
        self.size = rounded(size_bytes, page)
        # One page more than asked for, so that an aligned stretch of the whole size lies within.
        # Private: shared memory, which is mmap's default, gets no huge pages.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, self.size + page, flags=flags)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without huge pages says no: slower, no less right.
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, dtype=np.uint8)
        skip = -whole.ctypes.data % page
        self.array: Bytes = whole[skip : skip + self.size]
        self.view = memoryview(self.array)  # type: ignore[arg-type]  # numpy 2 for Python < 3.12 has no __buffer__


def rounded(size_bytes: int, page_bytes: int = HUGE_PAGE_BYTES) -> int:
    """What a buffer of ``size_bytes`` really takes."""
    return max(1, -(-size_bytes // page_bytes)) * page_bytes


class BufferPool:
    """Free buffers, kept up to ``keep_bytes``; any thread. What is beyond that goes back to the
    system.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._free: list[AlignedBuffer] = []

    @property
    def kept_bytes(self) -> int:
        """The bytes of the free buffers."""
        with self._lock:
            return sum(buffer.size for buffer in self._free)

    def take(self, size_bytes: int) -> AlignedBuffer:
        """A buffer of at least ``size_bytes``, its content undefined; the caller owns it until
        ``give``.
        """
        return self.find(size_bytes) or AlignedBuffer(size_bytes)

    def find(self, size_bytes: int) -> AlignedBuffer | None:
        """As ``take``, of the free ones, if one fits."""
        size = rounded(size_bytes)
        with self._lock:
            # What was given back last is still in the processor's caches.
            fitting = [b for b in reversed(self._free) if size <= b.size <= _LOOSEST_FIT * size]
            if fitting:
                best = min(fitting, key=lambda buffer: buffer.size)
                self._free.remove(best)
                return best
        return None

    def warm(self, count: int, size_bytes: int) -> None:
        """Fault in the pages of ``count`` buffers, which takes about a millisecond per MiB."""
        buffers = [self.take(size_bytes) for _ in range(count)]
        for buffer in buffers:
            buffer.array[::_PAGE_BYTES] = 0
            self.give(buffer)

    def give(self, buffer: AlignedBuffer) -> None:
        """Take a buffer back; nobody else may hold a view of it."""
        with self._lock:
            kept = sum(free.size for free in self._free)
            while self._free and kept + buffer.size > self._keep_bytes:
                kept -= self._free.pop(0).size
            if kept + buffer.size <= self._keep_bytes:
                self._free.append(buffer)

    def close(self) -> None:
        """Let go of the free buffers, and keep none from now on."""
        with self._lock:
            self._keep_bytes = 0
            self._free.clear()

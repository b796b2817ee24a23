"""A file's bytes on their way through memory: all of it at once, or a stretch that moves along.

Where memory holds the whole file, each byte has its own place. Otherwise places are used again, in
turn, once what they held was let go of; what would lie partly in the last place and partly in the
first is put together before the first, so that each view is of one piece.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from spillcache.config import MIB
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.format import PAGE_BYTES, padded
from spillcache.store.steps import Step, Steps

READ_BYTES = 2 * MIB
"""The most that one call reads: a place."""
IN_FLIGHT = 8
"""Reads that were begun, and whose bytes nobody has asked for yet."""

Fill = Callable[[memoryview, int], None]
"""Fills memory with the file's bytes from an offset on; raises OSError."""


def stretch_bytes(view_bytes: int, held_bytes: int) -> int:
    """The memory of a stretch of which ``held_bytes`` are in use at once, in views of up to
    ``view_bytes``, and a few places are read ahead.
    """
    return padded(view_bytes) + (-(-held_bytes // READ_BYTES) + 1 + IN_FLIGHT) * READ_BYTES


class Stretch:
    """See the module. One thread; the disk is read by those of ``steps``.

    ``view`` raises what ``Steps`` does.
    """

    def __init__(
        self,
        fill: Fill,
        steps: Sequence[Steps],
        memory: AlignedBuffer,
        size_bytes: int,
        *,
        doing: str,
        view_bytes: int,
        start: int = 0,
    ) -> None:
        """The file's ``size_bytes``, from ``start`` on, through ``memory``: all of it, or at least
        ``stretch_bytes``.
        """
        self._fill = fill
        self._steps = steps
        self._memory = memory
        self._size = size_bytes
        self._doing = doing
        whole = memory.size >= size_bytes
        self._front = 0 if whole else padded(view_bytes)
        chunks = -(-size_bytes // READ_BYTES)
        self._places = chunks if whole else (memory.size - self._front) // READ_BYTES
        self._next = start // READ_BYTES
        self._used = (self._next + self._places) * READ_BYTES
        """What is read after that goes to places that were used."""
        self._there = self._next * READ_BYTES
        self._free = self._there
        self._reads: deque[tuple[int, Step[None]]] = deque()

    def view(self, start: int, stop: int) -> memoryview:
        """These bytes, when they are there; valid until they are released. Starts ascend."""
        while self._there < stop:
            self._advance()
        first, last = start // READ_BYTES, max(start, stop - 1) // READ_BYTES
        place = first % self._places
        at = self._front + place * READ_BYTES + start % READ_BYTES
        if place + last - first >= self._places:
            count = (first - place + self._places) * READ_BYTES - start
            array, begin = self._memory.array, self._front - count
            array[begin : self._front] = array[at : at + count]
            at = begin
        return self._memory.view[at : at + stop - start]

    def release(self, stop: int) -> None:
        """Nobody needs what lies before ``stop``; without that, a stretch comes to its end."""
        self._free = stop

    def settle(self) -> None:
        """Return when nothing that was begun still writes to the memory, which may then be
        another's; raises what ``view`` does.
        """
        while self._reads:
            _, step = self._reads.popleft()
            step.wait()

    def _advance(self) -> None:
        """Read on, a few places ahead, and wait for the first of them."""
        most = self._free // READ_BYTES + self._places
        end = min(most, -(-self._size // READ_BYTES))
        while len(self._reads) < IN_FLIGHT and self._next < end:
            at, place = self._next * READ_BYTES, self._next % self._places
            count = min(READ_BYTES, self._size - at)
            read = partial(self._read, self._front + place * READ_BYTES, at, count)
            steps = self._steps[self._next % len(self._steps)]
            self._reads.append((at + count, steps.begin(read, self._doing)))
            self._next += 1
        stop, step = self._reads.popleft()
        step.wait()
        self._there = stop

    def _read(self, place: int, offset: int, count: int) -> None:
        if offset < self._used:  # a read into memory that is not there yet waits for each page
            self._memory.array[place : place + count : PAGE_BYTES] = 0
        self._fill(self._memory.view[place : place + count], offset)

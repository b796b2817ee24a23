"""How fast the disk gives back what is read from it, seen from the reads themselves."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows at one moment; the difference of two tells a speed."""

    done_bytes: int
    busy_s: float
    """How long at least one read was under way."""
    under_way_bytes: int
    """What the reads of this moment were asked for."""

    def since(self, earlier: "Reading") -> "Reading":
        """What was read between ``earlier`` and this, and is under way now."""
        return Reading(
            self.done_bytes - earlier.done_bytes,
            self.busy_s - earlier.busy_s,
            self.under_way_bytes,
        )


class ReadMeter:
    """Counts bytes, and the time in which there was a read to wait for. So neither the number of
    threads that read nor a reader who is in no hurry changes what it says of the disk. Any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reads = self._done_bytes = self._under_way_bytes = 0
        self._busy_s = self._busy_since = 0.0

    def began(self, size_bytes: int) -> None:
        """A read of ``size_bytes`` is under way; ``ended`` must follow."""
        with self._lock:
            if not self._reads:
                self._busy_since = self._clock()
            self._reads += 1
            self._under_way_bytes += size_bytes

    def ended(self, size_bytes: int, done_bytes: int) -> None:
        """It is over, and ``done_bytes`` of the ``size_bytes`` came."""
        with self._lock:
            self._reads -= 1
            self._under_way_bytes -= size_bytes
            self._done_bytes += done_bytes
            if not self._reads:
                self._busy_s += self._clock() - self._busy_since

    def read(self) -> Reading:
        """What it shows now."""
        with self._lock:
            now_s = self._clock() - self._busy_since if self._reads else 0.0
            return Reading(self._done_bytes, self._busy_s + now_s, self._under_way_bytes)

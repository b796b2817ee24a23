"""A disk as slow as one likes, for benchmarks and tests of what a slow one does to requests."""

import threading
import time
from collections.abc import Callable

from spillcache.store.files import Files


class ThrottledFiles(Files):
    """Reads take as long as on a disk that gives ``read_bytes_s`` bytes per second to all who read
    from it together; writes are as ever.
    """

    def __init__(
        self,
        read_bytes_s: float,
        *,
        direct: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(direct=direct)
        self.read_bytes_s = read_bytes_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        """See Files; one read after the other."""
        count = super().pread(fd, buffer, offset)
        with self._lock:
            now = self._clock()
            self._free_at = max(now, self._free_at) + count / self.read_bytes_s
            wait_s = self._free_at - now
        self._sleep(wait_s)
        return count

"""Work that nobody waits for, now and then, in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("spillcache.cache")

EVERY_S = 60.0


class Probe:
    """Runs one piece of work at a time, and none within ``EVERY_S`` of the last. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> bool:
        """Begin, if it is time; returns at once."""
        with self._lock:
            now = self._clock()
            too_soon = self._last is not None and now - self._last < EVERY_S
            if too_soon or (self._thread is not None and self._thread.is_alive()):
                return False
            self._last = now
            self._thread = threading.Thread(
                target=self._run, args=(work,), name="spillcache-probe", daemon=True
            )
            self._thread.start()
            return True

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    @staticmethod
    def _run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # nobody depends on it
            log.exception("a probe failed")

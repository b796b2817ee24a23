"""A pause for the disk tier when it keeps failing."""

import logging
import time
from collections.abc import Callable
from typing import Literal

from spillcache.errors import SpillcacheError

log = logging.getLogger("spillcache.cache")

Direction = Literal["read", "write"]

FAILURES = 3
PAUSE_S = 60.0
PAUSE_S_MAX = 3600.0


class Breaker:
    """Three failures in a row, of reads or of writes, pause the tier for 60 s; then one probe
    decides, and the pause doubles.

    Each direction has its own count: a disk that only fails to read takes writes all the while.
    Any thread: the worst that a race does is one probe more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[Direction, int] = {"read": 0, "write": 0}
        self._pause_s = PAUSE_S
        self._until = 0.0
        self.reason = ""
        """The code of what failed last; empty while all is well."""

    @property
    def closed(self) -> bool:
        """Whether the tier may be used now."""
        return self._clock() >= self._until

    def failed(self, error: SpillcacheError, direction: Direction) -> None:
        """Note a failure of the tier; what else fails within a pause does not prolong it."""
        if not self.closed:
            return
        self.reason = error.code
        self._failures[direction] += 1
        if self._failures[direction] >= FAILURES:
            self._pause(f"after {self._failures[direction]} failures in a row: {error}")

    def hangs(self, error: SpillcacheError, direction: Direction) -> None:
        """Note that the tier does not answer at all: it pauses at once."""
        if not self.closed:
            return
        self.reason = error.code
        self._failures[direction] = FAILURES
        self._pause(f"for it does not answer: {error}")

    def _pause(self, why: str) -> None:
        self._until = self._clock() + self._pause_s
        log.warning("disk tier paused for %.0f s %s", self._pause_s, why)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def worked(self, direction: Direction) -> None:
        """Note a success of the tier; what the other direction does is not known by it."""
        failures, self._failures[direction] = self._failures[direction], 0
        if max(self._failures.values()) >= FAILURES:
            return
        if failures >= FAILURES:
            log.info("disk tier works again")
            self._until = 0.0
        self._pause_s = PAUSE_S
        if not any(self._failures.values()):
            self.reason = ""

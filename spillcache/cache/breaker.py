"""A pause for the disk tier when it keeps failing."""

import logging
import time
from collections.abc import Callable

from spillcache.errors import SpillcacheError

log = logging.getLogger("spillcache.cache")

FAILURES = 3
PAUSE_S = 60.0
PAUSE_S_MAX = 3600.0


class Breaker:
    """Three failures in a row pause the tier for 60 s; then one probe decides, and the pause
    doubles.

    Any thread: the worst that a race does is one probe more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = PAUSE_S
        self._until = 0.0
        self.reason = ""
        """The code of what failed last; empty while all is well."""

    @property
    def closed(self) -> bool:
        """Whether the tier may be used now."""
        return self._clock() >= self._until

    def failed(self, error: SpillcacheError) -> None:
        """Note a failure of the tier; what else fails within a pause does not prolong it."""
        if not self.closed:
            return
        self.reason = error.code
        self._failures += 1
        if self._failures < FAILURES:
            return
        self._until = self._clock() + self._pause_s
        log.warning(
            "disk tier paused for %.0f s after %d failures in a row: %s",
            self._pause_s,
            self._failures,
            error,
        )
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def worked(self) -> None:
        """Note a success of the tier."""
        if self._failures >= FAILURES:
            log.info("disk tier works again")
        self._failures, self._pause_s, self.reason = 0, PAUSE_S, ""

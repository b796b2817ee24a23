"""How much may still be written to disk today: flash wears out by what is written to it."""

import json
import logging
import time
from collections.abc import Callable

from spillcache.config import format_size

log = logging.getLogger("spillcache.cache")

NOTE = "written"
RETRY_S = 60.0
"""How long after a refusal nothing is asked for."""
_HOUR_S = 3600
_HOURS = 24

ChangeNote = Callable[[str, Callable[[bytes | None], bytes]], bytes]


class WriteLimit:
    """Counts bytes by the hour, so that no 24 hours see more than the limit. One thread; any may
    look at ``closed`` and ``status``.

    ``change_note`` keeps the counts where all processes that write to the directory count
    together; what it raises, ``allows`` and ``wrote`` raise. ``wall``: the clock on the wall.
    """

    def __init__(
        self,
        bytes_day: int | None,
        change_note: ChangeNote,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_day, self._change_note = bytes_day, change_note
        self._wall, self._clock = wall, clock
        self._refused: float | None = None
        self._written_bytes = 0

    @property
    def closed(self) -> bool:
        """Whether something was refused a moment ago."""
        return self._refused is not None and self._clock() - self._refused < RETRY_S

    def status(self) -> dict[str, object]:
        """For ``/health``; empty where there is no limit. ``written_bytes``: within a day, as this
        process last knew it.
        """
        if self._bytes_day is None:
            return {}
        return {
            "bytes_day": self._bytes_day,
            "written_bytes": self._written_bytes,
            "reached": self._refused is not None,
        }

    def allows(self, size_bytes: int) -> bool:
        """Whether so much may be written now. Then it counts as written: ``wrote`` must follow."""
        if self._bytes_day is None:
            return True
        written = self._count(size_bytes)
        if written <= self._bytes_day:
            if self._refused is not None:
                log.info("blocks are written to disk again: the daily limit allows it")
            self._refused = None
            return True
        self._count(-size_bytes)
        if self._refused is None:
            log.warning(
                "%s were written to disk within a day, and the limit is %s: for now no more is; "
                "what is there is read as ever",
                format_size(self._written_bytes),
                format_size(self._bytes_day),
            )
        self._refused = self._clock()
        return False

    def wrote(self, allowed_bytes: int, written_bytes: int) -> None:
        """Of what was allowed, so much was written; or a little more, with headers."""
        if self._bytes_day is not None:
            self._count(written_bytes - allowed_bytes)

    def _count(self, size_bytes: int) -> int:
        """Add to this hour's bytes; the sum of those that still matter."""
        hour = int(self._wall() // _HOUR_S)

        def change(note: bytes | None) -> bytes:
            hours = _hours(note)
            hours[hour] = max(0, hours.get(hour, 0) + size_bytes)
            return json.dumps({h: n for h, n in hours.items() if _matters(h, hour) and n}).encode()

        self._written_bytes = sum(_hours(self._change_note(NOTE, change)).values())
        return self._written_bytes


def _matters(hour: int, now: int) -> bool:
    """Whether a part of ``hour`` is less than a day ago; the future is a clock's mistake."""
    return now - _HOURS <= hour <= now


def _hours(note: bytes | None) -> dict[int, int]:
    """Bytes by the hour since 1970; a note that makes no sense counts as nothing written."""
    try:
        found = json.loads(note or b"{}")
        return {int(hour): int(size) for hour, size in found.items() if int(size) > 0}
    except (ValueError, TypeError, AttributeError):
        return {}

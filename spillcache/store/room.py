"""The quota: space is reserved in the index before it is written, and made by eviction.

Counted are allocated bytes of all that lies in the directory. What segments take is kept in the
index by all writers under its lock; the rest is measured when asked for. Any thread; a reservation
is made by the writer.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spillcache.config import GIB, MIB
from spillcache.errors import StoreError
from spillcache.metrics import Metrics
from spillcache.store import touches
from spillcache.store.catalog import Catalog
from spillcache.store.eviction import Eviction, evict, evict_older
from spillcache.store.files import Files
from spillcache.store.index import Index
from spillcache.store.location import Location, read_location, settings_stamp
from spillcache.store.pins import Pins
from spillcache.store.rows import Meta
from spillcache.store.segments import Segments
from spillcache.store.touches import Touches, Uses

_FIXED_BYTES = MIB
"""Directories, settings, a segment's header, and what a small transaction adds to the index."""
_INDEX_BYTES_PER_OBJECT = 16 << 10
"""A commit copies a leaf page or two per random key before it can reuse old ones."""
_EXPIRE_EVERY_S = 60.0
_EXPIRE_OBJECTS = 2000
"""In one transaction; more wait for the next, so that other writers get their turn."""
_NS_PER_S = 1_000_000_000
_FRESH_SHARE = 16
_SLACK_SHARE = 128
_MAX_SLACK_BYTES = 64 * MIB
_AHEAD_SHARE = 16
_MIN_AHEAD_BYTES, _MAX_AHEAD_BYTES = 64 * MIB, GIB

log = logging.getLogger("spillcache.store")


class NoRoom(Exception):
    """Even with everything evicted that may go, only ``available_bytes`` would fit; nothing was
    evicted.
    """

    def __init__(self, available_bytes: int) -> None:
        super().__init__(f"{available_bytes} bytes could be made free")
        self.available_bytes = available_bytes


@dataclass(slots=True)
class Limits:
    """How much the store may take."""

    quota_bytes: int
    min_free_bytes: int
    max_age_s: float | None = None
    """Objects that were not used for longer are evicted; None: age is no reason."""


def index_bytes(objects: int) -> int:
    """What is promised for the index's growth when so many rows are added; given back with the
    commit that adds them.
    """
    return objects * _INDEX_BYTES_PER_OBJECT


def taken_bytes(meta: Meta, other_bytes: int) -> int:
    """What a store takes, and what is promised to writers; ``other_bytes``: the index, and one that
    was set aside.
    """
    return meta.allocated + meta.reserved + meta.quarantined + other_bytes + _FIXED_BYTES


def excess_bytes(meta: Meta, other_bytes: int, free_bytes: int, limits: Limits) -> int:
    """By how much the store takes more than it may, of its quota or of the filesystem; below zero:
    what may still be promised.
    """
    over_quota = taken_bytes(meta, other_bytes) - limits.quota_bytes
    return max(over_quota, limits.min_free_bytes - free_bytes + meta.reserved)


def _ahead_bytes(spare_bytes: int) -> int:
    """How much may be promised beyond what is needed: nothing that another writer could miss."""
    ahead = min(spare_bytes // _AHEAD_SHARE, _MAX_AHEAD_BYTES)
    return ahead if ahead >= _MIN_AHEAD_BYTES else 0


class Room:
    """The space of one store, as this process sees it."""

    def __init__(
        self,
        location: Location,
        limits: Limits,
        *,
        files: Files,
        index: Index,
        segments: Segments,
        pins: Pins,
        touched: Touches,
        metrics: Metrics | None,
    ) -> None:
        self.limits = limits
        self._location = location
        self._files = files
        self._index = index
        self._segments = segments
        self._pins = pins
        self._touched = touched
        self._metrics = metrics
        self.set_aside_bytes = 0
        """What a damaged index that was replaced takes."""
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_bytes = 0
        self._fresh_after = (1 << 64) - 1
        self._expire_at = 0.0
        self._settings_stamp: tuple[int, int] | None = None
        self._ahead_segment, self._ahead_bytes = 0, 0
        """What was promised beyond the need, and to which segment's writer."""

    def used_bytes(self, catalog: Catalog) -> int:
        """What the directory takes; what is only promised to writers is not in it."""
        other = self._index.allocated_bytes() + self.set_aside_bytes
        return taken_bytes(catalog.meta, other) - catalog.meta.reserved

    def headroom(self, catalog: Catalog) -> int:
        """How many bytes may still be promised; below zero when the store must shrink."""
        other = self._index.allocated_bytes() + self.set_aside_bytes
        free = self._files.free_bytes(self._location.path)
        return -excess_bytes(catalog.meta, other, free, self.limits)

    def reserve(
        self, segment: int, need_bytes: int, objects: int, is_spared: Callable[[bytes], bool]
    ) -> None:
        """Promise ``need_bytes``, and ``index_bytes(objects)`` for the rows that it will add, to a
        segment's writer; evicts what is in the way. Raises OSError when that does not come free.

        ``is_spared``: blocks (namespace id and hash) that must stay, besides those that are pinned.
        While there is plenty, more is promised than is needed, so that most calls need no
        transaction. Raises NoRoom when the need can't be had, and whatever ``Index.write`` raises.
        """
        self._follow_quota()
        self.expire(is_spared)
        if self._take_ahead(segment, need_bytes + index_bytes(objects)):
            return
        # While what was evicted before does not come free, evicting more would not help.
        stuck = self._segments.retry()
        while (e := self._attempt(segment, need_bytes, objects, is_spared, stuck)) is not None:
            self.finish(e)

    def _follow_quota(self) -> None:
        """The quota is the store's: another process may have changed it."""
        try:
            stamp = settings_stamp(self._location)
            if stamp != self._settings_stamp:
                self.limits.quota_bytes = read_location(self._location.path).quota_bytes
                self._settings_stamp = stamp
        except (OSError, StoreError) as error:
            log.warning("the store's settings can't be read: %s", error)

    def _take_ahead(self, segment: int, wanted_bytes: int) -> bool:
        """Whether what was promised ahead is enough, and no use waits to be written."""
        is_its = segment != 0 and segment == self._ahead_segment
        if not is_its or wanted_bytes > self._ahead_bytes or self._touched.snapshot():
            return False
        self._ahead_bytes -= wanted_bytes
        return True

    def expire(self, is_spared: Callable[[bytes], bool]) -> None:
        """Evict what was not used for longer than the limit. Looks about once a minute.

        Costs what is evicted and no more: in each rank the oldest come first.
        """
        max_age_s = self.limits.max_age_s
        if max_age_s is None or time.monotonic() < self._expire_at:
            return
        self._expire_at = time.monotonic() + _EXPIRE_EVERY_S
        oldest = time.time_ns() - int(max_age_s * _NS_PER_S)
        while True:
            uses = self._touched.snapshot()

            def work(catalog: Catalog, uses: Uses = uses) -> Eviction:
                touches.apply(catalog, uses)
                spared = self._sparing(is_spared)
                return evict_older(catalog, oldest, spared, _EXPIRE_OBJECTS)

            eviction = self._index.write(work)
            self._touched.forget(uses)
            if not eviction.places:
                return
            self.finish(eviction)

    def _sparing(self, is_spared: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        return lambda block: block in self._pins or is_spared(block)

    def make_free(self, need_bytes: int, is_spared: Callable[[bytes], bool]) -> int:
        """Evict at least ``need_bytes``, whatever the limits say, if there is that much: the bytes
        freed.

        For a filesystem that is full although it said otherwise: another's writes, a user's quota.
        """
        spared = self._sparing(is_spared)
        eviction = self._index.write(lambda c: evict(c, need_bytes, spared, self._fresh_after))
        self.finish(eviction)
        return eviction.freed_bytes

    def finish(self, eviction: Eviction) -> None:
        """Free what was evicted, and count it. Raises OSError if the filesystem does not take it
        back.
        """
        self._touched.evicted(eviction.blocks)
        error = self._segments.free(eviction.places)
        if self._metrics is not None:
            self._metrics.evicted_objects.labels("disk").inc(len(eviction.places))
        log.debug("evicted objects=%d bytes=%d", len(eviction.places), eviction.freed_bytes)
        if error is not None:
            raise error  # evicting more would make no more room

    def _attempt(
        self,
        segment: int,
        need_bytes: int,
        objects: int,
        is_spared: Callable[[bytes], bool],
        stuck: OSError | None,
    ) -> Eviction | None:
        """None when the reservation was made; else what was evicted for it, still to be freed."""
        uses = self._touched.snapshot()
        # What was promised ahead to the same writer before is its own: promised once, not again.
        kept = self._ahead_bytes if segment == self._ahead_segment else 0
        wanted = need_bytes + index_bytes(objects)
        spared = self._sparing(is_spared)
        granted: list[int] = []

        def work(catalog: Catalog) -> Eviction | None:
            touches.apply(catalog, uses)
            headroom = self.headroom(catalog) + kept
            lacking = wanted - headroom
            if lacking <= 0:
                ahead = _ahead_bytes(-lacking) if segment else 0
                catalog.reserve(segment, wanted + ahead - kept)
                granted.append(ahead)
                return None
            if stuck is not None:
                raise stuck
            eviction = evict(catalog, lacking + self._slack(), spared, self._fresh_after)
            freed = eviction.freed_bytes
            if not freed or (self._segments.can_punch and freed < lacking):
                raise NoRoom(headroom + freed - index_bytes(objects))
            return eviction

        eviction = self._index.write(work)
        self._touched.forget(uses)
        if granted and segment:
            self._ahead_segment, self._ahead_bytes = segment, granted[-1]
        return eviction

    def ahead_ns(self, block: bytes) -> int:
        """As ``Touches.ahead_ns``."""
        return self._touched.ahead_ns(block)

    def _slack(self) -> int:
        """Evict a little more than is needed, so that not every put evicts."""
        return min(self.limits.quota_bytes // _SLACK_SHARE, _MAX_SLACK_BYTES)

    def wrote(self, clock: int, written_bytes: int) -> None:
        """Note a commit at ``clock``: what was written since the last sixteenth of the quota is
        fresh.
        """
        if not self._recent:
            self._fresh_after = clock
        self._recent.append((clock, written_bytes))
        self._recent_bytes += written_bytes
        while (
            len(self._recent) > 1 and self._recent_bytes > self.limits.quota_bytes // _FRESH_SHARE
        ):
            self._recent_bytes -= self._recent.popleft()[1]
            self._fresh_after = self._recent[0][0]

    def shrink(self) -> None:
        """Evict until the store is within its limits, as far as that is possible."""
        try:
            self.reserve(0, 0, 0, lambda _: False)
        except NoRoom as no_room:
            log.warning("the store is over its limits by %d bytes", -no_room.available_bytes)
        except OSError as error:
            log.warning("the store could not be brought within its limits: %s", error)

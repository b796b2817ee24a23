"""This process's own segment: records go to its end, through an aligned buffer, past the page
cache.

Not thread-safe: the writer holds its lock around every call.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from spillcache.errors import StoreError
from spillcache.processors import Apart
from spillcache.state import Buffer
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files
from spillcache.store.format import PAGE_BYTES, SegmentHeader
from spillcache.store.segments import Segments
from spillcache.store.staging import Staging

log = logging.getLogger("spillcache.store")


@dataclass(slots=True)
class _Own:
    segment: int
    fd: int
    end: int


class Appender:
    """Appends records to the process's own segment, which it makes when first needed."""

    def __init__(
        self,
        segments: Segments,
        files: Files,
        pool: BufferPool,
        *,
        store_id: bytes,
        size_bytes: int,
    ) -> None:
        self.size_bytes = size_bytes
        """How large a segment grows; a single larger record gets a segment of its own."""
        self._segments = segments
        self._files = files
        self._pool = pool
        self._store_id = store_id
        self._own: _Own | None = None
        self._may_reopen = True
        """At first only: later, one that was left may have been left because of an error."""
        self._noted: set[bytes] = set()

    def room(self) -> int:
        """How many bytes the own segment still takes; a new one if there is none."""
        end = PAGE_BYTES if self._own is None else self._own.end
        return max(0, self.size_bytes - end)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was appended yet to the own segment."""
        return self._own is None or self._own.end == PAGE_BYTES

    def begin(self) -> int:
        """The own segment's id; makes one if there is none. Raises OSError."""
        if self._own is None and self._may_reopen:
            self._may_reopen = False
            found = self._segments.reopen(self.size_bytes // 2)
            if found is not None:
                self._own = _Own(*found)
        if self._own is None:
            segment, fd = self._segments.create()
            self._own = _Own(segment, fd, 0)
            self._noted.clear()
            header = SegmentHeader(segment, self._store_id, time.time_ns()).encode()
            try:
                staging, _ = self.write([(header,)], len(header))
                with closing(staging):
                    staging.finish()
                self._files.sync_directory(self._segments.directory)
                self.keep(PAGE_BYTES)
            except OSError:
                self.abandon()
                raise
        return self._own.segment

    def write(
        self,
        records: Iterable[tuple[Buffer, ...]],
        size_bytes: int | None,
        *,
        apart: Apart | None = None,
    ) -> tuple[Staging, list[int]]:
        """Hand over records (each given in pieces, padded here) to be written: the stream, which
        the caller finishes and closes, and their offsets. ``size_bytes``: about what they take, so
        that their end is written soon; None: more follows, and long writes are better. ``apart``:
        the caller's; a thread that writes keeps away from it.

        Nothing names them, and what is appended next goes to the same place, until ``keep`` is
        told. On an error the caller must ``abandon``: what is on the device is unknown.
        """
        own = self._require()
        staging = Staging(self._files, own.fd, self._pool, own.end, size_bytes, apart=apart)
        try:
            offsets = [staging.add(pieces) for pieces in records]
            staging.end()
        except BaseException:
            staging.close()
            raise
        return staging, offsets

    def keep(self, end: int) -> None:
        """What was appended reaches up to ``end``; the next goes there."""
        self._require().end = end

    def _require(self) -> _Own:
        if self._own is None:
            raise RuntimeError("the appender has no segment")
        return self._own

    def has_noted(self, namespace_id: bytes) -> bool:
        """Whether the own segment holds a record of this namespace's fields."""
        return namespace_id in self._noted

    def noted(self, namespace_id: bytes) -> None:
        """The own segment now holds one."""
        self._noted.add(namespace_id)

    def seal(self) -> None:
        """Let go of the own segment; the next append makes a new one. No stream into it is open."""
        own, self._own = self._own, None
        if own is not None:
            self._segments.seal(own.segment, own.fd)

    def abandon(self) -> None:
        """As ``seal``, after an error; what fails now is logged and made good at the next open."""
        try:
            self.seal()
        except (StoreError, OSError) as error:
            log.warning("a segment was not sealed: %s", error)

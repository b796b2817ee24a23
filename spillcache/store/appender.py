"""This process's own segment: records go to its end, through an aligned buffer, past the page
cache.

Not thread-safe: the writer holds its lock around every call.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from spillcache.errors import StoreError
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
        self._staging: Staging | None = None

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
            self._own = _Own(segment, fd, PAGE_BYTES)
            self._noted.clear()
            header = SegmentHeader(segment, self._store_id, time.time_ns()).encode()
            try:
                self._stage([(header,)], 0, len(header))
                self.sync()
                self._files.sync_directory(self._segments.directory)
            except OSError:
                self.abandon()
                raise
        return self._own.segment

    def write(self, records: Iterable[tuple[Buffer, ...]], size_bytes: int) -> list[int]:
        """Hand over records (each given in pieces, padded here) to be written: their offsets.
        ``size_bytes``: about what they take.

        They are on the device when ``sync`` returns, and nothing names them until ``keep`` is told.
        On an error the caller must ``abandon``: what is on the device is unknown.
        """
        return self._stage(records, self._require().end, size_bytes)

    def _stage(
        self, records: Iterable[tuple[Buffer, ...]], start: int, size_bytes: int
    ) -> list[int]:
        fd = self._require().fd
        self._staging = staging = Staging(self._files, fd, self._pool, start, size_bytes)
        offsets = []
        for pieces in records:
            offsets.append(staging.offset)
            staging.add(pieces)
        staging.end()
        return offsets

    def sync(self) -> None:
        """Wait until what was written is on the device; raises OSError."""
        if self._staging is not None:
            self._staging.finish()
            self._unstage()

    def _unstage(self) -> None:
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.close()

    def keep(self, end: int) -> None:
        """The index names what was appended, up to ``end``."""
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
        """Let go of the own segment; the next append makes a new one."""
        self._unstage()
        own, self._own = self._own, None
        if own is not None:
            self._segments.seal(own.segment, own.fd)

    def abandon(self) -> None:
        """As ``seal``, after an error; what fails now is logged and made good at the next open."""
        try:
            self.seal()
        except (StoreError, OSError) as error:
            log.warning("a segment was not sealed: %s", error)

"""This process's own segment: records go to its end, through an aligned buffer, past the page
cache.

Not thread-safe: the writer holds its lock around every call.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spillcache.config import MIB
from spillcache.errors import StoreError
from spillcache.state import Buffer
from spillcache.store.buffers import AlignedBuffer, BufferPool
from spillcache.store.files import Files, write_fully
from spillcache.store.format import PAGE_BYTES, SegmentHeader, padded
from spillcache.store.segments import Segments

_STAGING_BYTES = 8 * MIB

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
            self._own = _Own(segment, fd, PAGE_BYTES)
            self._noted.clear()
            header = SegmentHeader(segment, self._store_id, time.time_ns()).encode()
            try:
                self._write([(header,)], 0)
                self._files.sync_directory(self._segments.directory)
            except OSError:
                self.abandon()
                raise
        return self._own.segment

    def append(self, records: Iterable[tuple[Buffer, ...]]) -> list[int]:
        """Write records (each given in pieces, padded here) and wait until they are on the device:
        their offsets.

        Nothing names them until ``keep`` is told. On an error the caller must ``abandon``: what is
        on the device is unknown.
        """
        own = self._require()
        return self._write(records, own.end)

    def keep(self, end: int) -> None:
        """The index names what was appended, up to ``end``."""
        self._require().end = end

    def _require(self) -> _Own:
        if self._own is None:
            raise RuntimeError("the appender has no segment")
        return self._own

    def _write(self, records: Iterable[tuple[Buffer, ...]], start: int) -> list[int]:
        fd = self._require().fd
        buffer = self._pool.take(_STAGING_BYTES)
        try:
            staging = _Staging(self._files, fd, buffer, start)
            offsets = []
            for pieces in records:
                offsets.append(staging.offset)
                for piece in pieces:
                    staging.add(piece)
                staging.pad()
            staging.flush()
            self._files.sync(fd)
            if not self._files.direct:
                self._files.forget(fd, start, staging.offset - start)
        finally:
            self._pool.give(buffer)
        return offsets

    def has_noted(self, namespace_id: bytes) -> bool:
        """Whether the own segment holds a record of this namespace's fields."""
        return namespace_id in self._noted

    def noted(self, namespace_id: bytes) -> None:
        """The own segment now holds one."""
        self._noted.add(namespace_id)

    def seal(self) -> None:
        """Let go of the own segment; the next append makes a new one."""
        own, self._own = self._own, None
        if own is not None:
            self._segments.seal(own.segment, own.fd)

    def abandon(self) -> None:
        """As ``seal``, after an error; what fails now is logged and made good at the next open."""
        try:
            self.seal()
        except (StoreError, OSError) as error:
            log.warning("a segment was not sealed: %s", error)


class _Staging:
    """An aligned buffer that is written when it is full."""

    def __init__(self, files: Files, fd: int, buffer: AlignedBuffer, offset: int) -> None:
        self._files = files
        self._fd = fd
        self._buffer = buffer
        self._at = offset
        self._filled = 0

    @property
    def offset(self) -> int:
        """Where the next byte goes in the file."""
        return self._at + self._filled

    def add(self, piece: Buffer) -> None:
        """Copy bytes in."""
        # NumPy copies without holding the interpreter's lock, so that decoding goes on meanwhile.
        source = np.frombuffer(piece, dtype=np.uint8) if len(piece) else None
        done = 0
        while source is not None and done < len(source):
            if self._filled == self._buffer.size:
                self.flush()
            count = min(len(source) - done, self._buffer.size - self._filled)
            self._buffer.array[self._filled : self._filled + count] = source[done : done + count]
            self._filled += count
            done += count

    def pad(self) -> None:
        """Zeros up to the next page; the buffer is whole pages, so this never overflows it."""
        end = padded(self._filled)
        self._buffer.array[self._filled : end] = 0
        self._filled = end

    def flush(self) -> None:
        """Write what is there."""
        write_fully(self._files, self._fd, self._buffer.view[: self._filled], self._at)
        self._at += self._filled
        self._filled = 0

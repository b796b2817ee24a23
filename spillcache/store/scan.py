"""Reading what lies in a segment, without the index: its header, records' headers, namespaces.

Payloads are not read. Not thread-safe: each scan has a buffer of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spillcache.namespace import Namespace
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files, read_fully
from spillcache.store.format import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FormatError,
    RecordHeader,
    SegmentHeader,
    payload_digest,
)

_MAX_NAMESPACE_BYTES = 1 << 20


class Scan:
    """One open segment; its methods raise OSError."""

    def __init__(self, files: Files, fd: int, page: memoryview) -> None:
        self._files = files
        self._fd = fd
        self._page = page
        self.size = files.size(fd)

    def header(self) -> SegmentHeader | None:
        """The segment's header; None if it is damaged, or not a segment's."""
        count = read_fully(self._files, self._fd, self._page[:PAGE_BYTES], 0)
        try:
            return SegmentHeader.parse(self._page[:count])
        except FormatError:
            return None

    def record(self, offset: int) -> RecordHeader | None:
        """The header of the record that begins there; None if none does, or it is damaged."""
        count = read_fully(self._files, self._fd, self._page[:PAGE_BYTES], offset)
        try:
            return RecordHeader.parse(self._page[:count])
        except FormatError:
            return None

    def records(self, start: int, end: int) -> Iterator[tuple[int, RecordHeader]]:
        """Every record that lies whole within these bounds; looks at each page where there is
        none, and skips holes.
        """
        end = min(end, self.size)
        offset = start
        while offset < end and (at := self._files.next_data(self._fd, offset)) is not None:
            offset = max(offset, at // PAGE_BYTES * PAGE_BYTES)
            if offset >= end:
                return
            header = self.record(offset)
            if header is None:
                offset += PAGE_BYTES
            elif offset + header.payload_offset + header.stored_bytes > end:
                return
            else:
                yield offset, header
                offset += header.record_bytes

    def namespace(self, offset: int, header: RecordHeader) -> Namespace | None:
        """What a namespace record says; None if it is damaged."""
        if header.record_bytes > _MAX_NAMESPACE_BYTES:
            return None
        read_fully(self._files, self._fd, self._page[: header.record_bytes], offset)
        end = RECORD_HEADER_BYTES + header.stored_bytes
        encoding = bytes(self._page[RECORD_HEADER_BYTES:end])
        if payload_digest(b"", encoding) != header.digest:
            return None
        try:
            return Namespace.decode(encoding)
        except ValueError:
            return None


@contextmanager
def scanned(files: Files, pool: BufferPool, path: Path) -> Iterator[Scan]:
    """Open a segment's file for a scan; raises OSError."""
    fd = files.open(path)
    page = pool.take(_MAX_NAMESPACE_BYTES)
    try:
        yield Scan(files, fd, page.view)
    finally:
        pool.give(page)
        files.close(fd)

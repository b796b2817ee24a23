"""Making index rows from segments that the index does not know: after it was lost or damaged.

Reads the records' headers only; payloads are verified when they are read. Runs while no other
process has the store open.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.buffers import BufferPool
from spillcache.store.catalog import Catalog, Place
from spillcache.store.files import Files, read_fully
from spillcache.store.format import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FormatError,
    RecordClass,
    RecordHeader,
    SegmentHeader,
    payload_digest,
)
from spillcache.store.index import Index
from spillcache.store.rows import Entry, SegmentRow, SegmentState
from spillcache.store.segments import Segments

Progress = Callable[[int, int], None]
"""Told bytes done and bytes to do, in all."""

_ROWS_PER_COMMIT = 2000
_MAX_NAMESPACE_BYTES = 1 << 20
_KNOWN_PARTS = frozenset(Part)

log = logging.getLogger("spillcache.store")


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class _Found:
    """What the segments hold."""

    segments: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By id: when each was made, and where its last record ends."""
    namespaces: dict[bytes, Namespace] = field(default_factory=dict)
    records: list[tuple[Place, RecordHeader]] = field(default_factory=list)


class Rebuild:
    """One rebuild of one store; raises OSError and what ``Index.write`` raises.

    Until the last step the segments' rows say that they were found: if the process dies, the next
    one goes on. Nothing is removed before all was read.
    """

    def __init__(  # noqa: PLR0917 - the parts of a store, in the order of all rooms
        self,
        segments: Segments,
        files: Files,
        index: Index,
        pool: BufferPool,
        store_id: bytes,
        progress: Progress = no_progress,
    ) -> None:
        self._segments = segments
        self._files = files
        self._index = index
        self._pool = pool
        self._store_id = store_id
        self._progress = progress

    def adopt(self, unknown: list[int]) -> int:
        """Name what lies in these segments; how many objects that were. What can't be named is
        freed.
        """
        found = _Found()
        total = sum(self._files.allocated_at(self._segments.path(each)) for each in unknown)
        done = 0
        for segment in unknown:
            self._progress(done, total)
            self._scan(segment, found)
            done += self._files.allocated_at(self._segments.path(segment))
        self._progress(total, total)
        named = self._name_all(found)
        log.warning("index rebuilt segments=%d objects=%d", len(found.segments), named)
        return named

    def _name_all(self, found: "_Found") -> int:
        self._index.write(lambda catalog: _claim(catalog, found.segments))
        # Parents before children, wherever they lie.
        found.records.sort(key=lambda each: (each[1].block_index, each[1].written_ns))
        freed: list[Place] = []
        for start in range(0, len(found.records), _ROWS_PER_COMMIT):
            batch = found.records[start : start + _ROWS_PER_COMMIT]
            freed += self._index.write(lambda c, b=batch: _name(c, b, found.namespaces))  # type: ignore[misc]
        self._segments.free(freed)
        self._index.write(lambda catalog: self._seal(catalog, list(found.segments)))
        return len(found.records) - len(freed)

    def _seal(self, catalog: Catalog, segments: list[int]) -> None:
        for segment in segments:
            row = catalog.segment(segment)
            if row is not None and row.state == SegmentState.FOUND:
                row.state = SegmentState.SEALED
            self._segments.settle(catalog, segment)

    def _scan(self, segment: int, found: "_Found") -> None:
        fd = self._files.open(self._segments.path(segment))
        page = self._pool.take(_MAX_NAMESPACE_BYTES)
        try:
            size = self._files.size(fd)
            created_ns = self._created(fd, page.view)
            if created_ns is None:
                log.warning("segment %d is not this store's and is left alone", segment)
                return
            end = PAGE_BYTES
            for offset, header in self._headers(fd, page.view, size):
                place = Place(segment, offset, header.record_bytes)
                end = offset + header.record_bytes
                if header.record_class == RecordClass.NAMESPACE:
                    self._learn(fd, page.view, offset, header, found)
                else:
                    found.records.append((place, header))
        finally:
            self._pool.give(page)
            self._files.close(fd)
        found.segments[segment] = (created_ns, end)

    def _created(self, fd: int, page: memoryview) -> int | None:
        """When this store made the segment; None if it is another's, or not a segment."""
        count = read_fully(self._files, fd, page[:PAGE_BYTES], 0)
        try:
            header = SegmentHeader.parse(page[:count])
        except FormatError:
            return None
        return header.created_ns if header.store_id == self._store_id else None

    def _headers(self, fd: int, page: memoryview, size: int) -> Iterator[tuple[int, RecordHeader]]:
        """Every record that lies whole within the file; looks at each page where there is none."""
        offset = PAGE_BYTES
        while (at := self._files.next_data(fd, offset)) is not None:
            offset = max(offset, at // PAGE_BYTES * PAGE_BYTES)
            count = read_fully(self._files, fd, page[:PAGE_BYTES], offset)
            try:
                header = RecordHeader.parse(page[:count])
            except FormatError:
                offset += PAGE_BYTES
                continue
            if offset + header.payload_offset + header.stored_bytes > size:
                return
            yield offset, header
            offset += header.record_bytes

    def _learn(
        self, fd: int, page: memoryview, offset: int, header: RecordHeader, found: _Found
    ) -> None:
        if header.record_bytes > _MAX_NAMESPACE_BYTES:
            return
        read_fully(self._files, fd, page[: header.record_bytes], offset)
        encoding = bytes(page[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.stored_bytes])
        if payload_digest(b"", encoding) != header.digest:
            return
        try:
            namespace = Namespace.decode(encoding)
        except ValueError:
            return
        found.namespaces[namespace.id] = namespace


def _claim(catalog: Catalog, segments: dict[int, tuple[int, int]]) -> None:
    for segment, (created_ns, end) in segments.items():
        row = catalog.segment(segment)
        if row is None:
            row = SegmentRow(SegmentState.FOUND, os.getpid(), created_ns, end, 0, 0, 0, 0)
            catalog.add_segment(segment, row)
        row.committed_end = max(row.committed_end, end)


def _name(
    catalog: Catalog,
    batch: list[tuple[Place, RecordHeader]],
    namespaces: dict[bytes, Namespace],
) -> list[Place]:
    """Insert what can be named; the places of the rest."""
    freed = []
    for place, header in batch:
        entry = _entry(place, header)
        if entry is not None and entry.same_place(catalog.current(entry)):
            continue  # by a rebuild that was interrupted
        if entry is None or not _is_wanted(catalog, entry, namespaces):
            catalog.add_freeing(place)
            freed.append(place)
            continue
        catalog.use_namespace(namespaces[entry.namespace_id], entry.last_use)
        catalog.insert(entry)
    return freed


def _is_wanted(catalog: Catalog, entry: Entry, namespaces: dict[bytes, Namespace]) -> bool:
    """Whether the object is not there yet and can be reached."""
    if entry.namespace_id not in namespaces:
        return False
    if catalog.has(entry.namespace_id, entry.block, entry.part):
        return False
    if entry.part is not Part.KV or not entry.block_index:
        return True
    return catalog.has(entry.namespace_id, entry.parent, Part.KV)


def _entry(place: Place, header: RecordHeader) -> Entry | None:
    """The row of a record, last used when it was written; None for one of a later version."""
    if header.record_class != RecordClass.BLOCK or header.part not in _KNOWN_PARTS:
        return None
    return Entry(
        namespace_id=header.namespace_id,
        block=BlockHash(header.block),
        part=Part(header.part),
        segment=place.segment,
        offset=place.offset,
        stored_bytes=header.stored_bytes,
        raw_bytes=header.raw_bytes,
        last_use=header.written_ns,
        parent=BlockHash(header.parent),
        block_index=header.block_index,
        token_count=header.token_count,
        tail_tokens=header.tail_tokens,
        children=0,
        codec=header.codec,
        rank=header.rank,
        record_class=header.record_class,
    )

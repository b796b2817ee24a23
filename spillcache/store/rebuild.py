"""Making index rows from segments that the index does not know: after it was lost or damaged.

Reads the records' headers only; payloads are verified when they are read. Runs while no other
process has the store open.
"""

import logging
import os
import struct
import time
from collections.abc import Container
from dataclasses import dataclass, field

from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.buffers import BufferPool
from spillcache.store.catalog import Catalog, Place
from spillcache.store.files import Files
from spillcache.store.format import PAGE_BYTES, RecordClass, RecordHeader
from spillcache.store.index import Index
from spillcache.store.progress import Progress, no_progress
from spillcache.store.rows import Entry, SegmentRow, SegmentState
from spillcache.store.scan import scanned
from spillcache.store.segments import Segments
from spillcache.store.tails import trim_tails

_ROWS_PER_COMMIT = 2000
_ORDER = struct.Struct(">IQQQ")
_KNOWN_PARTS = frozenset(Part)

log = logging.getLogger("spillcache.store")


@dataclass(slots=True)
class _Found:
    """What the segments hold."""

    segments: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By id: when each was made, and where its last record ends."""
    namespaces: dict[bytes, Namespace] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    """Packed, for there may be millions; they sort parents before children, the oldest first."""

    def add(self, place: Place, header: RecordHeader) -> None:
        """One record that is no namespace's."""
        order = _ORDER.pack(header.block_index, header.written_ns, place.segment, place.offset)
        self.records.append(order + header.encode())


def _unpack(record: bytes) -> tuple[Place, RecordHeader]:
    _, _, segment, offset = _ORDER.unpack_from(record)
    header = RecordHeader.parse(record[_ORDER.size :])
    return Place(segment, offset, header.record_bytes), header


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

    def _name_all(self, found: _Found) -> int:
        self._index.write(lambda catalog: _claim(catalog, found.segments))
        found.records.sort()
        freed: list[Place] = []
        for start in range(0, len(found.records), _ROWS_PER_COMMIT):
            batch = [_unpack(each) for each in found.records[start : start + _ROWS_PER_COMMIT]]
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

    def _scan(self, segment: int, found: _Found) -> None:
        with scanned(self._files, self._pool, self._segments.path(segment)) as scan:
            header = scan.header()
            if header is not None and (header.segment, header.store_id) != (
                segment,
                self._store_id,
            ):
                log.warning("segment %d is not this store's and is left alone", segment)
                return
            end = 0
            for offset, record in scan.records(PAGE_BYTES, scan.size):
                end = offset + record.record_bytes
                if record.record_class == RecordClass.NAMESPACE:
                    namespace = scan.namespace(offset, record)
                    if namespace is not None:
                        found.namespaces[namespace.id] = namespace
                else:
                    found.add(Place(segment, offset, record.record_bytes), record)
        if header is None and not end:
            log.warning("segment %d is none and is left alone", segment)
            return
        # A damaged header costs nothing: each record has its own, with a checksum.
        created_ns = time.time_ns() if header is None else header.created_ns
        found.segments[segment] = (created_ns, max(end, PAGE_BYTES))


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
        entry = entry_of(place, header)
        if entry is not None and entry.same_place(catalog.current(entry)):
            continue  # by a rebuild that was interrupted
        if entry is None or not is_wanted(catalog, entry, namespaces):
            catalog.add_freeing(place)
            freed.append(place)
            continue
        catalog.use_namespace(namespaces[entry.namespace_id], entry.last_use)
        catalog.insert(entry)
        if entry.is_tail:
            freed += trim_tails(catalog, entry.namespace_id, entry.parent)
    return freed


def is_wanted(catalog: Catalog, entry: Entry, namespaces: Container[bytes]) -> bool:
    """Whether the object is not there yet and can be reached."""
    if entry.namespace_id not in namespaces:
        return False
    if catalog.has(entry.namespace_id, entry.block, entry.part):
        return False
    if entry.part is not Part.KV or not entry.block_index:
        return True
    return catalog.has(entry.namespace_id, entry.parent, Part.KV)


def entry_of(place: Place, header: RecordHeader) -> Entry | None:
    """The row of a record, last used when it was written; None for one of a later version."""
    known = header.record_class == RecordClass.BLOCK or (
        header.record_class == RecordClass.TAIL and header.tail_tokens == header.token_count > 0
    )
    if not known or header.part not in _KNOWN_PARTS:
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
        encrypted=int(header.is_encrypted),
    )

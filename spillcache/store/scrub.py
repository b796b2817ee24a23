"""Reading everything a store holds, to find what is damaged before somebody needs it.

Bounded memory: objects are read a thousand at a time, within the readers' budget. Other threads and
processes go on meanwhile; what they evict is not missed. Without ``fix`` nothing is changed.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from spillcache.config import MIB
from spillcache.namespace import ID_BYTES
from spillcache.store import rows
from spillcache.store.audit import Audit
from spillcache.store.catalog import Catalog
from spillcache.store.files import store_error, write_fully
from spillcache.store.format import PAGE_BYTES, RecordClass, SegmentHeader
from spillcache.store.opened import OpenStore
from spillcache.store.progress import Progress, Stop, never, no_progress
from spillcache.store.quarantine import Quarantined
from spillcache.store.reader import Failure, ReadAhead
from spillcache.store.repair import gaps_of
from spillcache.store.rows import Entry
from spillcache.store.scan import scanned

_BATCH_OBJECTS = 1024
_MEMORY_BYTES = 64 * MIB
MOST_LISTED = 100
"""Of each kind of finding; all are counted."""

log = logging.getLogger("spillcache.store")


@dataclass(frozen=True, slots=True)
class Finding:
    """One object that can't be read as it was written."""

    namespace_id: bytes
    block: str
    """The block's hash in hexadecimal."""
    part: str
    segment: int
    offset: int
    size_bytes: int
    reason: str


@dataclass(slots=True)
class VerifyReport:
    """What a verification found. Lists are cut at ``MOST_LISTED``; the counts are whole."""

    objects: int = 0
    """That were read."""
    read_bytes: int = 0
    """Of their records."""
    damaged: int = 0
    """Not what was written; with ``fix`` they are now in quarantine."""
    unreadable: int = 0
    """The filesystem failed to give them; nothing is done about those."""
    missing: int = 0
    """In segments whose file is gone; with ``fix`` the index forgets them."""
    findings: list[Finding] = field(default_factory=list)
    index: list[str] = field(default_factory=list)
    """How rows of the index contradict each other; ``repair`` makes it anew."""
    segments: list[str] = field(default_factory=list)
    """What is wrong with segments themselves; with ``fix`` damaged headers are written anew."""
    fixed: int = 0
    """Objects and headers that were put right, or out of the way."""
    left: int = 0
    """How much of all this is still wrong."""
    quarantined: list[Quarantined] = field(default_factory=list)
    """Everything that is in quarantine now, oldest first."""
    stopped: bool = False
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.damaged + self.unreadable + self.missing
        return not (wrong or self.index or self.segments)


class Scrub:
    """One verification of an open store."""

    def __init__(
        self,
        store: OpenStore,
        *,
        fix: bool,
        progress: Progress = no_progress,
        stop: Stop = never,
    ) -> None:
        self._store = store
        self._fix = fix
        self._progress = progress
        self._stop = stop
        self._report = VerifyReport()
        self._total = 0

    def run(self) -> VerifyReport:
        """All of it: the index's rows, every object, every segment, the quarantine. Raises
        StoreError.
        """
        began = time.monotonic()
        report = self._report
        try:
            with self._store.index.read() as catalog:
                report.index += islice(Audit(catalog).findings(), MOST_LISTED)
                report.left += len(report.index)
                segments = catalog.segments()
            self._total = sum(row.live_bytes for _, row in segments)
            for segment, _ in segments:
                if report.stopped:
                    break
                self._objects(segment)
                self._segment(segment)
            report.quarantined = self._store.quarantine.listed()
        except OSError as error:
            raise store_error(error, "the store was verified") from error
        report.seconds = time.monotonic() - began
        return report

    # Objects.

    def _objects(self, segment: int) -> None:
        start = rows.segment_key(segment)
        while not self._report.stopped:
            entries, start = self._batch(segment, start)
            if not entries:
                return
            self._read(entries)

    def _batch(self, segment: int, start: bytes) -> tuple[list[Entry], bytes]:
        """The next objects of a segment, and the key to go on with."""
        entries: list[Entry] = []
        with self._store.index.read() as catalog:
            for key, value in catalog.rows("places", start):
                if not key.startswith(rows.segment_key(segment)):
                    break
                start = key + b"\0"
                entry = catalog.entry_at(value[8:])
                if entry is not None and rows.place_key(entry.segment, entry.offset) == key:
                    entries.append(entry)
                if len(entries) == _BATCH_OBJECTS:
                    break
        return entries, start

    def _read(self, entries: list[Entry]) -> None:
        store, report = self._store, self._report
        ahead = ReadAhead(
            entries,
            files=store.files,
            path_of=store.segments.path,
            pool=store.pool,
            memory_bytes=_MEMORY_BYTES,
            stop=self._stop,
            cipher=store.cipher,
        )
        try:
            count = 0
            for item in ahead:
                count += 1
                self._take(item)
            report.stopped = count < len(entries)
        finally:
            ahead.close()

    def _take(self, item: object) -> None:
        report = self._report
        if isinstance(item, Failure):
            entry = item.entry
            self._meet(item)
        else:
            entry = item.entry  # type: ignore[attr-defined]
            item.release()  # type: ignore[attr-defined]
        report.objects += 1
        report.read_bytes += entry.record_bytes
        # Others may have added objects since the total was taken.
        self._total = max(self._total, report.read_bytes)
        self._progress(report.read_bytes, self._total)

    def _meet(self, failure: Failure) -> None:
        """Something is wrong with an object, unless it went meanwhile, or reads well now."""
        if failure.kind == "locked":
            return  # Its digest is right; more can't be told without its key.
        store, report = self._store, self._report
        again = store.reread(failure.entry)
        with store.index.read() as catalog:
            is_there = failure.entry.same_place(catalog.current(failure.entry))
        if again is None or not is_there:
            return
        if again.kind == "corrupt":
            report.damaged += 1
            self._settle(lambda: store.condemn(again))
        elif again.kind == "missing":
            report.missing += 1
            self._settle(lambda: store.segments.lose(failure.entry))
        else:
            report.unreadable += 1
            report.left += 1
        self._list(again)

    def _settle(self, put_right: Callable[[], bool]) -> None:
        """What does not succeed any more went meanwhile."""
        if self._fix:
            self._report.fixed += put_right()
        else:
            self._report.left += 1

    def _list(self, failure: Failure) -> None:
        entry = failure.entry
        if len(self._report.findings) < MOST_LISTED:
            self._report.findings.append(
                Finding(
                    namespace_id=entry.namespace_id,
                    block=entry.block.hex(),
                    part=entry.part.name.lower(),
                    segment=entry.segment,
                    offset=entry.offset,
                    size_bytes=entry.record_bytes,
                    reason=failure.reason,
                )
            )

    # Segments.

    def _segment(self, segment: int) -> None:
        """Its header, and the fields of its namespaces: what a rebuild of the index needs."""
        store = self._store
        with store.index.read() as catalog:
            row = catalog.segment(segment)
            if row is None or not row.live_objects:
                return
            gaps = list(gaps_of(catalog, segment, row.committed_end))
            wanted = _namespaces_in(catalog, segment)
        there: set[bytes] = set()
        try:
            with scanned(store.files, store.pool, store.segments.path(segment)) as scan:
                header = scan.header()
                for start, end in gaps:
                    for offset, record in scan.records(start, end):
                        if record.record_class == RecordClass.NAMESPACE:
                            namespace = scan.namespace(offset, record)
                            there |= {namespace.id} if namespace is not None else set()
        except FileNotFoundError:
            return  # emptied meanwhile, or its objects were found missing
        except OSError as error:
            self._say(f"segment {segment} could not be read: {error.strerror}")
            return
        for namespace_id in wanted - there:
            self._say(f"segment {segment} has lost the fields of namespace {namespace_id.hex()}")
        right = SegmentHeader(segment, store.location.store_id, row.created_ns)
        if header is None or (header.segment, header.store_id) != (right.segment, right.store_id):
            self._say(f"segment {segment}: its header is damaged")
            if self._fix and self._write_header(right):
                self._report.fixed += 1
                self._report.left -= 1

    def _write_header(self, header: SegmentHeader) -> bool:
        """Put a damaged header right; the page is never part of a record. False if that failed."""
        store = self._store
        buffer = store.pool.take(PAGE_BYTES)
        try:
            fd = store.files.open(store.segments.path(header.segment), write=True)
            try:
                buffer.view[:PAGE_BYTES] = header.encode()
                write_fully(store.files, fd, buffer.view[:PAGE_BYTES], 0)
                store.files.sync(fd)
            finally:
                store.files.close(fd)
        except OSError as error:
            log.warning("segment %d: its header was not written: %s", header.segment, error)
            return False
        else:
            return True
        finally:
            store.pool.give(buffer)

    def _say(self, sentence: str) -> None:
        self._report.left += 1
        if len(self._report.segments) < MOST_LISTED:
            self._report.segments.append(sentence)


def _namespaces_in(catalog: Catalog, segment: int) -> set[bytes]:
    """The ids of the namespaces that objects in a segment belong to."""
    prefix = rows.segment_key(segment)
    return {value[8 : 8 + ID_BYTES] for _, value in catalog.within("places", prefix)}

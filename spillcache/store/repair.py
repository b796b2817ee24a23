"""Making the index agree with the segments: made anew if it is damaged, completed if it is not.

A damaged index can only be replaced while nobody else has the store open. Naming what a sound one
lacks can be done beside others, in short transactions.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spillcache.config import StoreConfig
from spillcache.errors import StoreIndexError
from spillcache.namespace import Namespace
from spillcache.store.audit import Audit
from spillcache.store.catalog import Catalog, Place
from spillcache.store.files import Files, store_error
from spillcache.store.format import PAGE_BYTES, RecordClass, RecordHeader
from spillcache.store.index_opening import Care
from spillcache.store.opened import OpenStore, acquire, release
from spillcache.store.progress import Progress, no_progress
from spillcache.store.rebuild import entry_of, is_wanted
from spillcache.store.rows import SegmentState, segment_key
from spillcache.store.scan import scanned

log = logging.getLogger("spillcache.store")


@dataclass(slots=True)
class RepairReport:
    """What a repair found and did."""

    rebuilt: bool = False
    """Whether the index was made anew; the old one is in ``index.damaged``."""
    was_alone: bool = False
    """Whether no other process had the store open when it began."""
    segments: int = 0
    objects: int = 0
    """In the index, afterwards."""
    named: int = 0
    """That lay in segments but were not in the index, and now are."""
    freed_bytes: int = 0
    """Of whole records that could not be named: second copies, and blocks after one that is
    gone.
    """
    unreadable: list[str] = field(default_factory=list)
    """Segments that could not be read; nothing in them was touched."""
    seconds: float = 0.0


def repair(
    path: Path,
    progress: Progress = no_progress,
    *,
    anew: bool = False,
    files: Files | None = None,
) -> RepairReport:
    """See ``BlockStore.repair``."""
    began = time.monotonic()
    care = Care(thorough=True, anew=anew, progress=progress)
    store = acquire(StoreConfig(path), None, files, care)
    try:
        with _one_at_a_time(store):
            report = RepairReport(care.set_aside, care.was_alone, named=care.named)
            _require_sound(store, care, anew=anew)
            Completion(store, report, progress).run()
            with store.index.read() as catalog:
                report.segments = len(catalog.segments())
                report.objects = catalog.count("places")
    except OSError as error:
        raise store_error(error, "the store was repaired") from error
    finally:
        release(store)
    report.seconds = time.monotonic() - began
    return report


def _require_sound(store: OpenStore, care: Care, *, anew: bool) -> None:
    """An index that others use can't be replaced."""
    if care.was_alone:
        return
    with store.index.read() as catalog:
        finding = next(Audit(catalog).findings(), None)
    if anew or finding is not None:
        why = f"contradicts itself ({finding})" if finding else "is to be made anew"
        raise StoreIndexError(
            f"the index of {store.location.path} {why}, and can't be replaced while a process has "
            "the store open; stop the servers that use it and repair it again"
        )


@contextmanager
def _one_at_a_time(store: OpenStore) -> Iterator[None]:
    """Wait until no other process completes this store's index."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(store.location.segments, flags)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class Completion:
    """Names the records that a sound index does not know, beside other processes. Reads only what
    no object's row covers.
    """

    def __init__(self, store: OpenStore, report: RepairReport, progress: Progress) -> None:
        self._store = store
        self._report = report
        self._progress = progress

    def run(self) -> None:
        """All segments, then the names; raises OSError and StoreError."""
        with self._store.index.read() as catalog:
            known = [s for s, row in catalog.segments() if row.state != SegmentState.FOUND]
        found: list[tuple[Place, RecordHeader]] = []
        namespaces: dict[bytes, Namespace] = {}
        for done, segment in enumerate(known):
            self._progress(done, len(known))
            try:
                found += self._unnamed(segment, namespaces)
            except FileNotFoundError:
                continue  # it was emptied and removed meanwhile
            except OSError as error:
                self._report.unreadable.append(f"segment {segment}: {error.strerror}")
        self._progress(len(known), len(known))
        found.sort(key=lambda each: (each[1].block_index, each[1].written_ns))
        for place, header in found:
            self._name(place, header, namespaces)

    def _unnamed(
        self, segment: int, namespaces: dict[bytes, Namespace]
    ) -> list[tuple[Place, RecordHeader]]:
        """Whole records that no row names."""
        with self._store.index.read() as catalog:
            row = catalog.segment(segment)
            gaps = list(gaps_of(catalog, segment, row.committed_end)) if row is not None else []
            for namespace_id, each in catalog.namespaces():
                namespaces.setdefault(namespace_id, Namespace.decode(each.encoding))
        found = []
        store = self._store
        with scanned(store.files, store.pool, store.segments.path(segment)) as scan:
            for start, end in gaps:
                for offset, header in scan.records(start, end):
                    if header.record_class == RecordClass.NAMESPACE:
                        namespace = scan.namespace(offset, header)
                        if namespace is not None:
                            namespaces.setdefault(namespace.id, namespace)
                    else:
                        found.append((Place(segment, offset, header.record_bytes), header))
        return found

    def _name(self, place: Place, header: RecordHeader, namespaces: dict[bytes, Namespace]) -> None:
        """Name one, or free it; nothing, if it went meanwhile."""
        store = self._store
        path = store.segments.path(place.segment)

        def work(catalog: Catalog) -> bool | None:
            # Nobody evicts while this transaction runs, and what was evicted before it is in
            # ``freeing`` until its bytes are gone: so a header that still stands is whole.
            if catalog.segment(place.segment) is None or place in catalog.freeing():
                return None
            if not _still_there(store, path, place, header):
                return None
            entry = entry_of(place, header)
            if entry is not None and is_wanted(catalog, entry, namespaces):
                catalog.use_namespace(namespaces[entry.namespace_id], entry.last_use)
                catalog.insert(entry)
                return True
            catalog.add_freeing(place)
            return False

        named = store.index.write(work)
        if named:
            self._report.named += 1
        elif named is False:
            store.segments.free([place])
            self._report.freed_bytes += place.length


def _still_there(store: OpenStore, path: Path, place: Place, header: RecordHeader) -> bool:
    try:
        with scanned(store.files, store.pool, path) as scan:
            return scan.record(place.offset) == header
    except FileNotFoundError:
        return False


def gaps_of(catalog: Catalog, segment: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretches of a segment, up to ``end``, that no object's record covers."""
    at = PAGE_BYTES
    for place, entry in catalog.places(segment_key(segment)):
        if entry is None:
            continue
        if place.offset > at:
            yield at, place.offset
        at = max(at, place.offset + place.length)
    if at < end:
        yield at, end

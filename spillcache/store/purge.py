"""Deleting on request: a namespace, or everything that is ours; never what is not.

While somebody uses the store it is emptied; otherwise all its files go, and what others have put
into the directory stays.
"""

import logging
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.catalog import Catalog, Place
from spillcache.store.files import BLOCK_BYTES, store_error
from spillcache.store.hidden import HIDDEN
from spillcache.store.index_sum import INDEX_SUM
from spillcache.store.location import (
    DAMAGED,
    INDEX,
    QUARANTINE,
    SEGMENTS,
    SETTINGS,
    read_location,
)
from spillcache.store.opened import OpenStore
from spillcache.store.progress import Progress
from spillcache.store.quarantine import is_record
from spillcache.store.rows import Entry
from spillcache.store.segments import segment_of
from spillcache.store.small_files import TEMPORARY
from spillcache.store.tails import tails_of
from spillcache.store.tenancy import alone_with

log = logging.getLogger("spillcache.store")

_STEP_OBJECTS = 2000
_PARTLY = "what is left is still a store, or can be deleted by hand"


@dataclass(slots=True)
class Purged:
    """What was deleted."""

    objects: int = 0
    freed_bytes: int = 0
    """On the filesystem; of an emptied store, of records."""
    files: int = 0
    removed: bool = False
    """Whether the whole store is gone, rather than emptied."""
    foreign: list[str] = field(default_factory=list)
    """What is not ours and was left, by name."""


def purge(store: OpenStore, namespace_id: bytes | None, progress: Progress) -> Purged:
    """Delete every object of a namespace, or of all; also what is pinned: its reader sees a miss.

    A namespace that is hidden stays on the list, and hidden. In short transactions, so that servers
    go on meanwhile. Raises StoreError.
    """
    prefix = namespace_id or b""
    done = Purged()
    total = _objects(store, namespace_id)
    start: bytes | None = b""
    while start is not None:
        places, start = _purge_step(store, start, prefix)
        store.segments.free(places)
        done.objects += len(places)
        done.freed_bytes += sum(place.length for place in places)
        progress(done.objects, max(total, done.objects))
    store.index.write(lambda catalog: _forget_namespaces(catalog, prefix))
    if namespace_id is None:
        try:
            store.clear_quarantine()
        except OSError as error:
            raise store_error(error, "the quarantine was purged") from error
    return done


def discard(store: OpenStore, namespace_id: bytes, blocks: Sequence[BlockHash], reason: str) -> int:
    """Delete all parts of ``blocks``, and their tails; how many objects went. Raises StoreError."""

    def work(catalog: Catalog) -> list[Place]:
        places: list[Place] = []
        # Deepest first: a row that others follow would stay without bytes.
        for block in reversed(blocks):
            for tail in tails_of(catalog, namespace_id, block):
                places += catalog.remove(next(iter(tail.values())))
            for part in reversed(Part):
                entry = catalog.entry(namespace_id, block, part)
                if entry is not None and entry.is_present:
                    places += catalog.remove(entry)
        return places

    places = store.index.write(work)
    store.segments.free(places)
    if places:
        log.error("%d objects were deleted: %s", len(places), reason)
    return len(places)


def _objects(store: OpenStore, namespace_id: bytes | None) -> int:
    with store.index.read() as catalog:
        usage = catalog.usage()
    return sum(u.objects for (n, _), u in usage.items() if namespace_id in (None, n))


def _purge_step(store: OpenStore, start: bytes, prefix: bytes) -> tuple[list[Place], bytes | None]:
    """Some objects from key ``start`` on, and where to go on; None at the end."""

    def work(catalog: Catalog) -> tuple[list[Place], bytes | None]:
        places: list[Place] = []
        entries = catalog.objects_from(start, prefix, _STEP_OBJECTS)
        for entry in entries:
            now = catalog.current(entry)
            if now is not None and now.is_present:
                places += catalog.remove(now)
        # A page that was not full is the last one.
        return places, _key_after(entries[-1]) if len(entries) == _STEP_OBJECTS else None

    return store.index.write(work)


def _key_after(entry: Entry) -> bytes:
    return entry.namespace_id + entry.block + bytes((entry.part + 1,))


def _forget_namespaces(catalog: Catalog, prefix: bytes) -> None:
    for namespace_id, row in catalog.namespaces():
        is_empty = not catalog.objects_from(namespace_id, namespace_id, 1)
        if namespace_id.startswith(prefix) and is_empty and not row.hidden_ns:
            catalog.drop_namespace(namespace_id)


def remove(path: Path) -> Purged | None:
    """Delete a store's files if nobody has it open; None if somebody has. The directory itself,
    and whatever in it is not ours, stay.

    Raises StoreLocationError and StoreFormatError when there is no store, StoreIOError when the
    filesystem fails.
    """
    location = read_location(path)
    try:
        with alone_with(location.path) as alone:
            return _remove(location.path) if alone else None
    except OSError as error:
        raise store_error(error, f"{location.path} was purged", _PARTLY) from error


def _remove(path: Path) -> Purged:
    done = Purged(removed=True)
    # Segments first: what is left after a crash must not be made into an index again. The settings
    # last: until they are gone the directory is known as ours.
    _remove_room(path / SEGMENTS, lambda n: segment_of(n.name) is not None, done)
    _remove_room(path / QUARANTINE, lambda n: is_record(n.name), done)
    for name in (INDEX, DAMAGED):
        _remove_room(path / name, lambda n: n.name in ("data.mdb", "lock.mdb"), done)
    names = (INDEX_SUM, HIDDEN)
    _remove_files(path, lambda n: n.name in names or n.name.startswith(TEMPORARY), done)
    _remove_files(path, lambda n: n.name == SETTINGS, done)
    done.foreign += sorted(str(each.relative_to(path)) for each in path.iterdir())
    return done


def _remove_room(path: Path, is_ours: Callable[[Path], bool], done: Purged) -> None:
    """Remove our files in one of our directories, and the directory if nothing is left in it."""
    if path.is_dir() and not path.is_symlink():
        _remove_files(path, is_ours, done)
        if not any(path.iterdir()):
            path.rmdir()


def _remove_files(path: Path, is_ours: Callable[[Path], bool], done: Purged) -> None:
    for each in _files(path):
        if is_ours(each):
            found = each.lstat()
            each.unlink()
            done.files += 1
            # Other names of the same bytes keep them.
            done.freed_bytes += found.st_blocks * BLOCK_BYTES if found.st_nlink == 1 else 0


def _files(path: Path) -> Iterator[Path]:
    for each in sorted(path.iterdir()):
        if stat.S_ISREG(each.lstat().st_mode):
            yield each

"""Collecting: first a plan of what would go, made by looking only; then the work itself.

A plan follows eviction's own order, so that what it lists is what would go if nothing else
happened; it is not a promise, for a server may use or add objects meanwhile.
"""

import heapq
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spillcache.config import MIB
from spillcache.errors import StoreFullError
from spillcache.state import Part
from spillcache.store import touches
from spillcache.store.catalog import Catalog
from spillcache.store.eviction import Eviction, evict, evict_older
from spillcache.store.files import Files
from spillcache.store.index import Index
from spillcache.store.location import DAMAGED, Location
from spillcache.store.opened import OpenStore
from spillcache.store.progress import Progress
from spillcache.store.room import Limits, excess_bytes, taken_bytes
from spillcache.store.rows import Entry, evictable_key, object_key, split_evictable_key
from spillcache.store.small_files import is_stale_temporary
from spillcache.store.touches import Uses
from spillcache.store.view import directory_bytes

_NS_PER_S = 1_000_000_000
_STEPS_OBJECTS = (2000, 50, 1)
"""In one transaction, for which other writers wait; fewer where the filesystem is so full that the
index has no room to be changed much.
"""
_STEP_BYTES = 256 * MIB
_ALWAYS = (1 << 64) - 1
_LAST_RANK = 255


@dataclass(slots=True)
class Share:
    """What goes of one namespace. Bytes are those of records, padding included."""

    objects: int = 0
    freed_bytes: int = 0


@dataclass(slots=True)
class Plan:
    """What a collection would do, or did."""

    used_bytes: int
    """Of everything in the directory, before."""
    target_bytes: int | None
    """What it should come down to; None: no more than age and the limits ask for."""
    namespaces: dict[bytes, Share] = field(default_factory=dict)
    """By namespace id; only in a plan."""
    objects: int = 0
    freed_bytes: int = 0
    aged_objects: int = 0
    """Of ``objects``: those that go for their age."""
    leftover_bytes: int = 0
    """Bytes that nothing names: of an index that was set aside, and of interrupted work."""

    @property
    def left_bytes(self) -> int:
        """About what the directory takes afterwards."""
        return max(0, self.used_bytes - self.freed_bytes - self.leftover_bytes)

    @property
    def reached(self) -> bool:
        """Whether that is no more than the target. The index does not shrink, so it need not be."""
        return self.target_bytes is None or self.left_bytes <= self.target_bytes

    def add(self, step: list[Entry]) -> None:
        """Objects that go."""
        for entry in step:
            share = self.namespaces.setdefault(entry.namespace_id, Share())
            for each in (share, self):
                each.objects += 1
                each.freed_bytes += entry.record_bytes


def plan(
    catalog: Catalog,
    index: Index,
    location: Location,
    limits: Limits,
    target_bytes: int | None = None,
) -> Plan:
    """What would go, so that the store is within ``limits`` (age, too) and takes no more than
    ``target_bytes``.
    """
    leftover = _leftover_bytes(location.path) + sum(p.length for p in catalog.freeing())
    made = Plan(directory_bytes(location.path), target_bytes, leftover_bytes=leftover)
    order = _Order(catalog)
    for step in order.until(_oldest(limits.max_age_s)):
        made.add(step)
    made.aged_objects = made.objects
    other, free = index.allocated_bytes(), Files().free_bytes(location.path)
    excess = excess_bytes(catalog.meta, other, free, limits)
    if target_bytes is not None:
        excess = max(excess, taken_bytes(catalog.meta, other) - target_bytes)
    for step in order.until(_ALWAYS):
        if made.freed_bytes >= excess:
            break
        made.add(step)
    return made


class _Order:
    """What eviction would take, step by step: an object, and what goes with it. Nothing is
    changed; memory grows with what was taken, not with what there is.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._parents: dict[bytes, Entry] = {}
        """By object key: blocks that lost a child, as they then are."""
        self._freed: list[bytes] = []
        """A heap of keys in ``evictable``: those of them that may go, too."""
        self._gone: set[bytes] = set()

    def until(self, newest: int) -> Iterator[list[Entry]]:
        """The steps left whose object was last used at ``newest`` or before."""
        stored = self._stored(newest)
        following = next(stored, None)
        while True:
            freed = self._freed[0] if self._freed else None
            if freed is not None and (following is None or freed < following):
                if split_evictable_key(freed)[1] > newest:
                    return
                yield self._take(self._parents[heapq.heappop(self._freed)[9:]])
            elif following is not None:
                entry = self._catalog.entry_at(following[9:])
                key, following = following[9:], next(stored, None)
                if entry is not None and key not in self._gone:
                    yield self._take(entry)
            else:
                return

    def _stored(self, newest: int) -> Iterator[bytes]:
        """The index's own order."""
        start: bytes | None = b"\0"
        while start is not None:
            keys, start = self._catalog.evictable_from(start), None
            for key in keys:
                first, use, _ = split_evictable_key(key)
                if use > newest:
                    # In the next rank the oldest come first again.
                    start = bytes((first + 1,)) if first < _LAST_RANK else None
                    break
                yield key

    def _take(self, entry: Entry) -> list[Entry]:
        step = [entry, *self._companions(entry)]
        self._gone.update(object_key(*each[:3]) for each in step)
        for each in step:
            self._bereave(each)
        return step

    def _companions(self, entry: Entry) -> Iterator[Entry]:
        """The other parts of a block whose KV goes, or of a tail."""
        for part in Part if entry.is_tail or entry.part is Part.KV else ():
            other = self._catalog.entry(entry.namespace_id, entry.block, part)
            if other is None or part is entry.part or not other.is_present:
                continue
            if object_key(*other[:3]) not in self._gone:
                yield other

    def _bereave(self, entry: Entry) -> None:
        """The block before loses a child, inherits its use, and may go if that was the last."""
        while entry.part is Part.KV and entry.block_index:
            key = object_key(entry.namespace_id, entry.parent, Part.KV)
            parent = self._parents.get(key) or self._catalog.entry_at(key)
            if parent is None:
                return
            entry = self._parents[key] = parent._replace(
                children=max(0, parent.children - 1), last_use=max(parent.last_use, entry.last_use)
            )
            if entry.is_evictable:
                heapq.heappush(self._freed, evictable_key(entry))
            if entry.children or entry.is_present:
                return


def collect(
    store: OpenStore, target_bytes: int | None, max_age_s: float | None, progress: Progress
) -> Plan:
    """Do it, in short transactions, so that servers go on meanwhile: what was done.

    What is pinned in this process stays. Raises StoreError.
    """
    done = Plan(directory_bytes(store.location.path), target_bytes)
    done.leftover_bytes = _remove_leftovers(store)
    oldest = _oldest(max_age_s)
    if max_age_s is not None:
        while _step(store, done, lambda c, s, most: evict_older(c, oldest, s, most)):
            progress(done.freed_bytes, done.freed_bytes)
    done.aged_objects = done.objects
    while (lacking := _excess(store, target_bytes)) > 0:
        need = min(lacking, _STEP_BYTES)
        progress(done.freed_bytes, done.freed_bytes + lacking)
        if not _step(store, done, lambda c, s, most: evict(c, need, s, _ALWAYS, most)):  # noqa: B023
            break
    progress(done.freed_bytes, done.freed_bytes)
    return done


_Work = Callable[[Catalog, Callable[[bytes], bool], int], Eviction]


def _step(store: OpenStore, done: Plan, work: _Work) -> bool:
    """One transaction, and the bytes that it sets free; whether anything went."""
    for most in _STEPS_OBJECTS:
        uses = store.touched.snapshot()

        def run(catalog: Catalog, most: int = most, uses: Uses = uses) -> Eviction:
            touches.apply(catalog, uses)
            return work(catalog, store.pins.__contains__, most)

        try:
            eviction = store.index.write(run)
            break
        except StoreFullError:
            if most == _STEPS_OBJECTS[-1]:
                raise
    store.touched.forget(uses)
    store.room.finish(eviction)
    done.objects += len(eviction.places)
    done.freed_bytes += eviction.freed_bytes
    return bool(eviction.places)


def _excess(store: OpenStore, target_bytes: int | None) -> int:
    """By how many bytes the store is too large, or the filesystem too full."""
    with store.index.read() as catalog:
        excess = -store.room.headroom(catalog)
        if target_bytes is not None:
            excess = max(excess, store.room.used_bytes(catalog) - target_bytes)
    return excess


def _oldest(max_age_s: float | None) -> int:
    return -1 if max_age_s is None else time.time_ns() - int(max_age_s * _NS_PER_S)


def _leftovers(path: Path) -> list[Path]:
    """What may be deleted at any time: an index that was set aside, and temporary files of
    processes that died.
    """
    names = [each for each in path.iterdir() if is_stale_temporary(each)]
    damaged = path / DAMAGED
    return [*names, damaged] if damaged.is_dir() and not damaged.is_symlink() else names


def _leftover_bytes(path: Path) -> int:
    return sum(directory_bytes(each) for each in _leftovers(path))


def _remove_leftovers(store: OpenStore) -> int:
    with store.index.read() as catalog:
        places = catalog.freeing()
    error = store.segments.free(places) or store.segments.retry()
    if error is not None:
        raise error  # evicting more would make no more room
    size = _leftover_bytes(store.location.path) + sum(place.length for place in places)
    for each in _leftovers(store.location.path):
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
    store.room.set_aside_bytes = 0
    return size

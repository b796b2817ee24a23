"""Which objects go when room is needed. Runs within a write transaction; frees nothing on disk
itself.

Only objects that nothing kept depends on are looked at, in the order of ``evictable``: higher ranks
before lower, then the least recently used. Its cost does not grow with the number of objects.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from spillcache.errors import StoreIndexError
from spillcache.state import Part
from spillcache.store.catalog import Catalog, Place
from spillcache.store.rows import split_evictable_key

_FIRST_BYTES = 256
_ALL = 1 << 63


@dataclass(slots=True)
class Eviction:
    """What was forgotten: its places are still to be freed."""

    places: list[Place] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    """Keys (namespace id and hash) of those whose kv went."""

    @property
    def freed_bytes(self) -> int:
        """What the places take, padding included."""
        return sum(place.length for place in self.places)


def evict(
    catalog: Catalog,
    need_bytes: int,
    is_spared: Callable[[bytes], bool],
    fresh_after: int,
    most: int = _ALL,
) -> Eviction:
    """Forget objects until ``need_bytes`` are freed, about ``most`` are gone, or nothing is left
    to forget.

    ``is_spared`` is asked with a block's key (namespace id and hash). Objects used after
    ``fresh_after`` (the store's clock) go only when all others are gone, so that what was just
    written isn't the next victim even in a rank that goes first.
    """
    eviction = Eviction()
    for newest in (fresh_after, None):
        _evict_until(catalog, eviction, need_bytes, is_spared, newest=newest, most=most)
    return eviction


def evict_older(
    catalog: Catalog, oldest: int, is_spared: Callable[[bytes], bool], most: int
) -> Eviction:
    """Forget objects that were last used at ``oldest`` (the store's clock) or before, about
    ``most`` of them.

    Costs what it forgets, not what there is: in each rank the least recently used come first.
    """
    eviction = Eviction()
    _evict_until(catalog, eviction, _ALL, is_spared, newest=oldest, most=most)
    return eviction


def _evict_until(
    catalog: Catalog,
    eviction: Eviction,
    need_bytes: int,
    is_spared: Callable[[bytes], bool],
    *,
    newest: int | None,
    most: int,
) -> None:
    start = b"\0"
    freed = eviction.freed_bytes
    while freed < need_bytes and len(eviction.places) < most:
        victim = _next_victim(catalog, start, is_spared, newest)
        if victim is None:
            return
        _, _, object_key = split_evictable_key(victim)
        entry = catalog.entry_at(object_key)
        if entry is None:
            raise StoreIndexError("the index is damaged: it evicts an object that is not there")
        places = catalog.remove(entry)
        eviction.places += places
        if entry.part is Part.KV:
            eviction.blocks.append(object_key[:-1])
        freed += sum(place.length for place in places)
        # The parent, if it may go now, has inherited the victim's use: look again from there.
        start = victim[:9]


def _next_victim(
    catalog: Catalog, start: bytes, is_spared: Callable[[bytes], bool], newest: int | None
) -> bytes | None:
    while True:
        for key in catalog.evictable_from(start):
            first, use, object_key = split_evictable_key(key)
            if newest is not None and use > newest:
                break
            if not is_spared(object_key[:-1]):
                return key
        else:
            return None
        if first + 1 == _FIRST_BYTES:
            return None
        start = bytes((first + 1,))

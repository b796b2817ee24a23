"""Naming many new objects in one transaction: each row is written once, however many objects of the
same chain come together.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.catalog import Catalog, Sum
from spillcache.store.rows import Entry, object_key


@dataclass(slots=True)
class _New:
    entry: Entry
    key: bytes
    children: int
    """Those that it has already, if it takes the place of a row without bytes."""


class Naming:
    """What ``Catalog.insert`` does, for many; on its transaction's thread. ``finish`` writes it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._new: dict[bytes, _New] = {}
        self._gone: dict[bytes, bytes] = {}
        self._children: Counter[bytes] = Counter()

    def has(self, key: bytes) -> bool:
        """Whether an object is there, or is about to be."""
        if key in self._new:
            return True
        value = self._catalog.row(key)
        if rows.is_present(value):
            return True
        if value is not None:
            self._gone[key] = value
        return False

    def add(self, entry: Entry, key: bytes) -> None:
        """Name an object, by its key, that ``has`` just said is not there.

        Its children and last use are filled in.
        """
        gone = self._gone.get(key)
        if gone is not None:
            row = rows.unpack_entry(entry.namespace_id, entry.block, entry.part, gone)
            self._new[key] = _New(entry, key, row.children)
            return
        self._new[key] = _New(entry, key, 0)
        if entry.part is Part.KV and entry.block_index:
            self._children[object_key(entry.namespace_id, entry.parent, Part.KV)] += 1

    def finish(self) -> None:
        """Write the rows."""
        catalog = self._catalog
        for key, new in self._new.items():
            new.children += self._children.pop(key, 0)
        for key, count in self._children.items():
            catalog.add_children(key, count)
        objects, places, evictable = [], [], []
        totals: defaultdict[tuple[int, bytes, Part], Sum] = defaultdict(Sum)
        for key, new in self._new.items():
            entry = new.entry.named(catalog.tick(), new.children)
            totals[entry.segment, entry.namespace_id, entry.part].plus(entry)
            objects.append((key, entry.value))
            place = rows.place_key(entry.segment, entry.offset)
            places.append((place, rows.pack_length(entry.record_bytes) + key))
            if not new.children:
                evictable.append((rows.evictable_key(entry), b""))
        for (segment, namespace_id, part), total in totals.items():
            catalog.account(segment, namespace_id, part, total, 1)
        catalog.put_all("objects", objects)
        catalog.put_all("places", places)
        catalog.put_all("evictable", evictable)

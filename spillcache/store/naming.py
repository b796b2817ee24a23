"""Naming many new objects in one transaction: each row is written once, however many objects of the
same chain come together.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.catalog import Catalog, Sum
from spillcache.store.objects import StoreObject


class Written(Protocol):
    """An object whose bytes lie in a segment."""

    namespace_id: bytes
    key: bytes
    """Its key in ``objects``."""
    parent_key: bytes
    """That of the KV which this KV follows; empty if there is none."""
    source: StoreObject
    segment: int
    offset: int
    size: int
    """Of the record."""
    raw_bytes: int
    stored_bytes: int

    def row(self, last_use: int, children: int) -> bytes:
        """The value of its row."""


class Naming:
    """What ``Catalog.insert`` does, for many; on its transaction's thread. ``finish`` writes it."""

    def __init__(self, catalog: Catalog, ahead_ns: Callable[[bytes], int]) -> None:
        """``ahead_ns``: how much later than now a block (namespace id and hash) counts as used."""
        self._catalog = catalog
        self._ahead_ns = ahead_ns
        self._new: dict[bytes, Written] = {}
        self._gone: dict[bytes, bytes] = {}
        self._children: dict[bytes, int] = {}

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

    def add(self, item: Written) -> None:
        """Name an object that ``has`` just said is not there."""
        key, children = item.key, self._children
        self._new[key] = item
        gone = self._gone.get(key) if self._gone else None
        if gone is not None:
            # A row without bytes, that its parent counts already.
            source = item.source
            row = rows.unpack_entry(item.namespace_id, source.block, source.part, gone)
            children[key] = children.get(key, 0) + row.children
        elif item.parent_key:
            children[item.parent_key] = children.get(item.parent_key, 0) + 1

    def finish(self) -> None:
        """Write the rows."""
        catalog, children, ahead_ns = self._catalog, self._children, self._ahead_ns
        objects, places, evictable, tails = [], [], [], []
        totals: defaultdict[tuple[int, bytes, Part], Sum] = defaultdict(Sum)
        moments = catalog.ticks(len(self._new))
        for (key, item), moment in zip(self._new.items(), moments, strict=True):
            count, use, source = children.pop(key, 0), moment + ahead_ns(key[:-1]), item.source
            objects.append((key, item.row(use, count)))
            place = rows.place_key(item.segment, item.offset)
            places.append((place, rows.pack_length(item.size) + key))
            if source.tail:
                tail = rows.tail_key(item.namespace_id, source.parent, source.block)
                tails.append((tail, rows.pack_tail(source.token_count)))
            if not count:
                evictable.append((rows.evictable_place(source.rank, use, key), b""))
            total = totals[item.segment, item.namespace_id, source.part]
            total.objects += 1
            total.raw_bytes += item.raw_bytes
            total.stored_bytes += item.stored_bytes
            total.record_bytes += item.size
        for key, count in children.items():
            catalog.add_children(key, count)
        for (segment, namespace_id, part), total in totals.items():
            catalog.account(segment, namespace_id, part, total, 1)
        catalog.put_all("objects", objects)
        catalog.put_all("places", places)
        catalog.put_all("evictable", evictable)
        catalog.put_all("tails", tails)

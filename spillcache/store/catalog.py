"""The index within one transaction: the rows, and the rules that keep them true to each other.

A ``Catalog`` lives as long as its transaction and is used on the thread that began it. Rows of
segments, usage and the store's figures are read once, changed in memory, and written by ``save``.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spillcache.chain import BlockHash
from spillcache.errors import StoreIndexError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.found import Found
from spillcache.store.rows import (
    Entry,
    Meta,
    NamespaceRow,
    PartUsage,
    SegmentRow,
    object_key,
)

DATABASES = (
    "meta",
    "notes",
    "namespaces",
    "usage",
    "objects",
    "evictable",
    "segments",
    "places",
    "freeing",
    "tails",
)
_META_KEY = b"meta"
_MAX_REASON = 1000
_KNOWN_PARTS = frozenset(Part)


class Place(NamedTuple):
    """A stretch of a segment file, in bytes."""

    segment: int
    offset: int
    length: int


def _nothing(key: bytes) -> None:
    """No row."""


@dataclass(slots=True)
class Sum:
    """Objects, and what they take in bytes."""

    objects: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    record_bytes: int = 0

    def plus(self, entry: Entry) -> "Sum":
        """With one more; itself."""
        self.objects += 1
        self.raw_bytes += entry.raw_bytes
        self.stored_bytes += entry.stored_bytes
        self.record_bytes += entry.record_bytes
        return self


def _plain(reason: str) -> str:
    """A reason as it can be kept and shown: one line, nothing that a terminal would act on."""
    line = " ".join(reason.split())[:_MAX_REASON]
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


class Catalog:
    """See the module. Any method may raise lmdb.Error or, for a row that can't be, struct.error;
    the index turns them into a store error.
    """

    def __init__(self, txn: Any, databases: dict[str, Any]) -> None:
        """``txn``: a transaction whose own database is ``objects``."""
        self._txn = txn
        self._db = databases
        self._meta: Meta | None = None
        self._segments: dict[int, SegmentRow | None] = {}
        self._usage: dict[bytes, PartUsage] = {}
        self._namespaces: dict[bytes, NamespaceRow | None] = {}

    # The store's own figures.

    @property
    def meta(self) -> Meta:
        """The store's figures; changes are written by ``save``. Raises StoreIndexError for another
        format.
        """
        if self._meta is None:
            value = self._txn.get(_META_KEY, db=self._db["meta"])
            try:
                self._meta = Meta() if value is None else Meta.unpack(value)
            except struct.error as error:
                raise StoreIndexError(f"the index has a damaged row: {error}") from error
            if self._meta.index_format != rows.INDEX_FORMAT:
                raise StoreIndexError(f"the index has unknown format {self._meta.index_format}")
        return self._meta

    def tick(self) -> int:
        """The next moment of the store's clock: Unix time in ns, but always later than the last."""
        return self.ticks(1)[0]

    def ticks(self, count: int) -> range:
        """As many of its next moments, one after another."""
        meta = self.meta
        first = max(meta.clock + 1, time.time_ns())
        meta.clock = first + count - 1
        return range(first, first + count)

    def save(self) -> None:
        """Write the rows that were changed in memory; the last step before the commit."""
        if self._meta is not None:
            self._put("meta", _META_KEY, self._meta.pack())
        for segment, row in self._segments.items():
            if row is not None:
                self._put("segments", rows.segment_key(segment), row.pack())
        for key, usage in self._usage.items():
            if usage.objects:
                self._put("usage", key, usage.pack())
            else:
                self._delete("usage", key)
        for key, namespace in self._namespaces.items():
            if namespace is not None:
                self._put("namespaces", key, namespace.pack())

    # Objects.

    def entry(self, namespace_id: bytes, block: bytes, part: Part) -> Entry | None:
        """The object's row, present or not (``Entry.is_present``)."""
        value = self._txn.get(object_key(namespace_id, block, part))
        if value is None:
            return None
        return rows.unpack_entry(namespace_id, BlockHash(block), part, value)

    def row(self, key: bytes) -> bytes | None:
        """The value of an object's row, by the object's key."""
        value: bytes | None = self._txn.get(key)
        return value

    def put_all(self, database: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Write many keys and values of one database."""
        with self._txn.cursor(db=self._db[database]) as cursor:
            cursor.putmulti(pairs)

    def add_children(self, key: bytes, count: int) -> None:
        """More blocks follow the one with that key, if there is one."""
        parent = self.entry_at(key)
        if parent is not None:
            self._write(parent, parent._replace(children=parent.children + count))

    def find(
        self, namespace_id: bytes, blocks: Sequence[BlockHash], parts: Sequence[Part]
    ) -> Found:
        """What is there of these blocks, bytes and all; nothing of a hidden namespace."""
        get = _nothing if self.is_hidden(namespace_id) else self._txn.get
        return Found(namespace_id, blocks, parts, get)

    def entry_at(self, key: bytes) -> Entry | None:
        """As ``entry``, by the object's key."""
        return self.entry(*rows.split_object_key(key))

    def current(self, entry: Entry) -> Entry | None:
        """The row that now has the entry's key."""
        return self.entry(entry.namespace_id, entry.block, entry.part)

    def has(self, namespace_id: bytes, block: bytes, part: Part) -> bool:
        """Whether the object is there, bytes and all."""
        return rows.is_present(self._txn.get(object_key(namespace_id, block, part)))

    def objects_from(self, start: bytes, prefix: bytes, most: int) -> list[Entry]:
        """Up to ``most`` rows from key ``start`` on whose keys begin with ``prefix``, in their
        order.
        """
        found: list[Entry] = []
        with self._txn.cursor(db=self._db["objects"]) as cursor:
            if cursor.set_range(max(start, prefix) or b"\0"):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix) or len(found) == most:
                        break
                    found.append(rows.unpack_entry(*rows.split_object_key(key), value))
        return found

    def insert(self, entry: Entry) -> None:
        """Name a new object whose bytes are on disk. There must be no present object of that key.

        A KV block counts as its parent's child: the parent is no longer evictable.
        """
        gone = self.current(entry)
        if gone is not None:
            entry = entry._replace(children=gone.children)
        elif entry.part is Part.KV and entry.block_index:
            self.add_children(object_key(entry.namespace_id, entry.parent, Part.KV), 1)
        self._write(gone, entry)
        key = object_key(entry.namespace_id, entry.block, entry.part)
        place = rows.place_key(entry.segment, entry.offset)
        self._put("places", place, rows.pack_length(entry.record_bytes) + key)
        if entry.is_tail:
            key = rows.tail_key(entry.namespace_id, entry.parent, entry.block)
            self._put("tails", key, rows.pack_tail(entry.token_count))
        self._count(entry, 1)

    def remove(self, entry: Entry) -> list[Place]:
        """Forget an object that is there; a KV block takes the block's other parts with it, if no
        block follows it, and any part of a tail takes the tail.

        A KV block that others follow stays as a row without bytes until they are gone or it is put
        again. Returns the freed places; they are also remembered as to be freed, until ``freed`` is
        told that they are.
        """
        freed = [self._forget(entry)]
        if entry.takes_others:
            for part in Part:
                other = self.entry(entry.namespace_id, entry.block, part)
                if other is not None and part is not entry.part and other.is_present:
                    freed.append(self._forget(other))
        return freed

    def _forget(self, entry: Entry) -> Place:
        if entry.children:
            self._write(entry, entry._replace(segment=rows.NOWHERE, offset=0))
        else:
            self._erase(entry)
        place = Place(entry.segment, entry.offset, entry.record_bytes)
        key = rows.place_key(place.segment, place.offset)
        self._delete("places", key)
        self._put("freeing", key, rows.pack_length(place.length))
        self._count(entry, -1)
        return place

    def _erase(self, entry: Entry | None) -> None:
        """Delete a row that no block follows; its parent inherits its use, and goes too if it has
        no bytes.
        """
        while entry is not None:
            if entry.is_evictable:
                self._delete("evictable", rows.evictable_key(entry))
            self._delete("objects", object_key(entry.namespace_id, entry.block, entry.part))
            if entry.is_tail:
                key = rows.tail_key(entry.namespace_id, entry.parent, entry.block)
                self._delete("tails", key)
            if entry.part is not Part.KV or not entry.block_index:
                return
            parent = self.entry(entry.namespace_id, entry.parent, Part.KV)
            if parent is None:
                return
            heir = parent._replace(
                children=max(0, parent.children - 1), last_use=max(parent.last_use, entry.last_use)
            )
            self._write(parent, heir)
            entry = None if heir.is_present or heir.children else heir

    def touch(self, entry: Entry, use: int) -> None:
        """Set an object's last use; from now on it goes as late as any, whatever its rank was."""
        if use > entry.last_use:
            self._write(entry, entry._replace(last_use=use, rank=0))

    def _write(self, old: Entry | None, new: Entry) -> None:
        """Replace a row and keep ``evictable`` true to it."""
        if old is not None and old.is_evictable:
            self._delete("evictable", rows.evictable_key(old))
        if new.is_evictable:
            self._put("evictable", rows.evictable_key(new), b"")
        key = object_key(new.namespace_id, new.block, new.part)
        self._put("objects", key, rows.pack_entry(new))

    def _count(self, entry: Entry, sign: int) -> None:
        self.account(entry.segment, entry.namespace_id, entry.part, Sum().plus(entry), sign)

    def account(self, segment: int, namespace_id: bytes, part: Part, total: Sum, sign: int) -> None:
        """Add objects of one part to what their segment holds and their namespace takes, or, with
        -1, take them away.
        """
        row = self.segment(segment)
        if row is not None:
            row.live_objects += sign * total.objects
            row.live_bytes += sign * total.record_bytes
        usage = self._usage_row(namespace_id + bytes((part,)))
        usage.objects += sign * total.objects
        usage.raw_bytes += sign * total.raw_bytes
        usage.stored_bytes += sign * total.stored_bytes

    def _usage_row(self, key: bytes) -> PartUsage:
        if key not in self._usage:
            value = self._txn.get(key, db=self._db["usage"])
            self._usage[key] = PartUsage() if value is None else PartUsage.unpack(value)
        return self._usage[key]

    def evictable_from(self, start: bytes) -> Iterator[bytes]:
        """The keys of ``evictable`` from ``start`` on; no writes while it iterates."""
        with self._txn.cursor(db=self._db["evictable"]) as cursor:
            if cursor.set_range(start):
                yield from cursor.iternext(keys=True, values=False)

    def evictable_latest(self) -> Iterator[bytes]:
        """The keys of ``evictable``, those that go last first; no writes while it iterates."""
        with self._txn.cursor(db=self._db["evictable"]) as cursor:
            yield from cursor.iterprev(keys=True, values=False)

    def is_evictable(self, key: bytes) -> bool:
        """Whether a key of ``evictable`` is that of an object as it is."""
        entry = self.entry_at(rows.split_evictable_key(key)[2])
        return entry is not None and entry.is_evictable and rows.evictable_key(entry) == key

    # Segments.

    def segment(self, segment: int) -> SegmentRow | None:
        """A segment's row; changes are written by ``save``."""
        if segment not in self._segments:
            value = self._txn.get(rows.segment_key(segment), db=self._db["segments"])
            self._segments[segment] = None if value is None else SegmentRow.unpack(value)
        return self._segments[segment]

    def segments(self) -> list[tuple[int, SegmentRow]]:
        """All of them, by id."""
        with self._txn.cursor(db=self._db["segments"]) as cursor:
            ids = [rows.split_segment_key(key) for key in cursor.iternext(values=False)]
        known = sorted({*ids, *self._segments})
        return [(each, row) for each in known if (row := self.segment(each)) is not None]

    def add_segment(self, segment: int, row: SegmentRow) -> None:
        """A new segment; the next one gets a higher id."""
        self._segments[segment] = row
        self.meta.next_segment = max(self.meta.next_segment, segment + 1)
        self.meta.allocated += row.allocated
        self.meta.reserved += row.reserved

    def drop_segment(self, segment: int) -> None:
        """Forget a segment that no object lies in, and what was to be freed in it."""
        row = self.segment(segment)
        if row is not None:
            self.measure(segment, 0)
            self.reserve(segment, -row.reserved)
        self._segments[segment] = None
        self._delete("segments", rows.segment_key(segment))
        for database in ("freeing", "places"):
            for key, _ in list(self.within(database, rows.segment_key(segment))):
                self._delete(database, key)

    def measure(self, segment: int, allocated: int) -> None:
        """Note what a segment takes on the filesystem, in bytes."""
        row = self.segment(segment)
        if row is not None:
            self.meta.allocated += allocated - row.allocated
            row.allocated = allocated

    def reserve(self, segment: int, change: int) -> None:
        """Promise more bytes (or, below zero, fewer) to a segment's writer."""
        row = self.segment(segment)
        if row is not None:
            self.meta.reserved += change
            row.reserved += change

    def entries_in(self, segment: int) -> list[Entry]:
        """The objects that lie in a segment, by offset."""
        prefix = rows.segment_key(segment)
        return [entry for _, entry in self.places(prefix) if entry is not None]

    def places(self, prefix: bytes = b"") -> Iterator[tuple[Place, Entry | None]]:
        """Every record's place in segments whose key begins with ``prefix``, and the object that
        lies there; None if the object's row does not say so.
        """
        for key, value in list(self.within("places", prefix)):
            place = Place(*rows.split_place_key(key), rows.unpack_length(value[:8]))
            entry = self.entry_at(value[8:])
            is_there = entry is not None and place == (
                entry.segment,
                entry.offset,
                entry.record_bytes,
            )
            yield place, entry if is_there else None

    def add_freeing(self, place: Place) -> None:
        """Remember a place that nothing names, until ``freed`` is told that its bytes are gone."""
        key = rows.place_key(place.segment, place.offset)
        self._put("freeing", key, rows.pack_length(place.length))

    def freeing(self) -> list[Place]:
        """All places that nothing names any more but whose bytes may still be allocated."""
        with self._txn.cursor(db=self._db["freeing"]) as cursor:
            return [
                Place(*rows.split_place_key(key), rows.unpack_length(value))
                for key, value in cursor.iternext()
            ]

    def freed(self, place: Place) -> None:
        """The place's bytes are the filesystem's again."""
        self._delete("freeing", rows.place_key(place.segment, place.offset))

    # Rows as they stand, for those who check them.

    def rows(self, database: str, start: bytes = b"\0") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from ``start`` on; no writes while it iterates."""
        with self._txn.cursor(db=self._db[database]) as cursor:
            if cursor.set_range(start):
                yield from cursor.iternext()

    def value(self, database: str, key: bytes) -> bytes | None:
        """One value."""
        value: bytes | None = self._txn.get(key, db=self._db[database])
        return value

    def count(self, database: str) -> int:
        """How many rows there are."""
        return int(self._txn.stat(self._db[database])["entries"])

    def within(self, database: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin with ``prefix``, and values; no writes while it iterates."""
        with self._txn.cursor(db=self._db[database]) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    yield key, value

    # Namespaces and notes.

    def use_namespace(self, namespace: Namespace, use: int) -> None:
        """Note that a namespace was written to; adds it. Raises StoreIndexError if its id is
        another's.
        """
        encoding = namespace.encode()
        row = self._namespace_row(namespace.id)
        if row is None:
            row = self._namespaces[namespace.id] = NamespaceRow(use, use, encoding)
        if row.encoding != encoding:
            raise StoreIndexError(f"two namespaces have the id {namespace.id.hex()}")
        row.last_used_ns = max(row.last_used_ns, use)

    def touch_namespace(self, namespace_id: bytes, use: int) -> None:
        """Note that a namespace was read from."""
        row = self._namespace_row(namespace_id)
        if row is not None:
            row.last_used_ns = max(row.last_used_ns, use)

    def is_hidden(self, namespace_id: bytes) -> bool:
        """Whether nothing of a namespace may be found."""
        row = self._namespace_row(namespace_id)
        return row is not None and row.hidden_ns > 0

    def hide(self, namespace_id: bytes, reason: str | None, since: int | None = None) -> bool:
        """Hide a namespace for a reason, or show it again (None); False if there is no such one."""
        row = self._namespace_row(namespace_id)
        if row is None:
            return False
        row.hidden_ns = 0 if reason is None else since or self.tick()
        row.reason = _plain(reason or "")
        return True

    def hidden(self) -> dict[bytes, NamespaceRow]:
        """All namespaces that are hidden, as they are in this transaction."""
        stored = dict(self.namespaces())
        now = {key: self._namespace_row(key) for key in stored.keys() | self._namespaces.keys()}
        return {key: row for key, row in now.items() if row is not None and row.hidden_ns}

    def drop_namespace(self, namespace_id: bytes) -> None:
        """Forget a namespace that has no objects."""
        self._namespaces[namespace_id] = None
        self._delete("namespaces", namespace_id)

    def _namespace_row(self, namespace_id: bytes) -> NamespaceRow | None:
        if namespace_id not in self._namespaces:
            value = self._txn.get(namespace_id, db=self._db["namespaces"])
            if value is None:
                return None
            self._namespaces[namespace_id] = NamespaceRow.unpack(value)
        return self._namespaces[namespace_id]

    def namespaces(self) -> list[tuple[bytes, NamespaceRow]]:
        """All namespaces by id."""
        with self._txn.cursor(db=self._db["namespaces"]) as cursor:
            return [(key, NamespaceRow.unpack(value)) for key, value in cursor.iternext()]

    def usage(self) -> dict[tuple[bytes, Part], PartUsage]:
        """What each part of each namespace takes."""
        with self._txn.cursor(db=self._db["usage"]) as cursor:
            return {
                (key[:-1], Part(key[-1])): PartUsage.unpack(value)
                for key, value in cursor.iternext()
                if key[-1] in _KNOWN_PARTS
            }

    def note(self, key: bytes) -> bytes | None:
        """A small fact."""
        value: bytes | None = self._txn.get(key, db=self._db["notes"])
        return value

    def set_note(self, key: bytes, value: bytes) -> None:
        """Remember a small fact."""
        self._put("notes", key, value)

    def _put(self, database: str, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._db[database])

    def _delete(self, database: str, key: bytes) -> None:
        self._txn.delete(key, db=self._db[database])

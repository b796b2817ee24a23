"""Whether the rows of an index agree with each other; looks only.

Every figure is counted again, in one pass over the objects and in memory that grows with segments
and namespaces, not with objects.
"""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from spillcache.chain import BlockHash
from spillcache.errors import StoreIndexError
from spillcache.namespace import ID_BYTES, Namespace
from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.catalog import Catalog
from spillcache.store.format import MAX_PAYLOAD_BYTES, MAX_TAIL_TOKENS, PAGE_BYTES
from spillcache.store.rows import (
    INDEX_FORMAT,
    OBJECT_KEY_BYTES,
    Entry,
    PartUsage,
    SegmentRow,
    SegmentState,
)

_MASK = (1 << 64) - 1
_STATES = frozenset(SegmentState)
_PARTS = frozenset(Part)


@dataclass(slots=True)
class _Lives:
    """What lies in a segment, counted."""

    objects: int = 0
    record_bytes: int = 0


@dataclass(slots=True)
class Audit:
    """One audit within one read transaction; ``findings`` may be iterated once."""

    catalog: Catalog
    deadline: float = float("inf")
    """In ``time.monotonic``'s time; what is not seen by then is taken as right."""
    _present: int = 0
    _evictable: int = 0
    _following: int = 0
    """A sum over blocks of a number made of the parent's hash; each parent adds its own as often as
    it says that blocks follow. Equal sums mean that all those counts are right.
    """
    _known: dict[int, SegmentRow] = field(default_factory=dict)
    _lives: dict[int, _Lives] = field(default_factory=dict)
    _usage: dict[bytes, PartUsage] = field(default_factory=dict)

    def findings(self) -> Iterator[str]:
        """A sentence for each contradiction; none for a sound index."""
        try:
            yield from self._figures()
            yield from self._namespaces()
            for key, value in self.catalog.rows("objects"):
                yield from self._object(key, value)
                if time.monotonic() > self.deadline:
                    return
            yield from self._tails()
            yield from self._totals()
        except (struct.error, ValueError, StoreIndexError) as error:
            yield f"a row that can't be: {error}"

    def _figures(self) -> Iterator[str]:
        meta = self.catalog.meta
        if meta.index_format != INDEX_FORMAT:
            yield f"format {meta.index_format}"
        self._known = dict(self.catalog.segments())
        for segment, row in self._known.items():
            if row.state not in _STATES or row.committed_end % PAGE_BYTES:
                yield f"segment {segment} has an impossible row"
        if meta.allocated != sum(row.allocated for row in self._known.values()):
            yield "the sum of the segments' allocated bytes is wrong"
        if meta.reserved != sum(row.reserved for row in self._known.values()):
            yield "the sum of the segments' promised bytes is wrong"
        if self._known and max(self._known) >= meta.next_segment:
            yield "the next segment's id is given out already"

    def _namespaces(self) -> Iterator[str]:
        for namespace_id, row in self.catalog.namespaces():
            if Namespace.decode(row.encoding).id != namespace_id:
                yield f"namespace {namespace_id.hex()} has other fields"

    def _object(self, key: bytes, value: bytes) -> Iterator[str]:
        if len(key) != OBJECT_KEY_BYTES or key[-1] not in _PARTS:
            yield f"an object's key can't be: {key.hex()}"
            return
        entry = rows.unpack_entry(*rows.split_object_key(key), value)
        self._follow(entry)
        if entry.is_present:
            yield from self._present_object(key, entry)
        elif not entry.children:
            yield f"{key.hex()}: a row without bytes that nothing needs"
        if entry.is_tail:
            yield from self._tail(key, entry)
        if entry.is_evictable:
            self._evictable += 1
            if self.catalog.value("evictable", rows.evictable_key(entry)) is None:
                yield f"{key.hex()}: could go, but is not on the list"

    def _tail(self, key: bytes, entry: Entry) -> Iterator[str]:
        if not 0 < entry.token_count == entry.tail_tokens:
            yield f"{key.hex()}: a tail whose tokens are counted wrong"
        row = rows.tail_key(entry.namespace_id, entry.parent, entry.block)
        if self.catalog.value("tails", row) != rows.pack_tail(entry.token_count):
            yield f"{key.hex()}: a tail that its parent does not know"

    def _tails(self) -> Iterator[str]:
        for key, _ in self.catalog.rows("tails"):
            namespace_id, parent, block = rows.split_tail_key(key)
            parts = (self.catalog.entry(namespace_id, block, part) for part in Part)
            if not any(each and each.is_tail and each.parent == parent for each in parts):
                yield f"tails has a row of one that is not there: {key.hex()}"

    def _follow(self, entry: Entry) -> None:
        if entry.part is not Part.KV:
            return
        self._following += entry.children * _number(entry.block)
        if entry.block_index:
            self._following -= _number(entry.parent)
        self._following &= _MASK

    def _present_object(self, key: bytes, entry: Entry) -> Iterator[str]:
        self._present += 1
        longest = max(entry.raw_bytes, entry.stored_bytes)
        if longest > MAX_PAYLOAD_BYTES or entry.tail_tokens > MAX_TAIL_TOKENS:
            yield f"{key.hex()}: a length over the limit"
        usage = self._usage.setdefault(key[:ID_BYTES] + key[-1:], PartUsage())
        usage.objects += 1
        usage.raw_bytes += entry.raw_bytes
        usage.stored_bytes += entry.stored_bytes
        lives = self._lives.setdefault(entry.segment, _Lives())
        lives.objects += 1
        lives.record_bytes += entry.record_bytes
        place = rows.place_key(entry.segment, entry.offset)
        if self.catalog.value("places", place) != rows.pack_length(entry.record_bytes) + key:
            yield f"{key.hex()}: its place is another's"
        row = self._known.get(entry.segment)
        end = entry.offset + entry.record_bytes
        if row is None or entry.offset < PAGE_BYTES or end > row.committed_end:
            yield f"{key.hex()}: lies beyond its segment"

    def _totals(self) -> Iterator[str]:
        if self._following:
            yield "the counts of the blocks that follow are wrong"
        for database, count in (("places", self._present), ("evictable", self._evictable)):
            if self.catalog.count(database) != count:
                yield f"{database} has rows that it should not have"
        for segment, row in self._known.items():
            lives = self._lives.get(segment, _Lives())
            if (row.live_objects, row.live_bytes) != (lives.objects, lives.record_bytes):
                yield f"segment {segment}: what lives in it is counted wrong"
        written = {
            key: PartUsage.unpack(value)
            for key, value in self.catalog.rows("usage")
            if key[-1] in _PARTS
        }
        if written != self._usage:
            yield "what the namespaces take is counted wrong"
        named = {namespace_id for namespace_id, _ in self.catalog.namespaces()}
        if not {key[:-1] for key in self._usage} <= named:
            yield "objects of a namespace that is not there"


def _number(block: BlockHash) -> int:
    return int.from_bytes(block[:8], "little")

"""The keys and values of the index, as bytes (docs/format.md). Pure; any thread.

Values are little-endian structs; integers in keys are big-endian, so that LMDB's byte order is
their order.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from spillcache.chain import HASH_BYTES, BlockHash
from spillcache.namespace import ID_BYTES
from spillcache.state import Part
from spillcache.store.format import RECORD_HEADER_BYTES, TOKEN_BYTES, padded

INDEX_FORMAT = 1
OBJECT_KEY_BYTES = ID_BYTES + HASH_BYTES + 1
NOWHERE = 0
"""The segment of an object whose bytes are gone while blocks that follow it are still there."""

_ENTRY = struct.Struct("<QQQQQ32sIIIIBBBx")
_SEGMENT = struct.Struct("<BxxxxxxxQQQQQQQ")
_META = struct.Struct("<IxxxxQQQQQ")
_USAGE = struct.Struct("<QQQ")
_NAMESPACE = struct.Struct("<QQQI")
_U64 = struct.Struct("<Q")
_U64_KEY = struct.Struct(">Q")
_PLACE_KEY = struct.Struct(">QQ")


class Entry(NamedTuple):
    """Where an object lies, as the index knew it. A tuple, because thousands are made in one
    lookup.

    Callers use the first fields; the rest, from ``segment`` on, is the store's. An entry stops
    being true when its object is evicted; reading it then raises ObjectMissing.
    """

    namespace_id: bytes
    block: BlockHash
    part: Part
    segment: int
    offset: int
    stored_bytes: int
    raw_bytes: int
    last_use: int
    """The store's clock: nanoseconds, never the same twice."""
    parent: BlockHash
    block_index: int
    token_count: int
    tail_tokens: int
    children: int
    """How many blocks of part KV follow this one; only for part KV."""
    codec: int
    rank: int
    record_class: int

    @property
    def payload_offset(self) -> int:
        """Where the payload begins in the record."""
        return RECORD_HEADER_BYTES + TOKEN_BYTES * self.tail_tokens

    @property
    def record_bytes(self) -> int:
        """What the record takes in its segment, header and padding included."""
        return padded(self.payload_offset + self.stored_bytes)

    @property
    def is_present(self) -> bool:
        """Whether the object's bytes are in a segment."""
        return self.segment != NOWHERE

    @property
    def is_evictable(self) -> bool:
        """Whether nothing that is kept needs it: never a block before the blocks that follow it."""
        return self.segment != NOWHERE and self.children == 0

    def same_place(self, other: "Entry | None") -> bool:
        """Whether ``other`` is the same record."""
        return other is not None and (self.segment, self.offset) == (other.segment, other.offset)


def object_key(namespace_id: bytes, block: bytes, part: int) -> bytes:
    """The key of an object in ``objects``."""
    return namespace_id + block + bytes((part,))


def pack_entry(entry: Entry) -> bytes:
    """The value of an object in ``objects``."""
    return _ENTRY.pack(*entry[3:])


def unpack_entry(namespace_id: bytes, block: BlockHash, part: Part, value: bytes) -> Entry:
    """The entry whose key is made of the first three; raises struct.error."""
    return Entry(namespace_id, block, part, *_ENTRY.unpack(value))


def split_object_key(key: bytes) -> tuple[bytes, BlockHash, Part]:
    """Namespace id, block and part."""
    return key[:ID_BYTES], BlockHash(key[ID_BYTES:-1]), Part(key[-1])


def evictable_key(entry: Entry) -> bytes:
    """The key in ``evictable``: the smallest goes first; higher ranks before lower, then the least
    recently used.
    """
    use = _U64_KEY.pack(entry.last_use)
    key = object_key(entry.namespace_id, entry.block, entry.part)
    return bytes((255 - entry.rank,)) + use + key


def split_evictable_key(key: bytes) -> tuple[int, int, bytes]:
    """The first byte (255 - rank), the last use and the object's key."""
    return key[0], _U64_KEY.unpack_from(key, 1)[0], key[9:]


def place_key(segment: int, offset: int) -> bytes:
    """The key in ``places`` and ``freeing``."""
    return _PLACE_KEY.pack(segment, offset)


def split_place_key(key: bytes) -> tuple[int, int]:
    """Segment and offset."""
    segment, offset = _PLACE_KEY.unpack(key)
    return segment, offset


def segment_key(segment: int) -> bytes:
    """The key in ``segments``; also the first half of a place's key."""
    return _U64_KEY.pack(segment)


def pack_length(length: int) -> bytes:
    """The value in ``freeing``."""
    return _U64.pack(length)


def unpack_length(value: bytes) -> int:
    """A length in bytes."""
    return int(_U64.unpack(value)[0])


def split_segment_key(key: bytes) -> int:
    """The segment's id."""
    return int(_U64_KEY.unpack(key)[0])


class SegmentState(IntEnum):
    """Whether a segment may still grow. The numbers are on disk: never reuse one."""

    OPEN = 1
    """A process holds its lock and appends to it; if nobody holds the lock, its writer died."""
    SEALED = 2


@dataclass(slots=True)
class SegmentRow:
    """What the index knows of one segment file. All sizes in bytes."""

    state: int
    owner_pid: int
    """For people only; the file's lock tells whether the owner lives."""
    created_ns: int
    committed_end: int
    """Bytes from here on are named by nothing."""
    live_objects: int
    live_bytes: int
    """Of the records that ``objects`` names, padding included."""
    allocated: int
    """On the filesystem, when last measured."""
    reserved: int
    """Promised to its writer beyond what is allocated."""

    def pack(self) -> bytes:
        """The value in ``segments``."""
        return _SEGMENT.pack(
            self.state,
            self.owner_pid,
            self.created_ns,
            self.committed_end,
            self.live_objects,
            self.live_bytes,
            self.allocated,
            self.reserved,
        )

    @classmethod
    def unpack(cls, value: bytes) -> "SegmentRow":
        """What ``pack`` made."""
        return cls(*_SEGMENT.unpack(value))


@dataclass(slots=True)
class Meta:
    """The store's own figures, one row. All sizes in bytes."""

    index_format: int = INDEX_FORMAT
    clock: int = 0
    """The last use that was given out."""
    next_segment: int = 1
    allocated: int = 0
    """The sum over ``segments``."""
    reserved: int = 0
    """The sum over ``segments``."""
    quarantined: int = 0

    def pack(self) -> bytes:
        """The value in ``meta``."""
        return _META.pack(
            self.index_format,
            self.clock,
            self.next_segment,
            self.allocated,
            self.reserved,
            self.quarantined,
        )

    @classmethod
    def unpack(cls, value: bytes) -> "Meta":
        """What ``pack`` made; raises struct.error."""
        return cls(*_META.unpack(value))


@dataclass(slots=True)
class PartUsage:
    """Objects of one part in one namespace, and their payload bytes."""

    objects: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def pack(self) -> bytes:
        """The value in ``usage``."""
        return _USAGE.pack(self.objects, self.raw_bytes, self.stored_bytes)

    @classmethod
    def unpack(cls, value: bytes) -> "PartUsage":
        """What ``pack`` made."""
        return cls(*_USAGE.unpack(value))


@dataclass(slots=True)
class NamespaceRow:
    """One namespace: its encoding, when it was first and last used, and since when it is hidden
    (the store's clock, which is Unix time).
    """

    created_ns: int
    last_used_ns: int
    encoding: bytes
    hidden_ns: int = 0
    """0: it is not hidden."""
    reason: str = ""
    """Why it is hidden, for people."""

    def pack(self) -> bytes:
        """The value in ``namespaces``."""
        reason = self.reason.encode()
        head = _NAMESPACE.pack(self.created_ns, self.last_used_ns, self.hidden_ns, len(reason))
        return head + reason + self.encoding

    @classmethod
    def unpack(cls, value: bytes) -> "NamespaceRow":
        """What ``pack`` made; raises struct.error."""
        created_ns, last_used_ns, hidden_ns, length = _NAMESPACE.unpack_from(value)
        end = _NAMESPACE.size + length
        reason = value[_NAMESPACE.size : end].decode(errors="replace")
        return cls(created_ns, last_used_ns, value[end:], hidden_ns, reason)

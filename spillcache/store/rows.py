"""The keys and values of the index, as bytes (docs/format.md). Pure; any thread.

Values are little-endian structs; integers in keys are big-endian, so that LMDB's byte order is
their order.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from spillcache.chain import HASH_BYTES, BlockHash
from spillcache.namespace import ID_BYTES
from spillcache.state import Part
from spillcache.store.format import RECORD_HEADER_BYTES, TOKEN_BYTES, RecordClass, padded

INDEX_FORMAT = 1
OBJECT_KEY_BYTES = ID_BYTES + HASH_BYTES + 1
_FEW = 8
NOWHERE = 0
"""The segment of an object whose bytes are gone while blocks that follow it are still there."""

_ENTRY = struct.Struct("<QQQQQ32sIIIIBBBB")
ENTRY_BYTES = _ENTRY.size
PRESENT = bytes(7) + b"\x01"
"""Rows of objects that lie in a segment compare as not less than this: its first eight bytes are
not all zero.
"""
_NAMES = (
    *("namespace_id", "block", "part", "segment", "offset", "stored_bytes", "raw_bytes"),
    *("last_use", "parent", "block_index", "token_count", "tail_tokens", "children"),
    *("codec", "rank", "record_class", "encrypted"),
)
_FIELDS = {name: at for at, name in enumerate(_NAMES)}
_SEGMENT = struct.Struct("<BxxxxxxxQQQQQQQ")
_META = struct.Struct("<IxxxxQQQQQ")
_USAGE = struct.Struct("<QQQ")
_NAMESPACE = struct.Struct("<QQQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_U64_KEY = struct.Struct(">Q")
_PLACE_KEY = struct.Struct(">QQ")


class _Number:
    """A field of an entry that is decoded when it is asked for."""

    __slots__ = ("_at", "_unpack")

    def __init__(self, kind: str, at: int) -> None:
        self._at = at
        self._unpack = struct.Struct(kind).unpack_from

    def __get__(self, entry: "Entry", owner: type) -> int:
        return self._unpack(entry[3], self._at)[0]  # type: ignore[no-any-return]


class Entry(tuple[bytes, BlockHash, Part, bytes]):
    """Where an object lies, as the index knew it. Immutable; decoded lazily, because thousands are
    made in one lookup and most of them are only counted.

    Callers use the first fields; the rest, from ``segment`` on, is the store's. An entry stops
    being true when its object is evicted; reading it then raises ObjectMissing.
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0917 - a row; callers name the fields
        cls,
        namespace_id: bytes,
        block: BlockHash,
        part: Part,
        segment: int,
        offset: int,
        stored_bytes: int,
        raw_bytes: int,
        last_use: int,
        parent: BlockHash,
        block_index: int,
        token_count: int,
        tail_tokens: int,
        children: int,
        codec: int,
        rank: int,
        record_class: int,
        encrypted: int = 0,
    ) -> "Entry":
        """Made of all its fields; raises struct.error if one is out of range."""
        value = _ENTRY.pack(
            segment,
            offset,
            stored_bytes,
            raw_bytes,
            last_use,
            parent,
            block_index,
            token_count,
            tail_tokens,
            children,
            codec,
            rank,
            record_class,
            encrypted,
        )
        return tuple.__new__(cls, (namespace_id, block, part, value))

    @property
    def namespace_id(self) -> bytes:
        """The namespace's id."""
        return self[0]

    @property
    def block(self) -> BlockHash:
        """The block's hash."""
        return self[1]

    @property
    def part(self) -> Part:
        """The part of the block."""
        return self[2]

    @property
    def value(self) -> bytes:
        """The row in ``objects``."""
        return self[3]

    segment = _Number("<Q", 0)
    offset = _Number("<Q", 8)
    stored_bytes = _Number("<Q", 16)
    raw_bytes = _Number("<Q", 24)
    last_use = _Number("<Q", 32)
    """The store's clock: nanoseconds, never the same twice."""
    block_index = _Number("<I", 72)
    token_count = _Number("<I", 76)
    tail_tokens = _Number("<I", 80)
    children = _Number("<I", 84)
    """How many blocks of part KV follow this one; only for part KV."""

    @property
    def parent(self) -> BlockHash:
        """The hash of the block before, or the chain's root."""
        return BlockHash(self[3][40:72])

    @property
    def codec(self) -> int:
        """How the payload is stored."""
        return self[3][88]

    @property
    def rank(self) -> int:
        """Higher ranks are evicted first."""
        return self[3][89]

    @property
    def record_class(self) -> int:
        """What the record is."""
        return self[3][90]

    @property
    def is_tail(self) -> bool:
        """Whether the block is a partial last one."""
        return self[3][90] == RecordClass.TAIL

    @property
    def encrypted(self) -> int:
        """1 if a key is needed to read it, else 0."""
        return self[3][91]

    @property
    def payload_offset(self) -> int:
        """Where the stored payload begins in the record."""
        return RECORD_HEADER_BYTES + (0 if self[3][91] else TOKEN_BYTES * self.tail_tokens)

    @property
    def record_bytes(self) -> int:
        """What the record takes in its segment, header and padding included."""
        return padded(self.payload_offset + self.stored_bytes)

    @property
    def is_present(self) -> bool:
        """Whether the object's bytes are in a segment."""
        return self[3] >= PRESENT

    @property
    def is_evictable(self) -> bool:
        """Whether nothing that is kept needs it: never a block before the blocks that follow it."""
        return self[3] >= PRESENT and self.children == 0

    @property
    def takes_others(self) -> bool:
        """Whether the block's other parts are of no use without it: of a tail every part is needed,
        of a block the KV, unless other blocks follow.
        """
        return self.is_tail or (self[2] is Part.KV and self.children == 0)

    def same_place(self, other: "Entry | None") -> bool:
        """Whether ``other`` is the same record."""
        return other is not None and self[3][:16] == other[3][:16]

    def _replace(self, **changes: Any) -> "Entry":
        """A copy with some fields changed."""
        values = [*self[:3], *_ENTRY.unpack(self[3])]
        for name, value in changes.items():
            values[_FIELDS[name]] = value
        return Entry(*values)

    def __repr__(self) -> str:
        fields = zip(_NAMES, (*self[:3], *_ENTRY.unpack(self[3])), strict=True)
        return f"Entry({', '.join(f'{name}={value!r}' for name, value in fields)})"


def object_key(namespace_id: bytes, block: bytes, part: int) -> bytes:
    """The key of an object in ``objects``."""
    return namespace_id + block + bytes((part,))


def object_keys(namespace_id: bytes, blocks: Sequence[bytes], part: int) -> list[bytes]:
    """``object_key`` of many blocks, cut from one long string: six times as fast as one by one."""
    suffix = bytes((part,))
    if len(blocks) <= _FEW:  # where numpy's caches are cold, its calls cost more
        few = [namespace_id + block + suffix for block in blocks]
        if any(len(key) != OBJECT_KEY_BYTES for key in few):
            raise ValueError(f"block hashes have {HASH_BYTES} bytes")
        return few
    keys = namespace_id + (suffix + namespace_id).join(blocks) + suffix
    if len(keys) != len(blocks) * OBJECT_KEY_BYTES:
        raise ValueError(f"block hashes have {HASH_BYTES} bytes")
    found: list[bytes] = np.frombuffer(keys, f"V{OBJECT_KEY_BYTES}").tolist()
    return found


pack_row = _ENTRY.pack
"""The value of an object in ``objects``: of an entry's fields from ``segment`` on, in order."""


def pack_entry(entry: Entry) -> bytes:
    """The value of an object in ``objects``."""
    return entry[3]


def unpack_entry(namespace_id: bytes, block: BlockHash, part: Part, value: bytes) -> Entry:
    """The entry whose key is made of the first three; raises struct.error."""
    if len(value) != ENTRY_BYTES:
        raise struct.error(f"a row of {len(value)} bytes")
    return tuple.__new__(Entry, (namespace_id, block, part, value))


def is_present(value: bytes | None) -> bool:
    """Whether a value in ``objects`` is that of an object whose bytes are in a segment; raises
    struct.error for one of a wrong length.
    """
    if value is not None and len(value) != ENTRY_BYTES:
        raise struct.error(f"a row of {len(value)} bytes")
    return value is not None and value >= PRESENT


def tail_key(namespace_id: bytes, parent: bytes, block: bytes = b"") -> bytes:
    """The key of a tail in ``tails``; without its hash, the prefix of all tails of ``parent``."""
    return namespace_id + parent + block


def split_tail_key(key: bytes) -> tuple[bytes, BlockHash, BlockHash]:
    """Namespace id, the parent's hash and the tail's; raises struct.error."""
    if len(key) != ID_BYTES + 2 * HASH_BYTES:
        raise struct.error(f"a tail's key of {len(key)} bytes")
    parent_end = ID_BYTES + HASH_BYTES
    return key[:ID_BYTES], BlockHash(key[ID_BYTES:parent_end]), BlockHash(key[parent_end:])


def split_object_key(key: bytes) -> tuple[bytes, BlockHash, Part]:
    """Namespace id, block and part."""
    return key[:ID_BYTES], BlockHash(key[ID_BYTES:-1]), Part(key[-1])


def evictable_key(entry: Entry) -> bytes:
    """The key in ``evictable``: the smallest goes first; higher ranks before lower, then the least
    recently used.
    """
    key = object_key(entry.namespace_id, entry.block, entry.part)
    return evictable_place(entry.rank, entry.last_use, key)


def evictable_place(rank: int, last_use: int, key: bytes) -> bytes:
    """As ``evictable_key``, of an object's key."""
    return bytes((255 - rank,)) + _U64_KEY.pack(last_use) + key


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


pack_tail = _U32.pack
"""The value in ``tails``: how many tokens the tail has."""


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
    FOUND = 3
    """Its records are being named anew, after the index was lost; if nobody does so, they still
    are to be.
    """


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

"""The bytes of a segment file: its header and its records (docs/format.md gives every byte).

A segment is a page with the segment header, then records, each padded to whole pages so that reads
can bypass the page cache. A record is a header of ``RECORD_HEADER_BYTES``, a tail's tokens (if it
is one), and the payload as stored. All integers are little-endian. Pure functions: any thread.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from blake3 import blake3

from spillcache.chain import HASH_BYTES, BlockHash, block_hash
from spillcache.namespace import ID_BYTES, Namespace
from spillcache.state import Buffer
from spillcache.store.cipher import KEY_ID_BYTES, NO_KEY, OVERHEAD_BYTES

FORMAT = 1
"""The number in every segment header and in spillcache.json; another one is refused."""

PAGE_BYTES = 4096
STORE_ID_BYTES = 16
CHECKSUM_BYTES = 16
DIGEST_BYTES = 32
RECORD_HEADER_BYTES = 192
DIGEST_OFFSET = 120
KEY_ID_OFFSET = 152
TOKEN_BYTES = 4

MAX_PAYLOAD_BYTES = 1 << 36
MAX_TAIL_TOKENS = 1 << 20

SEGMENT_MAGIC = b"spillseg"
RECORD_MAGIC = b"spillrec"

_SEGMENT = struct.Struct("<8sIIQ16sQ")
_RECORD = struct.Struct("<8sBBBBI8s32s32sIIQQQ32s8s16x")
_NO_HASH = bytes(HASH_BYTES)


class RecordClass(IntEnum):
    """What a record is. The numbers are on disk: never reuse one."""

    BLOCK = 1
    """One part of a whole block."""
    TAIL = 2
    """One part of a partial last block; its tokens stand before the payload."""
    NAMESPACE = 3
    """The encoding of a namespace, before its first record in the segment."""
    TOKENS = 4
    """The tokens of a slot file; never in a segment."""


class FormatError(ValueError):
    """Bytes that are not what the format says; the message names the first thing that is wrong."""


def padded(size_bytes: int) -> int:
    """``size_bytes`` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def checksum(data: Buffer) -> bytes:
    """What stands at the end of a header, over all before it."""
    return blake3(data).digest(length=CHECKSUM_BYTES)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first page of a segment file."""

    segment: int
    store_id: bytes
    created_ns: int
    """Unix time."""

    def encode(self) -> bytes:
        """``PAGE_BYTES`` bytes."""
        head = _SEGMENT.pack(
            SEGMENT_MAGIC, FORMAT, PAGE_BYTES, self.segment, self.store_id, self.created_ns
        )
        return (head + checksum(head)).ljust(PAGE_BYTES, b"\0")

    @classmethod
    def parse(cls, data: Buffer) -> "SegmentHeader":
        """The header in the first bytes of ``data``; raises FormatError."""
        end = _SEGMENT.size + CHECKSUM_BYTES
        if len(data) < end:
            raise FormatError("the segment is shorter than its header")
        magic, number, size, segment, store_id, created_ns = _SEGMENT.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            raise FormatError("not a segment: wrong magic")
        if checksum(data[: _SEGMENT.size]) != data[_SEGMENT.size : end]:
            raise FormatError("the segment header's checksum is wrong")
        if (number, size) != (FORMAT, PAGE_BYTES):
            raise FormatError(f"segment format {number} with a header of {size} bytes is unknown")
        return cls(segment, store_id, created_ns)


@dataclass(slots=True)  # not frozen: thousands are made in a put
class RecordHeader:
    """What stands before a payload. ``part``, ``codec`` and ``record_class`` may be of a later
    version.
    """

    record_class: int
    part: int
    codec: int
    rank: int
    namespace_id: bytes
    block: bytes
    """The block's hash; a namespace record has the namespace's digest here."""
    parent: bytes
    block_index: int
    token_count: int
    raw_bytes: int
    stored_bytes: int
    written_ns: int
    """Unix time of the put; a rebuilt index takes it as the last use."""
    digest: bytes
    """BLAKE3 over the tail's tokens and the payload as stored; encrypted ones, if they are."""
    tail_tokens: int = 0
    key_id: bytes = NO_KEY
    """Of the key that tail tokens and payload are encrypted with."""

    @property
    def is_encrypted(self) -> bool:
        """Whether a key is needed to read the payload."""
        return self.key_id != NO_KEY

    @property
    def payload_offset(self) -> int:
        """Where the stored payload begins in the record; a tail's tokens are in it if it is
        encrypted.
        """
        return RECORD_HEADER_BYTES + (0 if self.is_encrypted else TOKEN_BYTES * self.tail_tokens)

    @property
    def record_bytes(self) -> int:
        """The whole record, padding included."""
        return padded(self.payload_offset + self.stored_bytes)

    def encode(self) -> bytes:
        """``RECORD_HEADER_BYTES`` bytes; raises FormatError for what ``parse`` would refuse."""
        try:
            encoded = record_header(
                self.record_class,
                self.part,
                self.codec,
                self.rank,
                self.tail_tokens,
                self.namespace_id,
                self.block,
                self.parent,
                self.block_index,
                self.token_count,
                self.raw_bytes,
                self.stored_bytes,
                self.written_ns,
                self.digest,
                self.key_id,
            )
        except struct.error as error:
            raise FormatError(f"a record's field is out of range: {error}") from error
        self._check()
        return encoded

    @classmethod
    def parse(cls, data: Buffer) -> "RecordHeader":
        """The header in the first bytes of ``data``, its lengths within limits; raises FormatError.

        Whether the record fits into its segment is for the caller to check, before it allocates.
        """
        if len(data) < RECORD_HEADER_BYTES:
            raise FormatError("the record is shorter than its header")
        magic, kind, part, codec, rank, tail_tokens, *rest, key_id = _RECORD.unpack_from(data)
        if magic != RECORD_MAGIC:
            raise FormatError("not a record: wrong magic")
        if checksum(data[: _RECORD.size]) != data[_RECORD.size : RECORD_HEADER_BYTES]:
            raise FormatError("the record header's checksum is wrong")
        fields = (kind, part, codec, rank, *rest, tail_tokens, key_id)
        header = cls(*fields)
        header._check()
        return header

    def _encryption_bytes(self) -> int:
        return OVERHEAD_BYTES + TOKEN_BYTES * self.tail_tokens if self.is_encrypted else 0

    def _check(self) -> None:
        if max(self.raw_bytes, self.stored_bytes) > MAX_PAYLOAD_BYTES:
            raise FormatError("a payload's length is over the limit")
        if not self.codec and self.raw_bytes + self._encryption_bytes() != self.stored_bytes:
            raise FormatError("a raw payload has two lengths")
        if self.tail_tokens > MAX_TAIL_TOKENS:
            raise FormatError("a tail's token count is over the limit")
        if not (
            len(self.namespace_id) == ID_BYTES
            and len(self.block) == len(self.parent) == HASH_BYTES
            and len(self.digest) == DIGEST_BYTES
            and len(self.key_id) == KEY_ID_BYTES
        ):
            raise FormatError("an id, hash or digest of the wrong length")


def record_header(*fields: int | bytes) -> bytes:
    """A record's header, of fields that are known to be right: those of ``RecordHeader``, with
    ``tail_tokens`` after ``rank``. A put makes thousands.
    """
    head = _RECORD.pack(RECORD_MAGIC, *fields)
    return head + checksum(head)


def bound_bytes(head: bytes) -> bytes:
    """The bytes of a record's header that its encryption is bound to: all that is known before, and
    the key's id.
    """
    return head[:DIGEST_OFFSET] + head[KEY_ID_OFFSET : KEY_ID_OFFSET + KEY_ID_BYTES]


def payload_digest(tail: Buffer, stored: Buffer) -> bytes:
    """BLAKE3 over a tail's tokens (u32 little-endian; none for a whole block) and the stored
    payload.
    """
    if not tail:
        return blake3(stored).digest()
    return blake3(tail).update(stored).digest()


def check_tail(parent: bytes, block: bytes, token_count: int, tail: Buffer) -> None:
    """Raise FormatError unless ``tail`` (u32 little-endian) is what ``block`` says it is: that many
    tokens after ``parent``.
    """
    if len(tail) != TOKEN_BYTES * token_count or token_count > MAX_TAIL_TOKENS:
        raise FormatError("a tail of another number of tokens")
    if block_hash(BlockHash(parent), np.frombuffer(tail, "<u4")) != block:
        raise FormatError("a tail's tokens are not those of its hash")


def namespace_record(namespace: Namespace, written_ns: int) -> bytes:
    """The whole record, padding included, that lets an index be rebuilt from a segment."""
    encoding = namespace.encode()
    header = RecordHeader(
        record_class=RecordClass.NAMESPACE,
        part=0,
        codec=0,
        rank=0,
        namespace_id=namespace.id,
        block=namespace.digest,
        parent=_NO_HASH,
        block_index=0,
        token_count=0,
        raw_bytes=len(encoding),
        stored_bytes=len(encoding),
        written_ns=written_ns,
        digest=payload_digest(b"", encoding),
    )
    return (header.encode() + encoding).ljust(header.record_bytes, b"\0")

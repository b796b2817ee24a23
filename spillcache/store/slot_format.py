"""The bytes of a slot file: a header page, then records as in a segment (docs/format.md gives every
byte).

The records are the namespace's, the tokens', and one for each part of each block, tail last. All
integers are little-endian. Pure functions: any thread.
"""

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from spillcache.chain import BlockHash, Chain
from spillcache.config import MIB
from spillcache.namespace import Namespace
from spillcache.state import Buffer, Geometry, Part
from spillcache.store.cipher import NO_KEY, OVERHEAD_BYTES
from spillcache.store.format import (
    CHECKSUM_BYTES,
    DIGEST_BYTES,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    FormatError,
    RecordClass,
    RecordHeader,
    checksum,
    padded,
)

MAGIC = b"spillslt"
VERSION = 2
READ_VERSIONS = (1, VERSION)
"""Others are refused. Version 1 has no runs."""
RUN_BYTES_MAX = 2 * MIB
"""The largest payload of a record that several blocks share."""
NAMESPACE_BYTES_MAX = 1 << 16
SALTED, PRIVATE = 1, 2
"""Flags: the conversation has a salt; it was to be kept nowhere but where somebody saved it."""

_HEADER = struct.Struct("<8sIIIIQQQQQ32s32s8s")
_NO_DIGEST = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """The first page of a slot file."""

    flags: int
    block_tokens: int
    tokens: int
    parts: int
    """How many records follow those of the namespace and the tokens."""
    file_bytes: int
    """The whole file, this page included."""
    created_ns: int
    """Unix time."""
    namespace_bytes: int
    """The length of the namespace's encoding."""
    root: bytes
    """The hash before the first block: it covers the namespace and the salt, if any."""
    records_digest: bytes
    """BLAKE3 over the headers of all records, in their order."""
    key_id: bytes = NO_KEY
    """Of the key that payloads are encrypted with."""

    def encode(self) -> bytes:
        """``PAGE_BYTES`` bytes."""
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            PAGE_BYTES,
            self.flags,
            self.block_tokens,
            self.tokens,
            self.parts,
            self.file_bytes,
            self.created_ns,
            self.namespace_bytes,
            self.root,
            self.records_digest,
            self.key_id,
        )
        return (head + checksum(head)).ljust(PAGE_BYTES, b"\0")

    @classmethod
    def parse(cls, data: Buffer) -> "SlotHeader":
        """The header in the first page, its lengths within limits; raises FormatError."""
        if len(data) < PAGE_BYTES:
            raise FormatError("the file is shorter than its header")
        magic, version, page, *fields = _HEADER.unpack_from(data)
        end = _HEADER.size + CHECKSUM_BYTES
        if magic != MAGIC:
            raise FormatError("it is no slot file")
        if version not in READ_VERSIONS or page != PAGE_BYTES:
            raise FormatError(f"version {version} with a header of {page} bytes is unknown")
        if checksum(data[: _HEADER.size]) != data[_HEADER.size : end]:
            raise FormatError("the header's checksum is wrong")
        if bytes(data[end:PAGE_BYTES]) != bytes(PAGE_BYTES - end):
            raise FormatError("the header is followed by something")
        header = cls(*fields)
        if header.flags & ~(SALTED | PRIVATE) or not header.block_tokens:
            raise FormatError("a field of the header is out of range")
        least = max(TOKEN_BYTES * header.tokens, PAGE_BYTES * (header.parts + 3))
        if not 0 < header.namespace_bytes <= NAMESPACE_BYTES_MAX or least > header.file_bytes:
            raise FormatError("a length in the header is out of range")
        return header


def part_header(
    chain: Chain, block: int, part: Part, size: int, key_id: bytes, *, blocks: int = 1
) -> RecordHeader:
    """The header, but for its digest, of one part of a block of ``chain``, or of its tail, which
    comes after the last block, or of a run of ``blocks``; ``size``: the payload's bytes.
    """
    is_tail = block == chain.blocks
    count = len(chain) % chain.block_tokens if is_tail else blocks * chain.block_tokens
    return _header(
        RecordClass.TAIL if is_tail else RecordClass.BLOCK,
        part,
        chain.namespace,
        names=(chain.hash_of(block + blocks - 1), chain.parent(block)),
        index=block,
        count=count,
        tail_tokens=count if is_tail else 0,
        size=size,
        key_id=key_id,
    )


def tokens_header(chain: Chain, key_id: bytes) -> RecordHeader:
    """The header, but for its digest, of the record with all tokens."""
    return _header(
        RecordClass.TOKENS,
        0,
        chain.namespace,
        names=(chain.root, chain.root),
        index=0,
        count=len(chain),
        tail_tokens=0,
        size=TOKEN_BYTES * len(chain),
        key_id=key_id,
    )


def _header(
    record_class: RecordClass,
    part: int,
    namespace: Namespace,
    *,
    names: tuple[BlockHash, BlockHash],
    index: int,
    count: int,
    tail_tokens: int,
    size: int,
    key_id: bytes,
) -> RecordHeader:
    secret = OVERHEAD_BYTES + TOKEN_BYTES * tail_tokens if key_id != NO_KEY else 0
    return RecordHeader(
        record_class=record_class,
        part=part,
        codec=0,
        rank=0,
        namespace_id=namespace.id,
        block=names[0],
        parent=names[1],
        block_index=index,
        token_count=count,
        raw_bytes=size,
        stored_bytes=size + secret,
        written_ns=time.time_ns(),
        digest=_NO_DIGEST,
        tail_tokens=tail_tokens,
        key_id=key_id,
    )


def record_bytes_max(payload_bytes: int, block_tokens: int) -> int:
    """The most that a part's record takes in the file."""
    tail = TOKEN_BYTES * block_tokens
    return padded(RECORD_HEADER_BYTES + payload_bytes + tail + OVERHEAD_BYTES)


def file_bytes_max(
    tokens: int, geometry: Geometry, part_bytes: Mapping[Part, int], parts: Mapping[Part, int]
) -> int:
    """The most bytes that a file of ``tokens`` tokens may have. ``part_bytes``: the largest payload
    of each part; ``parts``: of how many blocks it has them.
    """
    size = PAGE_BYTES + padded(RECORD_HEADER_BYTES + NAMESPACE_BYTES_MAX)
    size += padded(RECORD_HEADER_BYTES + TOKEN_BYTES * tokens + OVERHEAD_BYTES)
    for part, count in parts.items():
        size += count * record_bytes_max(part_bytes.get(part, 0), geometry.block_tokens)
    return size

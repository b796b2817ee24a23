"""Whether the bytes of a record are those of the object that the index names there. Any thread."""

from blake3 import blake3

from spillcache.store.cipher import KEY_ID_BYTES, NO_KEY
from spillcache.store.format import (
    CHECKSUM_BYTES,
    DIGEST_BYTES,
    DIGEST_OFFSET,
    KEY_ID_OFFSET,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    FormatError,
    RecordHeader,
    check_tail,
    payload_digest,
)
from spillcache.store.rows import Entry

_CHECKED = RECORD_HEADER_BYTES - CHECKSUM_BYTES


def verify(record: memoryview, entry: Entry) -> memoryview:
    """The stored payload in a record's bytes, if it is what the index says it is; raises
    FormatError.

    Thousands are verified while a prompt waits: what is whole passes by comparing bytes, and only
    what isn't is taken apart to say what is wrong with it.
    """
    head = bytes(record[:RECORD_HEADER_BYTES])
    if _is_header_of(head, entry):
        start = entry.payload_offset
        end = start + entry.stored_bytes
        if len(record) >= end:
            # A tail's tokens and the payload, which are neighbours.
            digest = blake3(record[RECORD_HEADER_BYTES:end]).digest()
            if digest == head[DIGEST_OFFSET : DIGEST_OFFSET + DIGEST_BYTES]:
                check_tokens(entry, record[RECORD_HEADER_BYTES:start])
                return record[start:end]
    return _take_apart(record, entry)


def check_tokens(entry: Entry, tokens: memoryview) -> None:
    """Raise FormatError unless a tail's tokens are those of its hash. Encrypted ones, which are not
    before the payload, are checked when they are decrypted.
    """
    if entry.is_tail and (tokens or not entry.encrypted):
        check_tail(entry.parent, entry.block, entry.token_count, tokens)


def _is_header_of(head: bytes, entry: Entry) -> bool:
    namespace_id, block, part, row = entry
    return (
        len(head) == RECORD_HEADER_BYTES
        and head[:8] == RECORD_MAGIC
        and (head[8], head[9], head[10]) == (row[90], part, row[88])
        and head[12:16] == row[80:84]
        and head[16:24] == namespace_id
        and head[24:56] == block
        and head[56:96] == row[40:80]
        and head[96:104] == row[24:32]
        and head[104:112] == row[16:24]
        # What is neither encoded nor encrypted has one length.
        and (row[88] != 0 or row[91] != 0 or row[24:32] == row[16:24])
        and (head[KEY_ID_OFFSET : KEY_ID_OFFSET + KEY_ID_BYTES] != NO_KEY) == row[91]
        and blake3(head[:_CHECKED]).digest(length=16) == head[_CHECKED:]
    )


def _take_apart(record: memoryview, entry: Entry) -> memoryview:
    header = RecordHeader.parse(record)
    if (header.namespace_id, header.block, header.parent) != (
        entry.namespace_id,
        entry.block,
        entry.parent,
    ):
        raise FormatError("the record is another object's")
    found = (header.part, header.record_class, header.codec, header.block_index, header.token_count)
    known = (entry.part, entry.record_class, entry.codec, entry.block_index, entry.token_count)
    if found != known:
        raise FormatError("the record's fields are not those in the index")
    lengths = (header.raw_bytes, header.stored_bytes, header.tail_tokens)
    if lengths != (entry.raw_bytes, entry.stored_bytes, entry.tail_tokens):
        raise FormatError("the record's lengths are not those in the index")
    if header.is_encrypted != entry.encrypted:
        raise FormatError("the record is encrypted and the index says otherwise, or not at all")
    start = header.payload_offset
    if len(record) < start + header.stored_bytes:
        raise FormatError("the segment ends within the record")
    stored = record[start : start + header.stored_bytes]
    tail = record[RECORD_HEADER_BYTES:start]
    if payload_digest(tail, stored) != header.digest:
        raise FormatError("the payload's digest is wrong")
    check_tokens(entry, tail)
    return stored

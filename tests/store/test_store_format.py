"""The golden bytes of docs/format.md, and that nothing else is accepted."""

from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from spillcache.namespace import Namespace
from spillcache.store.format import (
    MAX_PAYLOAD_BYTES,
    MAX_TAIL_TOKENS,
    FormatError,
    RecordHeader,
    SegmentHeader,
    namespace_record,
    padded,
    payload_digest,
)

TIME_NS = 1_700_000_000_000_000_000
SEGMENT = SegmentHeader(7, bytes(range(16)), TIME_NS)
SEGMENT_HEX = (
    "7370696c6c736567"  # spillseg
    "01000000" "00100000"  # format, page
    "0700000000000000"  # id
    "000102030405060708090a0b0c0d0e0f"  # store
    "00002a36fe9c9717"  # made at
)  # fmt: skip
SEGMENT_CHECK_HEX = "7befc54ae9f24035106bca8b447c69cb"
RECORD = RecordHeader(
    record_class=1,
    part=2,
    codec=1,
    rank=9,
    namespace_id=bytes(range(8)),
    block=bytes(range(32)),
    parent=bytes(range(32, 64)),
    block_index=3,
    token_count=64,
    raw_bytes=1 << 33,
    stored_bytes=5000,
    written_ns=TIME_NS,
    digest=bytes(range(64, 96)),
)
RECORD_HEX = (
    "7370696c6c726563"  # spillrec
    "01" "02" "01" "09"  # class, part, codec, rank
    "00000000"  # tail tokens
    "0001020304050607"  # namespace
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"  # block
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"  # parent
    "03000000" "40000000"  # index, tokens
    "0000000002000000"  # raw length, over 32 bits
    "8813000000000000"  # stored length
    "00002a36fe9c9717"  # written at
    "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"  # digest
    "000000000000000000000000000000000000000000000000"  # reserved
)  # fmt: skip
RECORD_CHECK_HEX = "b2a9cbf845379249ab358f75f3ee2515"
NAMESPACE_RECORD_HEX = (
    "7370696c6c726563" "03000000" "00000000" "2160ef43c419f201"
    "2160ef43c419f201a0000c75f4bd4fd89d73c8ac21315bd52481d6e577b9d7f7"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "00000000" "00000000" "3900000000000000" "3900000000000000" "00002a36fe9c9717"
    "2160ef43c419f201a0000c75f4bd4fd89d73c8ac21315bd52481d6e577b9d7f7"
    "000000000000000000000000000000000000000000000000"
    "f7721b947a6a9caa2c79d153a606645d"
    "7370696c6c6361636865206e616d6573706163652076310a" "02000000"
    "01000000" "61" "69" "08000000" "0100000000000000"
    "01000000" "62" "73" "01000000" "78"
)  # fmt: skip


def test_segment_header_is_pinned():
    data = SEGMENT.encode()
    assert data.hex() == SEGMENT_HEX + SEGMENT_CHECK_HEX + "00" * 4032
    assert bytes.fromhex(SEGMENT_CHECK_HEX) == blake3(bytes.fromhex(SEGMENT_HEX)).digest(16)
    assert SegmentHeader.parse(data) == SEGMENT


def test_record_header_is_pinned():
    data = RECORD.encode()
    assert data.hex() == RECORD_HEX + RECORD_CHECK_HEX
    assert bytes.fromhex(RECORD_CHECK_HEX) == blake3(bytes.fromhex(RECORD_HEX)).digest(16)
    assert RecordHeader.parse(memoryview(data)) == RECORD
    assert (RECORD.payload_offset, RECORD.record_bytes) == (192, 8192)


def test_a_tail_has_its_tokens_before_the_payload():
    tail = replace(RECORD, record_class=2, tail_tokens=5)
    data = tail.encode()
    assert data[12:16] == bytes((5, 0, 0, 0))
    assert data[176:].hex() == "8016abf7f10669deccfe23b9a240cf83"
    assert RecordHeader.parse(data) == tail
    assert tail.payload_offset == 192 + 20
    digest = payload_digest(b"\x01\0\0\0", b"abc")
    assert digest == blake3(b"\x01\0\0\0abc").digest()
    assert digest.hex() == "40e863d6cbefdbd3d76e77ced44d8c79b22dadaedfd357ae4181f5b5dc0fa050"
    assert payload_digest(b"", b"abc") == blake3(b"abc").digest()


def test_namespace_record_is_pinned():
    namespace = Namespace.of({"b": "x", "a": 1})
    data = namespace_record(namespace, TIME_NS)
    assert len(data) == 4096
    assert data.rstrip(b"\0").hex() == NAMESPACE_RECORD_HEX
    header = RecordHeader.parse(data)
    assert Namespace.decode(data[192 : 192 + header.stored_bytes]) == namespace
    assert header.digest == namespace.digest == header.block


@pytest.mark.parametrize(
    ("size", "pages"), [(0, 0), (1, 1), (4096, 1), (4097, 2), (1 << 40, 1 << 28)]
)
def test_padded(size, pages):
    assert padded(size) == pages * 4096


@settings(deadline=None, max_examples=150)
@given(at=st.integers(0, 191), bit=st.integers(0, 7))
def test_any_changed_bit_of_a_record_header_is_refused(at, bit):
    data = bytearray(RECORD.encode())
    data[at] ^= 1 << bit
    with pytest.raises(FormatError):
        RecordHeader.parse(data)


@settings(deadline=None, max_examples=80)
@given(at=st.integers(0, 63), bit=st.integers(0, 7))
def test_any_changed_bit_of_a_segment_header_is_refused(at, bit):
    data = bytearray(SEGMENT.encode())
    data[at] ^= 1 << bit
    with pytest.raises(FormatError):
        SegmentHeader.parse(data)


def test_short_input_is_refused():
    with pytest.raises(FormatError, match="shorter"):
        RecordHeader.parse(RECORD.encode()[:191])
    with pytest.raises(FormatError, match="shorter"):
        SegmentHeader.parse(b"")


def test_an_unknown_segment_format_is_refused():
    head = bytearray(SEGMENT.encode()[:48])
    head[8] = 2
    data = bytes(head) + blake3(head).digest(16)
    with pytest.raises(FormatError, match="format 2"):
        SegmentHeader.parse(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_bytes": MAX_PAYLOAD_BYTES + 1}, "length"),
        ({"stored_bytes": MAX_PAYLOAD_BYTES + 1}, "length"),
        ({"stored_bytes": 1 << 64}, "out of range"),
        ({"tail_tokens": MAX_TAIL_TOKENS + 1}, "tail"),
        ({"codec": 0}, "two lengths"),
        ({"rank": 256}, "out of range"),
        ({"block": b"short"}, "wrong length"),
    ],
)
def test_a_header_that_would_not_be_read_is_not_written(changes, message):
    with pytest.raises(FormatError, match=message):
        replace(RECORD, **changes).encode()

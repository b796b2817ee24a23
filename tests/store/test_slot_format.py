"""The golden bytes of a slot file's own records, and that nothing else is accepted."""

from dataclasses import replace

import pytest
from blake3 import blake3
from slot_tools import NAMESPACE, conversation

from spillcache.state import Geometry, Part
from spillcache.store.format import FormatError
from spillcache.store.slot_format import (
    PRIVATE,
    SALTED,
    SlotHeader,
    file_bytes_max,
    part_header,
    tokens_header,
)

TIME_NS = 1_700_000_000_000_000_000
HEADER = SlotHeader(
    flags=SALTED | PRIVATE,
    block_tokens=64,
    tokens=130,
    parts=3,
    file_bytes=1 << 33,
    created_ns=TIME_NS,
    namespace_bytes=57,
    root=bytes(range(32)),
    records_digest=bytes(range(32, 64)),
    key_id=bytes(range(8)),
)
HEADER_HEX = (
    "7370696c6c736c74"  # spillslt
    "02000000" "00100000"  # version, page
    "03000000" "40000000"  # flags, tokens of a block
    "8200000000000000" "0300000000000000"  # tokens, parts
    "0000000002000000"  # bytes of the file, over 32 bits
    "00002a36fe9c9717"  # made at
    "3900000000000000"  # bytes of the namespace
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"  # root
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"  # records
    "0001020304050607"  # key id
)  # fmt: skip
TOKENS_HEX = (
    "7370696c6c726563" "04000000" "00000000" "{namespace}"
    "{root}" "{root}"
    "00000000" "21000000" "8400000000000000" "8400000000000000" "00002a36fe9c9717"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000"
)  # fmt: skip


def test_the_header_is_pinned() -> None:
    data = HEADER.encode()
    check = blake3(bytes.fromhex(HEADER_HEX)).digest(16).hex()
    assert check == "88fb1f2fcc2d1c4685f57defad2ecc3d"
    assert data.hex() == HEADER_HEX + check + "00" * (4096 - 152)
    assert SlotHeader.parse(data) == HEADER


def test_the_record_of_the_tokens_is_pinned() -> None:
    chain = conversation(33)
    header = tokens_header(chain, bytes(8))
    header.written_ns = TIME_NS
    wanted = TOKENS_HEX.format(namespace=NAMESPACE.id.hex(), root=chain.root.hex())
    assert header.encode()[:176].hex() == wanted


def test_blocks_and_tails_have_the_records_of_the_store() -> None:
    chain = conversation(33)
    block, tail = (part_header(chain, i, Part.KV, 100, bytes(8)) for i in (1, 2))
    assert (block.record_class, block.block, block.parent) == (1, *chain.hashes[1::-1])
    assert (block.block_index, block.token_count, block.tail_tokens) == (1, 16, 0)
    assert (tail.record_class, tail.block, tail.parent) == (2, chain.tail(2, 1), chain.hashes[1])
    assert (tail.block_index, tail.token_count, tail.tail_tokens) == (2, 1, 1)
    assert (block.raw_bytes, block.stored_bytes, block.codec, block.rank) == (100, 100, 0, 0)
    run = part_header(chain, 0, Part.KV, 200, bytes(8), blocks=2)
    assert (run.record_class, run.block, run.parent) == (1, chain.hashes[1], chain.root)
    assert (run.block_index, run.token_count, run.raw_bytes) == (0, 32, 200)
    secret = part_header(chain, 2, Part.KV, 100, b"k" * 8)
    assert secret.stored_bytes == 100 + 4 + 12 + 16


@pytest.mark.parametrize(
    "other",
    [
        replace(HEADER, flags=4),
        replace(HEADER, block_tokens=0),
        replace(HEADER, namespace_bytes=0),
        replace(HEADER, namespace_bytes=1 << 17),
        replace(HEADER, tokens=1 << 40),
        replace(HEADER, parts=1 << 40),
    ],
)
def test_fields_out_of_range_are_refused(other: SlotHeader) -> None:
    with pytest.raises(FormatError, match="out of range"):
        SlotHeader.parse(other.encode())


def test_other_versions_and_other_files_are_refused() -> None:
    data = bytearray(HEADER.encode())
    with pytest.raises(FormatError, match="shorter"):
        SlotHeader.parse(data[:4095])
    data[8] = 3
    with pytest.raises(FormatError, match="version 3"):
        SlotHeader.parse(data)
    with pytest.raises(FormatError, match="no slot file"):
        SlotHeader.parse(b"GGUF".ljust(4096, b"\0"))


@pytest.mark.parametrize("at", [16, 100, 151, 152, 4095])
def test_no_byte_of_the_header_may_change(at: int) -> None:
    data = bytearray(HEADER.encode())
    data[at] ^= 1
    with pytest.raises(FormatError):
        SlotHeader.parse(data)


def test_a_file_has_a_largest_size() -> None:
    geometry = Geometry(block_tokens=64, window_blocks=2)
    sizes = {Part.KV: 4096, Part.WINDOW: 100}
    most = file_bytes_max(130, geometry, sizes, {Part.KV: 3, Part.WINDOW: 2})
    assert most == 4096 + (65536 + 4096) + 4096 + 3 * 8192 + 2 * 4096

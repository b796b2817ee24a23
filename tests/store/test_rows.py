"""The golden bytes of the index (docs/format.md)."""

import pytest

from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.rows import Entry, Meta, NamespaceRow, PartUsage, SegmentRow, SegmentState

ENTRY = Entry(
    namespace_id=bytes(range(8)),
    block=bytes(range(32)),
    part=Part.WINDOW,
    segment=1,
    offset=4096,
    stored_bytes=5000,
    raw_bytes=9000,
    last_use=77,
    parent=bytes(range(32, 64)),
    block_index=3,
    token_count=64,
    tail_tokens=5,
    children=2,
    codec=1,
    rank=9,
    record_class=1,
)
KEY_HEX = "0001020304050607" + bytes(range(32)).hex() + "02"


def test_object_rows_are_pinned():
    value = rows.pack_entry(ENTRY)
    assert value.hex() == (
        "0100000000000000" "0010000000000000" "8813000000000000" "2823000000000000"
        "4d00000000000000"
        "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
        "03000000" "40000000" "05000000" "02000000" "01" "09" "01" "00"
    )  # fmt: skip
    key = rows.object_key(ENTRY.namespace_id, ENTRY.block, ENTRY.part)
    assert key.hex() == KEY_HEX
    assert rows.unpack_entry(*rows.split_object_key(key), value) == ENTRY


def test_evictable_keys_are_pinned_and_ordered():
    key = rows.evictable_key(ENTRY)
    assert key.hex() == "f6" + "000000000000004d" + KEY_HEX
    assert rows.split_evictable_key(key) == (246, 77, bytes.fromhex(KEY_HEX))
    older = rows.evictable_key(ENTRY._replace(last_use=76))
    higher_rank = rows.evictable_key(ENTRY._replace(rank=10, last_use=1 << 60))
    assert higher_rank < older < key


def test_other_rows_are_pinned():
    row = SegmentRow(SegmentState.OPEN, 2, 3, 4, 5, 6, 7, 8)
    assert row.pack().hex() == "01" + "00" * 7 + "".join(f"{n:02x}" + "00" * 7 for n in range(2, 9))
    assert SegmentRow.unpack(row.pack()) == row
    meta = Meta(1, 2, 3, 4, 5, 6)
    assert meta.pack().hex() == "".join(f"{n:02x}" + "00" * 7 for n in range(1, 7))
    assert Meta.unpack(meta.pack()) == meta
    usage = PartUsage(1, 2, 3)
    assert usage.pack().hex() == "".join(f"{n:02x}" + "00" * 7 for n in range(1, 4))
    assert PartUsage.unpack(usage.pack()) == usage
    namespace = NamespaceRow(1, 2, b"abc")
    assert namespace.pack() == b"\x01" + bytes(7) + b"\x02" + bytes(7) + bytes(12) + b"abc"
    assert NamespaceRow.unpack(namespace.pack()) == namespace
    hidden = NamespaceRow(1, 2, b"abc", 3, "é")
    assert hidden.pack().hex() == (
        "0100000000000000" "0200000000000000" "0300000000000000" "02000000" "c3a9" "616263"
    )  # fmt: skip
    assert NamespaceRow.unpack(hidden.pack()) == hidden
    assert rows.place_key(1, 4096).hex() == "00000000000000010000000000001000"
    assert rows.split_place_key(rows.place_key(1, 4096)) == (1, 4096)
    assert rows.split_segment_key(rows.segment_key(300)) == 300
    assert rows.unpack_length(rows.pack_length(1 << 40)) == 1 << 40


@pytest.mark.parametrize(
    ("changes", "present", "evictable"),
    [
        ({}, True, False),
        ({"children": 0}, True, True),
        ({"segment": rows.NOWHERE}, False, False),
        ({"segment": rows.NOWHERE, "children": 0}, False, False),
    ],
)
def test_what_may_be_evicted(changes, present, evictable):
    entry = ENTRY._replace(**changes)
    assert (entry.is_present, entry.is_evictable) == (present, evictable)


def test_places():
    assert ENTRY.same_place(ENTRY._replace(last_use=1))
    assert not ENTRY.same_place(ENTRY._replace(offset=8192))
    assert not ENTRY.same_place(None)
    assert (ENTRY.payload_offset, ENTRY.record_bytes) == (212, 8192)

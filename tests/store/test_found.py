"""What a lookup gives: decoded when it is asked for, and never a row that can't be."""

import struct

import pytest
from store_tools import NAMESPACE, objects
from test_rows import ENTRY

from spillcache.errors import StoreIndexError
from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.found import Found

BLOCKS = [bytes((n,)) * 32 for n in range(4)]
HERE = ENTRY._replace(block=BLOCKS[1], part=Part.KV)
WINDOW = ENTRY._replace(block=BLOCKS[1])
GONE = ENTRY._replace(block=BLOCKS[2], part=Part.KV, segment=rows.NOWHERE, offset=0)


def lookup(parts=(Part.KV, Part.WINDOW), **more):
    table = {
        rows.object_key(e.namespace_id, e.block, e.part): e.value for e in (HERE, WINDOW, GONE)
    }
    return Found(ENTRY.namespace_id, BLOCKS, parts, lambda key: more.get("row", table.get(key)))


def test_only_what_is_there_is_found():
    found = lookup()
    assert list(found) == [{}, {Part.KV: HERE, Part.WINDOW: WINDOW}, {}, {}]
    assert found[1:3] == [found[1], {}]
    assert found[-3] == found[1]
    assert len(found) == 4
    assert found.has(Part.KV) == found.has(Part.WINDOW) == [False, True, False, False]
    assert found.has(Part.BOUNDARY) == [False] * 4
    assert list(lookup(parts=())) == [{}] * 4
    with pytest.raises(IndexError):
        found[4]


@pytest.mark.parametrize("row", [b"", b"\1" * 91, b"\1" * 93, bytes(91)])
def test_a_row_of_a_wrong_length_is_refused(row):
    with pytest.raises(struct.error, match=f"{len(row)} bytes"):
        lookup(row=row)
    with pytest.raises(struct.error, match=f"{len(row)} bytes"):
        rows.unpack_entry(ENTRY.namespace_id, ENTRY.block, ENTRY.part, row)


def test_a_damaged_row_is_an_error_of_the_index(store):
    wanted = objects(1, 2)
    store.put(NAMESPACE, wanted)
    key = rows.object_key(NAMESPACE.id, wanted[0].block, Part.KV)
    store._opened.index.write(lambda catalog: catalog._put("objects", key, b"short"))
    with pytest.raises(StoreIndexError, match="5 bytes"):
        store.find(NAMESPACE.id, [wanted[0].block], [Part.KV])
    with pytest.raises(StoreIndexError, match="5 bytes"):
        store.put(NAMESPACE, wanted)


def test_an_entry_says_all_its_fields():
    fields = {
        "namespace_id": ENTRY.namespace_id,
        "block": ENTRY.block,
        "part": Part.WINDOW,
        "segment": 1 << 40,
        "offset": 1 << 41,
        "stored_bytes": 1 << 42,
        "raw_bytes": 1 << 43,
        "last_use": 1 << 60,
        "parent": bytes(range(100, 132)),
        "block_index": 1 << 20,
        "token_count": 64,
        "tail_tokens": 3,
        "children": 1 << 21,
        "codec": 2,
        "rank": 255,
        "record_class": 3,
    }
    entry = rows.Entry(**fields)
    assert {name: getattr(entry, name) for name in fields} == fields
    assert entry == rows.Entry(**fields)
    assert entry._replace(rank=1) == rows.Entry(**{**fields, "rank": 1}) != entry
    assert repr(entry).startswith("Entry(namespace_id=b'\\x00")
    assert "rank=255" in repr(entry)
    with pytest.raises(KeyError):
        entry._replace(color="red")
    with pytest.raises(struct.error):
        entry._replace(rank=256)

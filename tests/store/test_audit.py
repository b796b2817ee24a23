"""Each contradiction between the rows of an index is told in a sentence."""

import struct

import pytest
from store_tools import NAMESPACE, OTHER, entries, objects

from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.audit import Audit
from spillcache.store.rows import evictable_key, object_key, pack_entry, place_key

WANTED = objects(1, 6, 5000, tuple(Part))


@pytest.fixture
def filled(store):
    store.put(NAMESPACE, WANTED)
    store.put(OTHER, objects(2, 3, namespace=OTHER))
    return store


def findings(store, deadline=float("inf")):
    with store._opened.index.read() as catalog:
        return list(Audit(catalog, deadline).findings())


def entry_of(catalog, index, part=Part.KV):
    item = next(o for o in WANTED if o.block_index == index and o.part is part)
    return catalog.entry(NAMESPACE.id, item.block, part)


def replace(catalog, entry, **changes):
    catalog._put("objects", object_key(*entry[:3]), pack_entry(entry._replace(**changes)))


def figures(name, value):
    def spoil(catalog):
        setattr(catalog.meta, name, value)

    return spoil


def segment(name, value):
    def spoil(catalog):
        setattr(catalog.segment(1), name, value)

    return spoil


def field(index, name, value):
    def spoil(catalog):
        replace(catalog, entry_of(catalog, index), **{name: value})

    return spoil


def nowhere_without_children(catalog):
    entry = entry_of(catalog, 5)
    catalog._delete("evictable", evictable_key(entry))
    catalog._delete("places", place_key(entry.segment, entry.offset))
    replace(catalog, entry, segment=rows.NOWHERE, offset=0)


def not_on_the_list(catalog):
    catalog._delete("evictable", evictable_key(entry_of(catalog, 5)))


def too_much_on_the_list(catalog):
    catalog._put("evictable", evictable_key(entry_of(catalog, 2)), b"")


def another_place(catalog):
    catalog._put(
        "places", place_key(1, 4096 * 900), bytes(8) + object_key(NAMESPACE.id, bytes(32), 1)
    )


def place_of_another(catalog):
    entry = entry_of(catalog, 2)
    key = place_key(entry.segment, entry.offset)
    catalog._put("places", key, catalog.value("places", key)[:-1] + b"\x03")


def strange_key(catalog):
    catalog._put("objects", b"x" * 41, pack_entry(entry_of(catalog, 2)))


def short_key(catalog):
    catalog._put("objects", b"x", pack_entry(entry_of(catalog, 2)))


def short_row(catalog):
    catalog._put("objects", object_key(*entry_of(catalog, 2)[:3]), bytes(20))


def usage_of_another(catalog):
    catalog._put("usage", NAMESPACE.id + bytes((Part.KV,)), struct.pack("<QQQ", 6, 1, 2))


def namespace_of_another(catalog):
    (_, row), _ = catalog.namespaces()
    catalog._put("namespaces", bytes(8), row.pack())


def namespace_that_is_none(catalog):
    _, row = catalog.namespaces()[0]
    row.encoding = b"none"
    catalog._put("namespaces", bytes(8), row.pack())


def namespace_missing(catalog):
    catalog._delete("namespaces", NAMESPACE.id)


SPOILT = [
    (figures("index_format", 7), "unknown format 7"),
    (figures("allocated", 4096), "allocated bytes is wrong"),
    (figures("reserved", 4096), "promised bytes is wrong"),
    (figures("next_segment", 1), "given out already"),
    (segment("state", 9), "impossible row"),
    (segment("committed_end", 4097), "impossible row"),
    (segment("committed_end", 8192), "lies beyond its segment"),
    (segment("live_objects", 2), "counted wrong"),
    (segment("live_bytes", 2), "counted wrong"),
    (field(2, "children", 2), "blocks that follow"),
    (field(2, "parent", bytes(32)), "blocks that follow"),
    (field(5, "last_use", 1), "not on the list"),
    (field(5, "rank", 7), "not on the list"),
    (field(2, "segment", 77), "lies beyond its segment"),
    (field(2, "offset", 0), "lies beyond its segment"),
    (field(2, "raw_bytes", 1 << 40), "over the limit"),
    (field(2, "tail_tokens", 1 << 24), "over the limit"),
    (field(2, "raw_bytes", 5001), "namespaces take"),
    (nowhere_without_children, "nothing needs"),
    (not_on_the_list, "not on the list"),
    (too_much_on_the_list, "evictable has rows"),
    (another_place, "places has rows"),
    (place_of_another, "its place is another's"),
    (strange_key, "key can't be"),
    (short_key, "key can't be"),
    (short_row, "can't be"),
    (usage_of_another, "namespaces take"),
    (namespace_of_another, "other fields"),
    (namespace_that_is_none, "can't be"),
    (namespace_missing, "not there"),
]


@pytest.mark.parametrize(
    ("spoil", "said"), SPOILT, ids=lambda each: getattr(each, "__name__", None)
)
def test_a_contradiction_is_told(filled, spoil, said):
    assert findings(filled) == []
    filled._opened.index.write(spoil)
    found = findings(filled)
    assert found
    assert any(said in each for each in found), found


def test_a_damaged_block_that_others_follow_is_no_contradiction(filled):
    (entry,) = [e for e in entries(filled, WANTED) if (e.block_index, e.part) == (2, Part.KV)]
    filled._opened.index.write(lambda catalog: catalog.remove(entry))
    assert findings(filled) == []


def test_an_empty_index_is_sound(store):
    assert findings(store) == []


def test_it_stops_in_time(filled):
    filled._opened.index.write(field(2, "children", 2))
    assert findings(filled, deadline=0.0) == []

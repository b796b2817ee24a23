"""Tails: partial last blocks, found by their parent, whole or not there at all."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from store_tools import (
    NAMESPACE,
    OTHER,
    chain,
    check_all,
    config,
    flip,
    objects,
    payload,
    read_all,
    segment_files,
)

from spillcache.chain import block_hash
from spillcache.config import MIB
from spillcache.errors import CorruptBlock
from spillcache.state import Part
from spillcache.store import rows, tails, writer
from spillcache.store.audit import Audit
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.eviction import evict
from spillcache.store.format import FormatError, RecordHeader, payload_digest
from spillcache.store.gc import _Order
from spillcache.store.view import directory_bytes

PARTS = (Part.KV, Part.WINDOW)
ALWAYS = (1 << 64) - 1
CODECS = ["raw", "zstd", "byteplane"]


def tail(
    seed: int,
    tokens: list[int],
    after: int = 3,
    size: int = 3000,
    parts: tuple[Part, ...] = PARTS,
    ranks: dict[Part, int] | None = None,
) -> list[StoreObject]:
    """A tail after the first ``after`` blocks of ``objects(seed, …)``."""
    root, hashes = chain(seed, after)
    parent = hashes[-1] if hashes else root
    ids = np.array(tokens, "<u4")
    return [
        StoreObject(
            block=block_hash(parent, ids),
            part=part,
            parent=parent,
            block_index=after,
            token_count=len(tokens),
            payload=payload((seed, tokens, part), size // 2) + bytes(size - size // 2),
            rank=(ranks or {}).get(part, 0),
            tail=ids.tobytes(),
        )
        for part in parts
    ]


def parent_of(seed: int, after: int = 3):
    root, hashes = chain(seed, after)
    return hashes[-1] if hashes else root


def found(store: BlockStore, seed: int = 1, after: int = 3):
    (each,) = store.tails(NAMESPACE.id, [parent_of(seed, after)])
    return each


def blocks(store: BlockStore, seed: int = 1, after: int = 3):
    return {entry.block for each in found(store, seed, after) for entry in each.values()}


def check(store: BlockStore, wanted: list[StoreObject], seed: int = 1, after: int = 3) -> None:
    """The tail is there, byte for byte, and says its tokens' number and hash."""
    here = {o.part: o for o in wanted}
    (entries,) = [
        each for each in found(store, seed, after) if each[wanted[0].part].block == wanted[0].block
    ]
    assert entries.keys() == here.keys()
    for part, entry in entries.items():
        assert (entry.is_tail, entry.token_count, entry.block_index) == (
            True,
            len(here[part].tail) // 4,
            after,
        )
        assert entry.parent == here[part].parent
    assert read_all(store, list(entries.values())) == [bytes(here[p].payload) for p in entries]


def findings(store: BlockStore) -> list[str]:
    with store._opened.index.read() as catalog:
        return list(Audit(catalog).findings())


@pytest.fixture
def filled(store):
    store.put(NAMESPACE, objects(1, 4, parts=PARTS))
    store.put(NAMESPACE, tail(1, [7, 8, 9]))
    return store


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_it_comes_back(tmp_path, codec, encrypted):
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    settings = config(tmp_path / "c", codec=codec, key_file=key if encrypted else None)
    wanted, first = tail(1, [5, 6]), tail(1, [4], after=0)
    with BlockStore.open(settings) as store:
        store.put(NAMESPACE, objects(1, 3, parts=PARTS))
        assert store.put(NAMESPACE, wanted).written == 2
        assert store.put(NAMESPACE, wanted).present == 2
        assert store.put(NAMESPACE, first).written == 2
        check(store, wanted)
    with BlockStore.open(settings) as store:
        check(store, wanted)
        check(store, first, after=0)
        # Not a tail of any other, nor of another namespace.
        assert store.tails(NAMESPACE.id, [parent_of(2), wanted[0].block]) == [[], []]
        assert store.tails(OTHER.id, [parent_of(1)]) == [[]]
        assert store.verify().is_sound


def test_what_comes_next_is_found_in_one_lookup(filled):
    _, hashes = chain(1, 5)
    parents = [hashes[2], hashes[0]]
    here, tails = filled.find_next(NAMESPACE.id, hashes[3:], (Part.KV,), parents)
    assert [set(each) for each in here] == [{Part.KV}, set()]
    assert here[0] == filled.find(NAMESPACE.id, hashes[3:4], (Part.KV,))[0]
    assert tails == filled.tails(NAMESPACE.id, parents)
    assert [len(each) for each in tails] == [1, 0]
    assert filled.invalidate(NAMESPACE.id, "a test")
    here, tails = filled.find_next(NAMESPACE.id, hashes[3:], (Part.KV,), parents)
    assert ([*here], tails) == ([{}, {}], [[], []])


def test_a_whole_record_is_pinned(filled):
    (entry,) = [each[Part.KV] for each in found(filled)]
    with open(segment_files(filled.path)[0], "rb", buffering=0) as file:
        file.seek(entry.offset)
        record = file.read(entry.record_bytes)
    header = RecordHeader.parse(record)
    assert record[8:16] == b"\x02\x01\x00\x00" + b"\x03\0\0\0"  # tail, kv, raw, rank; tokens
    assert record[88:96] == b"\x03\0\0\0" + b"\x03\0\0\0"  # index, tokens
    tokens = bytes.fromhex("070000000800000009000000")
    assert record[192:204] == tokens
    stored = tail(1, [7, 8, 9])[0].payload
    assert record[204 : 204 + 3000] == stored
    assert not record[3204:].strip(b"\0")
    assert header.digest == payload_digest(tokens, stored)
    block = "b8ed392ccfec79aed364f201abe80a7190343c29bd727f398ccef74be60ddaf8"
    digest = blake3(header.parent + tokens + bytes(4)).digest()
    assert header.block.hex() == block == (header.parent[:4] + digest[4:]).hex()
    with filled._opened.index.read() as catalog:
        rows_of_tails = [(key.hex(), value.hex()) for key, value in catalog.rows("tails")]
    assert rows_of_tails == [(NAMESPACE.id.hex() + header.parent.hex() + block, "03000000")]


def test_what_is_no_tail_is_not_taken(store):
    (kv, _) = tail(1, [7, 8])
    store.put(NAMESPACE, objects(1, 3))
    for wrong in (
        replace(kv, tail=b"\x07\0\0\0\x09\0\0\0"),
        replace(kv, token_count=3),
        replace(kv, tail=kv.tail[:-1]),
        replace(kv, parent=parent_of(2)),
    ):
        with pytest.raises(FormatError, match="tail"):
            store.put(NAMESPACE, [wrong])


def test_it_needs_its_parent(store):
    store.put(NAMESPACE, objects(1, 2))
    assert store.put(NAMESPACE, tail(1, [7])).dropped == 2
    assert found(store) == []


def test_the_most_recent_few_are_kept(store):
    store.put(NAMESPACE, objects(1, 3))
    for n in range(4):
        store.put(NAMESPACE, tail(1, [n]))
    store.touch(NAMESPACE.id, tail(1, [0])[0].block)
    store._opened.write_touches()
    store.put(NAMESPACE, tail(1, [4]))
    # The next ones come in one put.
    assert blocks(store) == {tail(1, [n])[0].block for n in (0, 2, 3, 4)}
    store.put(NAMESPACE, [o for n in (5, 6, 7, 8, 9) for o in tail(1, [n])])
    assert blocks(store) == {tail(1, [n])[0].block for n in (6, 7, 8, 9)}
    assert store.usage().objects == 3 + 8
    assert findings(store) == []
    with store._opened.index.read() as catalog:
        assert catalog.freeing() == []
    assert store.verify().is_sound
    (info,) = store.namespaces()
    assert (info.blocks, info.tails) == (3, 4)


def test_it_goes_before_its_parent_and_whole(filled):
    """Any part takes the others; a block that a tail follows stays."""
    ranks = {Part.WINDOW: 9}
    filled.put(NAMESPACE, tail(1, [3], after=4, ranks=ranks))
    opened = filled._opened
    gone = opened.index.write(lambda c: evict(c, 1, lambda _: False, ALWAYS))
    opened.segments.free(gone.places)
    assert len(gone.places) == 2
    assert found(filled, after=4) == []
    check(filled, tail(1, [7, 8, 9]))
    while filled.usage().objects:
        (parent,) = filled.find(NAMESPACE.id, [parent_of(1)], [Part.KV])
        assert parent or not found(filled), "a tail outlived its parent"
        opened.room.make_free(1, lambda _: False)
        assert findings(filled) == []


def test_a_plan_is_what_eviction_does(filled):
    ranks = {Part.WINDOW: 9}
    filled.put(NAMESPACE, tail(1, [3], after=4, ranks=ranks))
    filled.put(NAMESPACE, tail(1, [4], after=2))
    with filled._opened.index.read() as catalog:
        planned = [[(e.block, e.part) for e in step] for step in _Order(catalog).until(ALWAYS)]
    done = []
    while filled.usage().objects:
        before = set(_all(filled))
        places = filled._opened.index.write(
            lambda c: evict(c, 1, lambda _: False, ALWAYS, most=1)
        ).places
        filled._opened.segments.free(places)
        done.append(before - set(_all(filled)))
    assert [set(step) for step in planned] == done


def _all(store):
    with store._opened.index.read() as catalog:
        return [(e.block, e.part) for e in catalog.objects_from(b"", b"", 1000) if e.is_present]


@pytest.mark.parametrize("at", ["token", "payload"])
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_one_is_quarantined_and_goes_whole(filled, at, part):
    entry = found(filled)[0][part]
    where = 192 + 1 if at == "token" else entry.payload_offset + 5
    flip(segment_files(filled.path)[0], entry.offset + where)
    with pytest.raises(CorruptBlock, match="digest"):
        read_all(filled, [entry])
    assert found(filled) == []
    assert findings(filled) == []
    assert len(list((filled.path / "quarantine").iterdir())) == 1
    (after,) = filled.find(NAMESPACE.id, [parent_of(1)], PARTS)
    assert after.keys() == set(PARTS)
    filled.put(NAMESPACE, tail(1, [7, 8, 9]))
    check(filled, tail(1, [7, 8, 9]))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_tokens_that_are_not_the_hash_s_are_damage(tmp_path, monkeypatch, codec, encrypted):
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    settings = config(tmp_path / "c", codec=codec, key_file=key if encrypted else None)
    wrong = [replace(o, tail=b"\x08" + o.tail[1:]) for o in tail(1, [7, 8, 9])]
    with BlockStore.open(settings) as store:
        store.put(NAMESPACE, objects(1, 3))
        with monkeypatch.context() as patch:
            patch.setattr(writer, "check_tail", lambda *_: None)
            store.put(NAMESPACE, wrong)
        report = store.verify(fix=True)
        assert (report.damaged, report.missing) == (1, 0)
        assert "tokens" in report.findings[0].reason
        assert found(store) == []
        assert store.verify().is_sound


def test_they_are_named_anew_and_trimmed(tmp_path, monkeypatch):
    wanted = [tail(1, [n]) for n in range(7)]
    orphan = tail(2, [1], after=1)
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, [*objects(1, 3), *objects(2, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(tails, "MOST_TAILS", 99)
            for each in [*wanted, orphan]:
                store.put(NAMESPACE, each)
            (entry,) = store.find(NAMESPACE.id, [parent_of(2, 1)], [Part.KV])
    flip(segment_files(tmp_path)[0], entry[Part.KV].offset + 30)
    shutil.rmtree(tmp_path / "index")
    with BlockStore.open(config(tmp_path)) as store:
        assert blocks(store) == {each[0].block for each in wanted[3:]}
        for each in wanted[3:]:
            check(store, each)
        assert store.verify().is_sound
        # As of a block: a window is named without its kv, and serves nobody.
        assert [set(each) for each in found(store, 2, 1)] == [{Part.WINDOW}]


def test_repair_names_those_that_the_index_lost(filled):
    def forget(catalog):
        for entry in found(filled)[0].values():
            catalog._delete("evictable", rows.evictable_key(entry))
            catalog._delete("places", rows.place_key(entry.segment, entry.offset))
            catalog._erase(entry)
            catalog._count(entry, -1)

    filled._opened.index.write(forget)
    assert findings(filled) == []
    assert found(filled) == []
    assert BlockStore.repair(filled.path).named == 2
    check(filled, tail(1, [7, 8, 9]))
    assert findings(filled) == []


def test_hidden_and_purged(filled):
    filled.invalidate(NAMESPACE.id, "why not")
    assert found(filled) == []
    assert filled.put(NAMESPACE, tail(1, [1])).dropped == 2
    filled.reinstate(NAMESPACE.id)
    check(filled, tail(1, [7, 8, 9]))
    assert filled.purge(NAMESPACE.id).objects == 10
    assert found(filled) == []
    assert findings(filled) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mine", b"", "parent does not know"),
        ("mine", b"\x04\0\0\0", "parent does not know"),
        ("other", b"\x03\0\0\0", "one that is not there"),
        ("short", b"\x03\0\0\0", "can't be"),
    ],
)
def test_contradictions_are_told(filled, key, value, said):
    (entry,) = [each[Part.KV] for each in found(filled)]
    keys = {
        "mine": rows.tail_key(NAMESPACE.id, entry.parent, entry.block),
        "other": rows.tail_key(NAMESPACE.id, entry.parent, entry.parent),
        "short": rows.tail_key(NAMESPACE.id, entry.parent),
    }
    assert findings(filled) == []
    filled._opened.index.write(
        lambda c: c._put("tails", keys[key], value) if value else c._delete("tails", keys[key])
    )
    assert any(said in each for each in findings(filled))


def test_a_wrong_count_of_tokens_is_told(filled):
    (entry,) = [each[Part.KV] for each in found(filled)]
    changed = rows.pack_entry(entry._replace(tail_tokens=2))
    filled._opened.index.write(lambda c: c._put("objects", rows.object_key(*entry[:3]), changed))
    assert any("counted wrong" in each for each in findings(filled))


def test_many_tails_stay_within_the_quota(tmp_path):
    """Of a few tokens each: a record takes 4 KiB at least, and a row."""
    with BlockStore.open(config(tmp_path, quota_bytes=64 * MIB)) as store:
        peak = 0
        for seed in range(24):
            wanted = objects(seed, 8, 100_000)
            for after in range(1, 9):
                wanted += [o for n in range(6) for o in tail(seed, [n, n], after, size=60_000)]
            store.put(NAMESPACE, wanted)
            peak = max(peak, directory_bytes(tmp_path))
        assert 50 * MIB < peak <= 64 * MIB
        check(store, tail(23, [5, 5], after=8, size=60_000), seed=23, after=8)
        (info,) = store.namespaces()
        assert 0 < info.tails <= 4 * info.blocks
        assert findings(store) == []


def test_one_that_is_outgrown_goes_with_the_commit_of_what_outgrows_it(tmp_path):
    """Only a tail, of the same parent, in the same namespace."""
    with BlockStore.open(config(tmp_path)) as store:
        base = objects(1, 4)
        first, other = tail(1, [5]), tail(1, [6])
        elsewhere = tail(1, [5], after=2)
        for namespace in (NAMESPACE, OTHER):
            store.put(namespace, [*base[:3], *first, *other, *elsewhere])
        names = (first[0].block, elsewhere[0].block, base[1].block, bytes(32))
        longer = [replace(each, outgrows=names) for each in tail(1, [5, 7])]
        store.put(NAMESPACE, longer)
        assert blocks(store) == {other[0].block, longer[0].block}
        check(store, elsewhere, after=2)
        check_all(store, base[:3])
        (there,) = store.tails(OTHER.id, [parent_of(1)])
        assert {e.block for each in there for e in each.values()} == {
            first[0].block,
            other[0].block,
        }
        whole = replace(base[3], outgrows=(longer[0].block,))
        store.put(NAMESPACE, [whole])
        assert blocks(store) == {other[0].block}

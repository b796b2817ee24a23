"""What the store tells of its most recently used blocks, and what it does not cost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from store_tools import NAMESPACE, OTHER, chain, objects

from spillcache.chain import block_hash
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.catalog import Catalog
from spillcache.store.recent import RecentBlocks

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY


def names(recent: RecentBlocks) -> set[bytes]:
    return {each.block for each in recent.blocks}


def test_an_empty_store_has_none(store: BlockStore) -> None:
    assert store.recent(10) == RecentBlocks([], complete=True)


def test_blocks_are_told_with_all_their_parts_and_what_they_follow(store: BlockStore) -> None:
    put = objects(1, 3, size=5000, parts=(K, W))
    store.put(NAMESPACE, put)
    recent = store.recent(10)
    assert recent.complete
    root, hashes = chain(1, 3)
    found = sorted(recent.blocks, key=lambda each: each.index)
    assert [each.block for each in found] == hashes
    assert [each.parent for each in found] == [root, *hashes[:2]]
    assert [each.index for each in found] == [0, 1, 2]
    assert {each.tokens for each in found} == {4}
    assert {each.namespace_id for each in found} == {NAMESPACE.id}
    stored = {hashes[i]: 0 for i in range(3)}
    for each in store.find(NAMESPACE.id, hashes, (K, W)):
        for entry in each.values():
            stored[entry.block] += entry.stored_bytes
    assert {each.block: each.stored_bytes for each in found} == stored
    assert all(size >= 10_000 for size in stored.values())


def test_the_most_recently_used_come_first_whole(store: BlockStore) -> None:
    for seed in (1, 2, 3):
        store.put(NAMESPACE, objects(seed, 4))
    old, middle, new = (chain(seed, 4)[1] for seed in (1, 2, 3))
    assert names(store.recent(8)) == {*middle, *new}
    store.touch(NAMESPACE.id, old[-1])
    store.put(NAMESPACE, objects(4, 1))  # a touch is written with the next put
    recent = store.recent(5)
    assert names(recent) == {*old, *chain(4, 1)[1]}
    assert not recent.complete
    assert store.recent(13).complete


@pytest.mark.parametrize("most", [1, 3, 7])
def test_there_are_never_more_than_asked_for(store: BlockStore, most: int) -> None:
    store.put(NAMESPACE, objects(1, 5))
    store.put(NAMESPACE, objects(2, 5))
    recent = store.recent(most)
    assert len(recent.blocks) == most
    assert not recent.complete


def test_shared_beginnings_and_tails_are_there_once(store: BlockStore) -> None:
    put = objects(1, 3)
    _, hashes = chain(1, 3)
    other = chain(9, 2)[1]
    branch = replace(put[2], block=other[1], payload=b"x" * 100)
    tail = b"\x01\0\0\0\x02\0\0\0"
    name = block_hash(hashes[2], np.frombuffer(tail, np.uint32))
    last = StoreObject(name, K, hashes[2], 3, 2, b"y" * 100, tail=tail)
    store.put(NAMESPACE, [*put, branch, last])
    recent = store.recent(20)
    assert len(recent.blocks) == len(names(recent)) == 5
    (found,) = (each for each in recent.blocks if each.block == name)
    assert (found.index, found.tokens, found.parent) == (3, 2, hashes[2])


def test_namespaces_lie_side_by_side_and_hidden_ones_are_not_told(store: BlockStore) -> None:
    store.put(NAMESPACE, objects(1, 2))
    store.put(OTHER, objects(1, 3, namespace=OTHER))
    assert {each.namespace_id for each in store.recent(20).blocks} == {NAMESPACE.id, OTHER.id}
    store.invalidate(OTHER.id, "bad build")
    recent = store.recent(20)
    assert {each.namespace_id for each in recent.blocks} == {NAMESPACE.id}
    assert len(recent.blocks) == 2


def test_a_model_without_kv_has_boundaries_here_and_there(store: BlockStore) -> None:
    every = objects(1, 6, parts=(B,))
    store.put(NAMESPACE, [every[1], every[5]])
    recent = store.recent(20)
    assert sorted(each.index for each in recent.blocks) == [1, 5]
    assert recent.complete


def test_it_looks_at_no_more_rows_than_it_should(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are ends, too, and there may be as many as blocks."""
    for seed in range(40):
        store.put(NAMESPACE, objects(seed, 10, size=10, parts=(K, W)))
    looked: list[bytes] = []
    whole = Catalog.evictable_latest

    def watched(catalog: Catalog) -> Any:
        for key in whole(catalog):
            looked.append(key)
            yield key

    monkeypatch.setattr(Catalog, "evictable_latest", watched)
    reads = _counted(monkeypatch)
    assert len(store.recent(10).blocks) <= 10
    assert len(looked) <= 41
    assert len(reads) <= 50
    assert len(store.recent(400).blocks) == 400


def _counted(monkeypatch: pytest.MonkeyPatch) -> Sequence[bytes]:
    reads: list[bytes] = []
    whole = Catalog.entry

    def entry(catalog: Catalog, namespace_id: bytes, block: bytes, part: Part) -> Any:
        reads.append(block)
        return whole(catalog, namespace_id, block, part)

    monkeypatch.setattr(Catalog, "entry", entry)
    return reads

"""Hiding a namespace, and showing it again."""

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects

from spillcache.state import Part
from spillcache.store.block_store import BlockStore


@pytest.fixture
def filled(store):
    store.put(NAMESPACE, objects(1, 5))
    store.put(OTHER, objects(1, 5, namespace=OTHER))
    return store


def test_nothing_of_it_is_found_or_added_until_it_is_shown_again(filled):
    wanted = objects(1, 5)
    assert filled.invalidate(NAMESPACE.id, "a wrong build of the library")
    found = filled.find(NAMESPACE.id, [o.block for o in wanted], [Part.KV])
    assert [dict(each) for each in found] == [{}] * 5
    assert len(entries(filled, objects(1, 5, namespace=OTHER), OTHER)) == 5
    result = filled.put(NAMESPACE, objects(1, 5) + objects(2, 3))
    assert (result.written, result.present, result.dropped) == (0, 0, 8)
    assert filled.put(OTHER, objects(2, 2, namespace=OTHER)).written == 2
    by_namespace = {info.namespace: info for info in filled.namespaces()}
    hidden, shown = by_namespace[NAMESPACE], by_namespace[OTHER]
    assert (hidden.reason, hidden.objects) == ("a wrong build of the library", 5)
    assert hidden.created <= hidden.hidden_since <= hidden.hidden_since + 60
    assert (shown.reason, shown.hidden_since) == ("", None)
    assert filled.reinstate(NAMESPACE.id)
    check_all(filled, wanted)
    assert filled.put(NAMESPACE, objects(2, 3)).written == 3
    assert all(info.hidden_since is None for info in filled.namespaces())


def test_it_outlives_the_process(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
        store.invalidate(NAMESPACE.id, "why not")
    (info,) = BlockStore.inspect(tmp_path).namespaces()
    assert info.reason == "why not"
    with BlockStore.open(config(tmp_path)) as store:
        assert entries(store, objects(1, 5)) == []
        store.reinstate(NAMESPACE.id)
        check_all(store, objects(1, 5))


def test_uses_and_evictions_go_on(filled):
    filled.invalidate(NAMESPACE.id, "x")
    filled.touch(NAMESPACE.id, objects(1, 5)[-1].block)
    assert len(filled.namespaces()) == 2
    filled.gc(0)
    assert filled.usage().objects == 0
    (info,) = [i for i in filled.namespaces() if i.namespace == NAMESPACE]
    assert info.reason == "x"


def test_an_unknown_namespace(store):
    assert not store.invalidate(bytes(8), "x")
    assert not store.reinstate(bytes(8))
    assert store.namespaces() == []


def test_reasons_are_bounded(filled):
    filled.invalidate(NAMESPACE.id, "é" * 5000)
    (info,) = [i for i in filled.namespaces() if i.namespace == NAMESPACE]
    assert info.reason == "é" * 1000

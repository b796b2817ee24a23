"""Hiding a namespace, and showing it again."""

import json
import shutil
import stat
from pathlib import Path

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, objects

from spillcache.errors import StoreFullError
from spillcache.state import Part
from spillcache.store import hidden
from spillcache.store.block_store import BlockStore
from spillcache.store.hidden import HIDDEN

FIELDS = NAMESPACE.encode().hex()


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
    gone, shown = by_namespace[NAMESPACE], by_namespace[OTHER]
    assert (gone.reason, gone.objects) == ("a wrong build of the library", 5)
    assert gone.created <= gone.hidden_since <= gone.created + 60
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


def lose_the_index(path: Path) -> None:
    data = path / "index" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)


def test_an_index_that_is_made_anew_hides_it_again(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        for namespace in (NAMESPACE, OTHER):
            store.put(namespace, objects(1, 5, namespace=namespace))
            store.invalidate(namespace.id, f"because {namespace is OTHER}")
        store.reinstate(OTHER.id)
        (before,) = [i for i in store.namespaces() if i.namespace == NAMESPACE]
    assert stat.S_IMODE((tmp_path / HIDDEN).stat().st_mode) == 0o600
    lose_the_index(tmp_path)
    with BlockStore.open(config(tmp_path)) as store:
        after = {info.namespace: info for info in store.namespaces()}
        assert after[NAMESPACE].reason == "because False"
        assert after[NAMESPACE].hidden_since == before.hidden_since
        assert after[OTHER].hidden_since is None
        assert entries(store, objects(1, 5)) == []
        assert len(entries(store, objects(1, 5, namespace=OTHER), OTHER)) == 5
        store.reinstate(NAMESPACE.id)
        check_all(store, objects(1, 5))
    assert BlockStore.remove(tmp_path).foreign == []
    assert not (tmp_path / HIDDEN).exists()


def test_an_index_that_is_made_anew_hides_what_has_no_objects(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
        store.invalidate(NAMESPACE.id, "because")
        store.purge(NAMESPACE.id)
    lose_the_index(tmp_path)
    with BlockStore.open(config(tmp_path)) as store:
        assert store.put(NAMESPACE, objects(2, 5)).written == 0
        (info,) = store.namespaces()
        assert (info.namespace, info.reason) == (NAMESPACE, "because")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"00": {}}', '{"zz": 1}', '{"0011223344556677": {"reason": 1}}']
)
def test_a_damaged_list_of_what_is_hidden_is_no_reason_not_to_open(tmp_path, text, caplog):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
    (tmp_path / HIDDEN).write_text(text)
    lose_the_index(tmp_path)
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, objects(1, 5))
    is_told = "is not known" in caplog.text
    assert is_told == (text != "")


def test_a_link_in_place_of_the_list_is_replaced_and_not_followed(filled, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (filled.path / HIDDEN).symlink_to(precious)
    assert filled.invalidate(NAMESPACE.id, "x")
    assert precious.read_text() == "mine"
    assert not (filled.path / HIDDEN).is_symlink()


def test_what_can_not_be_written_down_is_not_hidden(filled, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hidden, "replace_file", fails)
    with pytest.raises(StoreFullError):
        filled.invalidate(NAMESPACE.id, "x")
    check_all(filled, objects(1, 5))


NONSENSE = [
    "[]",
    '{"x": 1}',
    "[" * 100_000,
    json.dumps({NAMESPACE.id.hex(): {"hidden_ns": 1 << 65, "reason": "", "fields": "00"}}),
    *(
        json.dumps({NAMESPACE.id.hex(): {"hidden_ns": n, "reason": "r", "fields": FIELDS}})
        for n in (float("inf"), 1 << 65, 1 << 63, 0, -5, "x", None)
    ),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_a_file_that_makes_no_sense_hides_nothing_and_stops_nobody(tmp_path, caplog, text):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
        store.put(OTHER, objects(1, 5, namespace=OTHER))
        store.invalidate(OTHER.id, "why")
    other = (tmp_path / HIDDEN).read_text()
    (tmp_path / HIDDEN).write_text(text)
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, objects(1, 5))
    assert "not known" in caplog.text
    if text.startswith("{"):  # what does make sense beside it counts
        both = json.loads(text) | json.loads(other)
        (tmp_path / HIDDEN).write_text(json.dumps(both))
        shutil.rmtree(tmp_path / "index")
        with BlockStore.open(config(tmp_path)) as store:
            check_all(store, objects(1, 5))
            assert entries(store, objects(1, 5, namespace=OTHER), OTHER) == []


@pytest.mark.parametrize("reason", ["\udcff\ud800", "a\n\x1b[31mb\x00", "x" * 5000])
def test_any_reason_can_be_kept_and_shown(tmp_path, reason):
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 5))
        assert store.invalidate(NAMESPACE.id, reason)
    for _ in range(2):
        with BlockStore.open(config(tmp_path)) as store:
            (info,) = store.namespaces()
            assert info.hidden_since is not None
            assert info.reason.isprintable()
            assert 1 < len(info.reason) <= 1000
        shutil.rmtree(tmp_path / "index")
    with BlockStore.open(config(tmp_path)) as store:
        assert store.reinstate(NAMESPACE.id)
        check_all(store, objects(1, 5))

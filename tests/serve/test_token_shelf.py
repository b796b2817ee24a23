"""The token memory on a real store: over restarts, beside failures, and in its own namespace."""

import threading
import time

import pytest

from spillcache.config import MIB, StoreConfig
from spillcache.errors import StoreFullError, StoreIndexError
from spillcache.serve import token_shelf as module
from spillcache.serve.token_memory import TokenMemory
from spillcache.serve.token_shelf import TokenShelf, shelf_namespace
from spillcache.store.block_store import BlockStore

MODEL = shelf_namespace({"model_0": b"digest"}, "")
OTHER = shelf_namespace({"model_0": b"other"}, "")
KEYS = [bytes([i]) * 32 for i in range(5)]


def opened(path):
    return BlockStore.open(StoreConfig(path, quota_bytes=256 * MIB, min_free_bytes=0))


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "kv") as store:
        yield store


def test_records_survive_a_restart(tmp_path):
    values = {key: bytes([7]) * (100 * i + 4) for i, key in enumerate(KEYS)}
    with opened(tmp_path / "kv") as store:
        shelf = TokenShelf(store, MODEL)
        for key, value in values.items():
            shelf.put(key, value)
        assert shelf.find(KEYS) == {}
        shelf.close()
    with opened(tmp_path / "kv") as store:
        memory = TokenMemory()
        memory.shelf = TokenShelf(store, MODEL)
        assert memory.find([*KEYS, b"x" * 32]) == values
        other = TokenShelf(store, OTHER)
        assert other.find(KEYS) == {}
        (info,) = store.namespaces()
        assert dict(info.namespace.fields)["kind"] == "token memory"
        assert info.objects == len(KEYS)


def test_records_are_written_soon_and_together(store):
    shelf = TokenShelf(store, MODEL, delay_s=0.05)
    for key in KEYS:
        shelf.put(key, b"abcd")
    deadline = time.monotonic() + 10
    while len(shelf.find(KEYS)) < len(KEYS) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(shelf.find(KEYS)) == len(KEYS)
    shelf.close()
    shelf.put(KEYS[0], b"late")
    shelf.flush()
    assert shelf.find(KEYS) == {}


def test_a_put_is_found_after_a_flush(store):
    shelf = TokenShelf(store, MODEL)
    shelf.put(KEYS[0], b"abcd")
    shelf.flush()
    assert shelf.find(KEYS[:1]) == {KEYS[0]: b"abcd"}
    shelf.close()


def test_too_many_records_are_not_waited_for(store, monkeypatch):
    monkeypatch.setattr(module, "_PENDING_MAX", 2)
    shelf = TokenShelf(store, MODEL)
    for key in KEYS:
        shelf.put(key, b"abcd")
    shelf.close()
    assert set(TokenShelf(store, MODEL).find(KEYS)) == set(KEYS[:2])


def test_a_record_that_is_gone_is_not_known(store):
    shelf = TokenShelf(store, MODEL)
    for key in KEYS[:2]:
        shelf.put(key, b"abcd")
    shelf.flush()
    entries = shelf._entries
    store_entries = entries(KEYS[:2])
    store.discard(MODEL.id, [KEYS[0]], "for the test")
    shelf._entries = lambda keys: store_entries
    assert shelf.find(KEYS[:2]) == {KEYS[1]: b"abcd"}
    shelf.close()


def test_a_disk_that_fails_is_left_alone(store, monkeypatch, caplog):
    shelf = TokenShelf(store, MODEL)
    shelf.put(KEYS[0], b"abcd")
    calls = []

    def fail(*args):
        calls.append(args)
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", fail)
        shelf.flush()
        shelf.flush()
    assert len(calls) == 1
    assert "leaves the disk alone" in caplog.text
    assert shelf.find(KEYS) == {}
    shelf._paused_until = 0.0
    shelf.put(KEYS[1], b"abcd")
    shelf.flush()
    assert set(shelf.find(KEYS)) == set(KEYS[:2])
    shelf.close()


def test_an_index_that_fails_is_a_miss(store, monkeypatch):
    shelf = TokenShelf(store, MODEL)

    def fail(*args):
        raise StoreIndexError("damaged")

    monkeypatch.setattr(store, "find", fail)
    assert shelf.find(KEYS) == {}
    assert shelf.find(KEYS) == {}
    shelf.close()


def test_a_disk_that_hangs_holds_up_nobody(store, monkeypatch):
    shelf = TokenShelf(store, MODEL)
    shelf.put(KEYS[0], b"abcd")
    shelf.put(KEYS[1], b"abcd")
    shelf.flush()
    go = threading.Event()

    def hang(entries):
        go.wait(30)
        return iter(())

    monkeypatch.setattr(module, "_READ_WAIT_S", 0.05)
    monkeypatch.setattr(store, "read", hang)
    assert shelf.find(KEYS) == {}
    readers = [one for one in threading.enumerate() if one.name == "spillcache-recall"]
    go.set()
    for reader in readers:
        reader.join(10)
    assert readers
    assert shelf.find(KEYS) == {}
    shelf.close()


def test_a_disk_that_hangs_holds_up_no_stop(store, monkeypatch, caplog):
    shelf = TokenShelf(store, MODEL)
    shelf.put(KEYS[0], b"abcd")
    go, own = threading.Event(), store.put

    def hang(*args):
        go.wait(30)
        return own(*args)

    monkeypatch.setattr(store, "put", hang)
    shelf.flush(wait_s=0.05)
    assert "takes too long to write" in caplog.text
    writers = [one for one in threading.enumerate() if one.name == "spillcache-remember"]
    go.set()
    for writer in writers:
        writer.join(10)
    assert writers
    shelf.close()

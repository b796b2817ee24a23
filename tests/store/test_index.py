import os
import threading
import time

import lmdb
import pytest
from store_tools import NAMESPACE

from spillcache.errors import StoreFullError, StoreIndexError
from spillcache.store.index import Index
from spillcache.store.rows import Meta


@pytest.fixture
def index(tmp_path):
    opened = Index(tmp_path, map_bytes=1 << 17)
    yield opened
    opened.close()


def fill(catalog, name, count=200):
    for n in range(count):
        catalog.set_note(b"%s-%d" % (name, n), bytes(2000))


def test_the_map_grows(index):
    index.write(lambda catalog: fill(catalog, b"a", 1000))
    with index.read() as catalog:
        assert catalog.note(b"a-999") == bytes(2000)


def test_the_map_grows_while_others_read(index):
    stop = threading.Event()
    failures = []

    def read():
        try:
            while not stop.is_set():
                with index.read() as catalog:
                    catalog.note(b"a-1")
                time.sleep(0.001)
        except BaseException as error:  # seen by the test
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        index.write(lambda catalog, name=b"t%d" % turn: fill(catalog, name))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_another_process_grows_the_map(tmp_path):
    """The child opens first and small; the parent grows the map, then the child must follow."""
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            index = Index(tmp_path, map_bytes=1 << 17)
            index.write(lambda catalog: catalog.set_note(b"child", b"1"))
            os.write(to_parent[1], b"x")
            os.read(to_child[0], 1)
            with index.read() as catalog:
                seen = catalog.note(b"p-999")
            os.write(to_parent[1], b"y")
            os.read(to_child[0], 1)
            index.write(lambda catalog: catalog.set_note(b"child", b"2"))
            code = 0 if seen == bytes(2000) else 2
        finally:
            os._exit(code)
    os.read(to_parent[0], 1)
    index = Index(tmp_path, map_bytes=1 << 17)
    index.write(lambda catalog: fill(catalog, b"p", 1000))
    os.write(to_child[1], b"x")
    os.read(to_parent[0], 1)
    index.write(lambda catalog: fill(catalog, b"q", 3000))
    os.write(to_child[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with index.read() as catalog:
        assert catalog.note(b"child") == b"2"
    index.close()
    for fd in (*to_child, *to_parent):
        os.close(fd)


def test_a_failed_write_changes_nothing(index):
    def work(catalog):
        catalog.set_note(b"a", b"1")
        catalog.meta.clock = 7
        raise KeyError("no")

    with pytest.raises(KeyError):
        index.write(work)
    with index.read() as catalog:
        assert catalog.note(b"a") is None
        assert catalog.meta == Meta()


def test_lmdb_errors_are_ours(index):
    def work(catalog):
        raise lmdb.CorruptedError("pages")

    with pytest.raises(StoreIndexError, match="pages"):
        index.write(work)
    with pytest.raises(StoreIndexError, match="pages"), index.read():
        raise lmdb.CorruptedError("pages")

    def full(catalog):
        raise lmdb.DiskError("no space")

    with pytest.raises(StoreFullError):
        index.write(full)

    def for_ever(catalog):
        raise lmdb.MapResizedError("again")

    with pytest.raises(StoreIndexError, match="grow"):
        index.write(for_ever)


def test_the_clock_never_stands_still(index):
    ticks = index.write(lambda catalog: [catalog.tick() for _ in range(1000)])
    ticks += index.write(lambda catalog: [catalog.tick() for _ in range(1000)])
    assert ticks == sorted(set(ticks))

    def ahead(catalog):
        catalog.meta.clock = 1 << 63

    index.write(ahead)
    assert index.write(lambda catalog: catalog.tick()) == (1 << 63) + 1


def test_another_index_format_is_refused(index):
    def work(catalog):
        catalog.meta.index_format = 2

    index.write(work)
    with pytest.raises(StoreIndexError, match="format 2"), index.read() as catalog:
        _ = catalog.meta


def test_two_namespaces_of_one_id_are_refused(index):
    index.write(lambda catalog: catalog.use_namespace(NAMESPACE, 1))
    with index.read() as catalog:
        ((key, row),) = catalog.namespaces()
    assert key == NAMESPACE.id
    assert row.encoding == NAMESPACE.encode()

    def clash(catalog):
        catalog._namespaces[NAMESPACE.id] = type(row)(1, 1, b"another")
        catalog.use_namespace(NAMESPACE, 2)

    with pytest.raises(StoreIndexError, match="two namespaces"):
        index.write(clash)


def test_a_closed_index_is_refused(index, tmp_path):
    index.close()
    index.close()
    with pytest.raises(StoreIndexError, match="closed"):
        index.write(lambda catalog: None)
    with pytest.raises(StoreIndexError, match="closed"), index.read():
        pass


def test_what_is_no_index_is_refused(tmp_path):
    with pytest.raises(StoreIndexError):
        Index(tmp_path / "missing", read_only=True)
    (tmp_path / "data.mdb").write_bytes(b"garbage" * 4000)
    with pytest.raises(StoreIndexError):
        Index(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == b"garbage" * 4000


def test_a_read_only_index_creates_nothing(tmp_path):
    Index(tmp_path).close()
    before = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    index = Index(tmp_path, read_only=True)
    with index.read() as catalog:
        assert catalog.namespaces() == []
    with pytest.raises(StoreIndexError):
        index.write(lambda catalog: catalog.set_note(b"a", b"b"))
    index.close()
    assert {p.name: p.stat().st_size for p in tmp_path.iterdir()} == before
    assert index.allocated_bytes() > 0
    (tmp_path / "lock.mdb").unlink()
    assert index.allocated_bytes() > 0

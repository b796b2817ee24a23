"""Damage in each structure of an LMDB file is seen, whichever it is, before LMDB follows it."""

import random
import struct
import time
from pathlib import Path

import lmdb
import pytest

from spillcache.store import lmdb_pages
from spillcache.store.lmdb_pages import PageDamage, check_pages

PAGE = 4096


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> bytes:
    """A file with two databases, one of three levels; large values; and a long free list."""
    path = tmp_path_factory.mktemp("lmdb")
    chance = random.Random(1)
    with lmdb.open(str(path), map_size=1 << 30, max_dbs=4) as env:
        large, small = env.open_db(b"large"), env.open_db(b"small")
        for _ in range(4):
            with env.begin(write=True) as txn:
                for n in range(6000):
                    txn.put(b"%041d" % chance.randrange(20_000), bytes(92), db=large)
                    if n < 40:
                        txn.put(b"%02d" % n, bytes(chance.randrange(3000, 9000)), db=small)
            with env.begin(write=True) as txn:
                for n in range(0, 20_000, 3):
                    txn.delete(b"%041d" % n, db=large)
        with env.begin(db=large) as txn:
            assert txn.stat(large)["depth"] >= 3
    return (path / "data.mdb").read_bytes()


@pytest.fixture
def damaged(healthy, tmp_path):
    """Write the file with some bytes changed, and look at it: what is said, or an empty text."""
    file = tmp_path / "data.mdb"
    file.write_bytes(healthy)

    def look(at: int, data: bytes) -> str:
        with open(file, "r+b", buffering=0) as opened:
            opened.seek(at)
            opened.write(data)
            try:
                check_pages(file)
            except PageDamage as error:
                return str(error)
            finally:
                opened.seek(at)
                opened.write(healthy[at : at + len(data)])
        return ""

    return look


@pytest.fixture
def check(healthy, tmp_path):
    """The parts of the file, found by walking it."""
    file = tmp_path / "walked.mdb"
    file.write_bytes(healthy)
    with open(file, "rb") as opened:
        found = lmdb_pages._Check(opened.fileno(), time.monotonic() + 60)
        found.run()
        yield found


def meta_at(check) -> int:
    return PAGE * (check._meta.transaction & 1)


def tree_pages(healthy, check, kind):
    """Pages in use of one kind, by number."""
    free = set()
    for node in lmdb_pages._Check(check._fd, time.monotonic() + 60)._walk(
        check._meta.free, lmdb_pages._U64_key
    ):
        (count,) = struct.unpack_from("<Q", node.data)
        free |= set(struct.unpack_from(f"<{count}Q", node.data, 8))
    pages = range(2, check._meta.last_page + 1)
    return [
        page
        for page in pages
        if page not in free
        and struct.unpack_from("<QHH", healthy, page * PAGE)[::2] == (page, kind)
    ]


def nodes(healthy, page) -> list[int]:
    """Where the nodes of a tree's page lie in the file."""
    (lower,) = struct.unpack_from("<H", healthy, page * PAGE + 12)
    pointers = struct.unpack_from(f"<{(lower - 16) // 2}H", healthy, page * PAGE + 16)
    return [page * PAGE + each for each in pointers]


def test_the_healthy_file(healthy, damaged, check):
    assert damaged(0, b"") == ""
    # Every page has an owner: so a page that is owned twice is always noticed.
    assert all(check._owned)


@pytest.mark.parametrize(
    ("offset", "data", "said"),
    [
        (0, b"\7", "is none"),
        (10, b"\2", "is none"),
        (16, b"\0", "is none"),
        (32, bytes(7) + b"\1", "a map of"),
        (32, struct.pack("<Q", PAGE), "a map of"),
        (40, b"\1\1\1\1", "bytes"),
        (44, b"\x40", "unknown flags"),
        (44 + 48, b"\x04", "unknown flags"),
        (46 + 48, b"\x63", "a tree of depth"),
        (46 + 48, b"\5", "another kind"),
        (48 + 48 + 8, b"\xff", "not the pages and entries"),
        (48 + 48 + 24, b"\xff", "not the pages and entries"),
        (48 + 48 + 32, b"\0\0\0\1", "is none of the file's"),
        (136, bytes(8), "none of the file's"),
        (144, b"\xff\xff", "transactions"),
    ],
)
def test_of_the_meta_page(damaged, check, offset, data, said):
    assert said in damaged(meta_at(check) + offset, data)


def test_meta_pages_of_two_sizes(healthy, damaged):
    assert "two sizes" in damaged(PAGE + 40, struct.pack("<I", 8192))
    assert "pages of" in damaged(40, struct.pack("<I", 1000))


def test_a_short_file(tmp_path, healthy):
    for length in (0, 100, PAGE, 2 * PAGE - 1, 3 * PAGE, len(healthy) // 2):
        (tmp_path / "short").write_bytes(healthy[:length])
        with pytest.raises(PageDamage):
            check_pages(tmp_path / "short")


@pytest.mark.parametrize("kind", [1, 2])
def test_of_a_page_in_a_tree(healthy, damaged, check, kind):
    pages = tree_pages(healthy, check, kind)
    for page in (pages[0], pages[len(pages) // 2], pages[-1]):
        at = page * PAGE
        assert "another" in damaged(at, struct.pack("<Q", page + 1))
        assert "another" in damaged(at + 10, struct.pack("<H", 3 - kind))
        assert "another" in damaged(at + 10, struct.pack("<H", 4))
        assert "bounds" in damaged(at + 12, struct.pack("<H", 8))
        assert "bounds" in damaged(at + 12, struct.pack("<H", 5000))
        assert "bounds" in damaged(at + 14, struct.pack("<H", 4097))
        assert damaged(at + 12, struct.pack("<H", 16))
        assert "beyond its bounds" in damaged(at + 16, struct.pack("<H", 4095))
        assert "beyond its bounds" in damaged(at + 16, struct.pack("<H", 2))


def test_of_a_branch(healthy, damaged, check):
    (*_, page) = tree_pages(healthy, check, 1)
    first, second, *_ = nodes(healthy, page)
    children = [healthy[each : each + 4] for each in (first, second)]
    assert children[0] != children[1]
    assert "two owners" in damaged(second, children[0])
    assert "none of the file's" in damaged(second, b"\xff\xff\xff\x7f")
    assert "beyond its end" in damaged(second + 6, b"\xff\xff")
    assert damaged(first, children[1])
    assert "leads astray" in damaged(second + 8, b"z")


def test_of_a_leaf(healthy, damaged, check):
    leaves = (nodes(healthy, page) for page in tree_pages(healthy, check, 2))
    # A page of the large database: many nodes with values of 92 bytes.
    at = next(n[0] for n in leaves if len(n) > 9 and healthy[n[0] : n[0] + 5] == b"\x5c\0\0\0\0")
    assert "can't be" in damaged(at, b"\xff\xff")
    assert "can't be" in damaged(at + 4, b"\x09")
    assert "can't be" in damaged(at + 6, b"\0\0")
    assert "can't be" in damaged(at + 6, b"\xff\x0f")
    assert "order" in damaged(at + 8, b"z")


def test_of_overflow_pages(healthy, damaged, check):
    leaves = (nodes(healthy, page) for page in tree_pages(healthy, check, 2))
    node = next(at for n in leaves for at in n if healthy[at + 4] == 1 and healthy[at + 6] == 2)
    pointer = node + 8 + 2
    (page,) = struct.unpack_from("<Q", healthy, pointer)
    assert "another one" in damaged(page * PAGE, struct.pack("<Q", page + 1))
    assert "another one" in damaged(page * PAGE + 10, b"\2")
    assert "another one" in damaged(page * PAGE + 12, b"\x09")
    assert "lies beyond" in damaged(pointer, struct.pack("<Q", check._meta.last_page))
    assert damaged(pointer, struct.pack("<Q", 3))


def test_of_the_free_list(healthy, damaged, check):
    page = check._meta.free.root
    depth = check._meta.free.depth
    assert depth == 1
    at = nodes(healthy, page)[0]
    _, _, flags, key_bytes = struct.unpack_from("<HHHH", healthy, at)
    value = at + 8 + key_bytes
    if flags & 1:
        value = struct.unpack_from("<Q", healthy, value)[0] * PAGE + 16
    count, first, second = struct.unpack_from("<QQQ", healthy, value)
    assert "length is wrong" in damaged(value, struct.pack("<Q", count + 1))
    assert "two owners" in damaged(value + 8, struct.pack("<Q", second))
    assert "two owners" in damaged(value + 8, struct.pack("<Q", check._meta.main.root))
    assert "none of the file's" in damaged(value + 8, struct.pack("<Q", 1 << 60))
    assert first > second


def test_of_a_database_s_record(healthy, damaged, check):
    """In the main tree's only page."""
    page = check._meta.main.root
    at = healthy.index(b"large", page * PAGE) + len(b"large")
    assert "unknown flags of database" in damaged(at + 4, b"\4")
    assert damaged(at + 6, b"\1")
    assert "not the pages and entries" in damaged(at + 32, b"\0")
    assert damaged(at + 40, struct.pack("<Q", page))


def test_it_stops_in_time(healthy, tmp_path):
    file = Path(tmp_path / "data.mdb")
    file.write_bytes(healthy[: 2 * PAGE])
    check_pages(file, 0.0)

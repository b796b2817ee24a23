"""Single bytes flipped: the bench, cut short, and what each kind of damage must come to."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_tools import NAMESPACE, check_all, config, entries, flip, objects

from spillcache.errors import CorruptBlock
from spillcache.state import Part
from spillcache.store import index_sum
from spillcache.store.block_store import BlockStore
from spillcache.store.lmdb_pages import PageDamage, UnknownVersion, check_pages

BENCH = Path(__file__).parents[2] / "bench" / "flip.py"
WANTED = [o for seed in range(4) for o in objects(seed, 8, 5000, tuple(Part))]


def test_bytes_flipped_everywhere():
    command = [sys.executable, str(BENCH), "--flips", "45", "--seed", str(random.randrange(1000))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bench"] == "flip"
    assert found["flips"] >= 40
    assert (found["wrong_bytes"], found["segment_crashes"], found["unrecovered"]) == (0, 0, 0)
    assert found["index_crashes"] == 0
    assert found["indexes_set_aside"] > 0
    assert found["flips_that_cost_objects"] > 0


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A closed store whose index has free pages, a page of its own for a note, and a deep tree."""
    path = tmp_path_factory.mktemp("flip") / "cache"
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, WANTED)
        for seed in range(20, 30):
            store.put(NAMESPACE, objects(seed, 40, 100))
        store.set_note("long", bytes(9000))
        ours = {NAMESPACE.id + o.block for o in WANTED}
        store._opened.room.make_free(300 * 4096, ours.__contains__)
    return path


@pytest.fixture
def filled(template, tmp_path):
    return Path(shutil.copytree(template, tmp_path / "cache"))


def data_file(path: Path) -> Path:
    return path / "index" / "data.mdb"


def as_if_killed(path: Path) -> None:
    (path / index_sum.INDEX_SUM).unlink()


def test_the_pages_of_a_healthy_index(filled):
    check_pages(data_file(filled))
    check_pages(data_file(filled), 0.0)


def damaged(path: Path, offset: int, mask: int) -> bool:
    raw = bytearray(data_file(path).read_bytes())
    raw[offset] ^= mask
    data_file(path).write_bytes(raw)
    try:
        check_pages(data_file(path))
    except PageDamage:
        return True
    except UnknownVersion:
        return True  # LMDB itself refuses it
    finally:
        raw[offset] ^= mask
        data_file(path).write_bytes(raw)
    return False


def test_every_byte_that_leads_to_pages_is_watched(filled):
    """Both meta pages but for an address that is not used; numbers, kinds and bounds of pages."""
    # Of each meta page: number, flags, magic, version; then trees, last page, transaction.
    where = [*range(8), 10, 11, *range(16, 24), 32 + 6, 32 + 7]
    latest = max((0, 1), key=lambda n: transaction(filled, n))
    for page in (0, 1):
        for at in where:
            assert damaged(filled, 4096 * page + at, 0x41), (page, at)
        # One less is the number of a transaction that could be: only the digest tells.
        flipped = transaction(filled, page) ^ 0x02
        could_be = abs(flipped - transaction(filled, 1 - page)) == 1
        assert damaged(filled, 4096 * page + 144, 0x02) != could_be, page
        assert damaged(filled, 4096 * page + 144, 0x01), page
    for at in [*range(40, 44), 44, 46, *range(48, 88, 8), 92, 94, *range(96, 144, 8)]:
        assert damaged(filled, 4096 * latest + at, 0x05), at


def transaction(path: Path, number: int) -> int:
    raw = data_file(path).read_bytes()
    return int.from_bytes(raw[4096 * number + 144 : 4096 * number + 152], "little")


def test_a_file_that_is_no_index(tmp_path):
    file = tmp_path / "data.mdb"
    for content in (b"", bytes(100), bytes(8192), b"x" * 20_000):
        file.write_bytes(content)
        with pytest.raises(PageDamage):
            check_pages(file)
    with pytest.raises(OSError, match="No such"):
        check_pages(tmp_path / "none")


def test_another_version_of_lmdb_is_left_to_lmdb(filled):
    raw = bytearray(data_file(filled).read_bytes())
    for page in (0, 4096):
        raw[page + 20] = 2
    data_file(filled).write_bytes(raw)
    with pytest.raises(UnknownVersion):
        check_pages(data_file(filled))


@pytest.mark.parametrize("killed", [False, True])
def test_a_pointer_that_leads_astray(filled, killed):
    """The root of a database: LMDB would follow it anywhere."""
    raw = data_file(filled).read_bytes()
    latest = max((0, 1), key=lambda n: transaction(filled, n))
    if killed:
        as_if_killed(filled)
    flip(data_file(filled), 4096 * latest + 16 + 24 + 48 + 40)
    assert data_file(filled).read_bytes() != raw
    with BlockStore.open(config(filled)) as store:
        check_all(store, WANTED)
        store.put(NAMESPACE, objects(50, 5))
        check_all(store, objects(50, 5))
    assert (filled / "index.damaged").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_truncated_index(filled, killed):
    if killed:
        as_if_killed(filled)
    with open(data_file(filled), "r+b") as file:
        file.truncate(data_file(filled).stat().st_size // 2)
    with BlockStore.open(config(filled)) as store:
        check_all(store, WANTED)


def test_each_byte_of_a_header_is_checked(filled):
    with BlockStore.open(config(filled)) as store:
        found = entries(store, WANTED)
        # Backwards, for a block that none follows takes its other parts with it.
        for number, entry in enumerate(reversed(found[:96])):
            path = store._opened.segments.path(entry.segment)
            flip(path, entry.offset + 2 * number)
            with pytest.raises(CorruptBlock):
                list(store.read([entry]))
        assert [e for e in entries(store, WANTED) if e in found[:96]] == []

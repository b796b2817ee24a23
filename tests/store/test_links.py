"""Links, pipes and other people's files in a store's directory; files and bytes that go away
between a lookup and the read.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from store_child import SIZE
from store_tools import NAMESPACE, check_all, config, entries, objects, segment_files

from spillcache.errors import ObjectMissing, StoreError, StoreFormatError, StoreIndexError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.files import Files
from spillcache.store.index_sum import INDEX_SUM
from spillcache.store.quarantine import Quarantine

PARTS = (Part.KV, Part.WINDOW)
WANTED = objects(1, 6, 20_000, PARTS)
PRECIOUS = b"somebody's letter\n" * 1000


@pytest.fixture
def precious(tmp_path):
    """A file outside the store that must stay as it is."""
    path = tmp_path / "precious"
    path.write_bytes(PRECIOUS)
    path.chmod(0o644)
    yield path
    assert path.read_bytes() == PRECIOUS
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, WANTED)
    return path


def use(path):
    """Everything that writes; what it raises."""
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, objects(2, 6, 20_000, PARTS))
        check_all(store, objects(2, 6, 20_000, PARTS))
        store.verify(fix=True)
        ours = {NAMESPACE.id + o.block for o in objects(2, 6)}
        store._opened.room.make_free(200_000, ours.__contains__)
        store.gc()


def put_in_place(kind: str, at: Path, precious: Path) -> None:
    at.unlink(missing_ok=True)
    if kind == "symlink":
        at.symlink_to(precious)
    elif kind == "hard link":
        at.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(at)
    elif kind == "directory":
        at.mkdir()
    elif kind == "dangling":
        at.symlink_to(precious.with_name("nowhere"))


KINDS = ("symlink", "hard link", "pipe", "directory", "dangling")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_in_place_of_a_segment(filled, precious, kind):
    put_in_place(kind, filled / "segments" / "0000000001.seg", precious)
    use(filled)
    with BlockStore.open(config(filled)) as store:
        left = entries(store, WANTED)
        if kind == "hard link":
            for entry in left:
                with pytest.raises(StoreError):
                    list(store.read([entry]))
        else:
            assert left == []
    assert not precious.with_name("nowhere").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_next_segment_would_be(filled, precious, kind):
    put_in_place(kind, filled / "segments" / "0000000002.seg", precious)
    with BlockStore.open(config(filled)) as store:
        store._opened.writer.close()
        large = objects(2, 3, 2_000_000)
        store.put(NAMESPACE, large)
        check_all(store, WANTED + large)
    assert not precious.with_name("nowhere").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "dangling"])
@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_in_place_of_the_index_s_files(filled, precious, name, kind):
    put_in_place(kind, filled / "index" / name, precious)
    with BlockStore.open(config(filled)) as store:
        check_all(store, WANTED)
        assert (filled / "index.damaged" / name).lstat()
        assert store.verify().is_sound
    use(filled)
    assert not precious.with_name("nowhere").exists()


def test_an_index_that_is_linked_while_others_use_it(filled, tmp_path):
    child = start_late(filled)
    (tmp_path / "second").hardlink_to(filled / "index" / "data.mdb")
    try:
        with pytest.raises(StoreIndexError, match="link"):
            BlockStore.open(config(filled))
    finally:
        finish(child)


@pytest.mark.parametrize("name", ["index", "segments", "quarantine"])
def test_in_place_of_a_directory(filled, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0000000001.seg").write_bytes(PRECIOUS)
    shutil.rmtree(filled / name)
    (filled / name).symlink_to(elsewhere)
    with pytest.raises(StoreFormatError, match="should be a directory"):
        BlockStore.open(config(filled))
    assert (elsewhere / "0000000001.seg").read_bytes() == PRECIOUS
    assert [p.name for p in elsewhere.iterdir()] == ["0000000001.seg"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "directory", "dangling"])
@pytest.mark.parametrize("name", ["spillcache.json", INDEX_SUM])
def test_in_place_of_a_file_of_the_store(filled, precious, name, kind):
    put_in_place(kind, filled / name, precious)
    try:
        use(filled)
    except StoreError as error:
        assert str(filled) in str(error) or "locked" in str(error)  # noqa: PT017 - either is right
    assert not precious.with_name("nowhere").exists()


@pytest.mark.timeout(60)
def test_in_the_quarantine(filled, precious, tmp_path):
    """Names that are ours but no files of ours are neither read nor written, and never block."""
    name = f"{1:020d}-{'0' * 16}-{'0' * 16}-kv-1-4096-why.rec"
    for number, kind in enumerate(KINDS):
        put_in_place(kind, filled / "quarantine" / f"{number}{name[1:]}", precious)
    (filled / "quarantine" / "notes.rec").write_text("not ours")
    with BlockStore.open(config(filled)) as store:
        listed = store.verify().quarantined
        assert [each.reason for each in listed] == ["why"]  # the hard link: a file, only looked at
    assert Quarantine(filled / "quarantine", 1 << 20).records()[0].name.startswith("1")
    assert (filled / "quarantine" / "notes.rec").read_text() == "not ours"


def test_a_copy_made_of_links_is_not_written_through(filled, tmp_path):
    """``cp -al`` of a store shares its files: what one of them evicts, the other still has."""
    shutil.copytree(filled, tmp_path / "copy", copy_function=os.link)
    before = {p.name: p.read_bytes() for p in segment_files(filled)}
    use(tmp_path / "copy")
    assert {p.name: p.read_bytes() for p in segment_files(filled)} == before
    with BlockStore.open(config(filled)) as store:
        check_all(store, WANTED)


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_what_care_makes_is_private_whatever_the_umask(filled, umask):
    before = os.umask(umask)
    try:
        with BlockStore.open(config(filled)) as store:
            (first, *_) = entries(store, WANTED)
            path = store._opened.segments.path(first.segment)
            with open(path, "r+b", buffering=0) as file:
                file.seek(first.offset + 500)
                file.write(b"damage")
            assert store.verify(fix=True).fixed == 1
        BlockStore.repair(filled, anew=True)
    finally:
        os.umask(before)
    assert len(list((filled / "quarantine").iterdir())) == 1
    for each in (filled, *filled.rglob("*")):
        expected = 0o700 if each.is_dir() else 0o600
        assert stat.S_IMODE(each.lstat().st_mode) == expected, each


# Between a lookup and the read.


def start_late(path, blocks=6):
    script = Path(__file__).with_name("store_child.py")
    child = subprocess.Popen(
        [sys.executable, str(script), "late", str(path), "1", str(blocks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == f"found {2 * blocks}\n"
    return child


def finish(child):
    out, _ = child.communicate("\n", timeout=60)
    assert child.returncode == 0
    return out.split()


@pytest.fixture
def shared(tmp_path):
    """A store, and objects of the size that the child expects."""
    path = tmp_path / "shared"
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, objects(1, 6, SIZE, PARTS))
        store.put(NAMESPACE, objects(2, 6, SIZE, PARTS))
    return path


@pytest.mark.parametrize("how", ["evicted", "purged", "file gone", "all of it gone"])
def test_what_goes_between_a_lookup_and_the_read_is_a_miss(shared, how):
    """In another process: holes that were punched, and files that vanished."""
    child = start_late(shared)
    if how in ("evicted", "purged"):
        with BlockStore.open(config(shared)) as store:
            if how == "purged":
                assert store.purge(NAMESPACE.id).objects == 24
            else:
                others = {NAMESPACE.id + o.block for o in objects(2, 6)}
                store._opened.room.make_free(6 * 2 * SIZE, others.__contains__)
                check_all(store, objects(2, 6, SIZE, PARTS))
    else:
        for each in segment_files(shared):
            each.unlink()
        if how == "all of it gone":
            shutil.rmtree(shared / "segments")
    said = finish(child)
    expected = "StoreIOError" if how == "all of it gone" else "ObjectMissing"
    assert said == [expected] * 12
    assert list((shared / "quarantine").iterdir()) == []


def test_what_stays_is_read_right(shared):
    assert finish(start_late(shared)) == ["right"] * 12


def test_a_segment_that_becomes_a_pipe_does_not_hang_a_reader(store):
    store.put(NAMESPACE, WANTED)
    found = entries(store, WANTED)
    path = segment_files(store.path)[0]
    path.unlink()
    os.mkfifo(path)
    for entry in reversed(found):
        with pytest.raises(ObjectMissing):
            list(store.read([entry]))
    assert not Files().is_file(path)

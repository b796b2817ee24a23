"""Deleting on request: all that is ours, and only that."""

import pytest
from store_tools import NAMESPACE, OTHER, check_all, config, entries, flip, objects, segment_files
from test_store_processes import kill, lines_until, start

from spillcache.errors import CorruptBlock, ObjectMissing, StoreFormatError, StoreIOError
from spillcache.state import Part
from spillcache.store import purge as purge_module
from spillcache.store.block_store import BlockStore
from spillcache.store.view import directory_bytes

PARTS = (Part.KV, Part.WINDOW)


def fill(store: BlockStore) -> None:
    for seed in range(4):
        store.put(NAMESPACE, objects(seed, 5, 50_000, PARTS))
        store.put(OTHER, objects(seed, 3, 50_000, (Part.KV,), OTHER))


def test_one_namespace_goes_and_the_other_stays(store, monkeypatch):
    monkeypatch.setattr(purge_module, "_STEP_OBJECTS", 7)
    fill(store)
    before = sum(p.stat().st_blocks for p in segment_files(store.path))
    seen = []
    done = store.purge(OTHER.id, lambda now, total: seen.append((now, total)))
    assert (done.objects, done.removed, done.files) == (12, False, 0)
    assert seen == [(7, 12), (12, 12)]
    assert [info.namespace for info in store.namespaces()] == [NAMESPACE]
    for seed in range(4):
        check_all(store, objects(seed, 5, 50_000, PARTS))
        assert entries(store, objects(seed, 3, 0, namespace=OTHER), OTHER) == []
    after = sum(p.stat().st_blocks for p in segment_files(store.path))
    assert before - after >= 12 * 50_000 // 512
    with store._opened.index.read() as catalog:
        assert catalog.freeing() == []
        assert catalog.objects_from(b"", OTHER.id, 10) == []
    # It may be used again at once.
    store.put(OTHER, objects(1, 3, 100, (Part.KV,), OTHER))
    assert len(entries(store, objects(1, 3, 0, namespace=OTHER), OTHER)) == 3


def test_everything_goes_pinned_or_not(store):
    fill(store)
    found = entries(store, objects(1, 5, 0, PARTS))
    with store.pin(found):
        assert store.purge().objects == 52
    assert store.namespaces() == []
    with pytest.raises(ObjectMissing):
        list(store.read(found))
    store.put(NAMESPACE, objects(1, 5, 50_000, PARTS))
    check_all(store, objects(1, 5, 50_000, PARTS))


def test_blocks_that_failed_in_use_go_and_may_be_put_anew(store, caplog):
    fill(store)
    chain = objects(1, 5, 50_000, PARTS)
    blocks = sorted({(o.block_index, o.block) for o in chain})
    middle = [block for index, block in blocks if index in (1, 2)]
    assert store.discard(NAMESPACE.id, [*middle, b"\x07" * 32], "the engine fails with them") == 4
    assert "4 objects were deleted: the engine fails with them" in caplog.text
    left = {entry.block_index for entry in entries(store, chain)}
    assert left == {0, 3, 4}, "what follows is there, for when they are computed anew"
    assert store.discard(NAMESPACE.id, middle, "again") == 0
    for seed in (0, 2, 3):
        check_all(store, objects(seed, 5, 50_000, PARTS))
    store.put(NAMESPACE, [o for o in chain if o.block in middle])
    check_all(store, chain)
    assert store.discard(NAMESPACE.id, [block for _, block in blocks], "all of it") == 10
    with store._opened.index.read() as catalog:
        assert catalog.freeing() == []
    report = store.verify()
    assert (report.left, report.index) == (0, [])


def test_damaged_blocks_and_the_quarantine_go_too(store):
    wanted = objects(1, 4, 50_000)
    store.put(NAMESPACE, wanted)
    second = entries(store, wanted)[1]
    flip(segment_files(store.path)[0], second.offset + 5000)
    with pytest.raises(CorruptBlock):
        list(store.read([second]))
    quarantine = store.path / "quarantine"
    assert len(list(quarantine.iterdir())) == 1
    (quarantine / "mine.txt").write_text("mine")
    assert store.purge().objects == 3
    assert [p.name for p in quarantine.iterdir()] == ["mine.txt"]
    with store._opened.index.read() as catalog:
        assert catalog.objects_from(b"", b"", 10) == []
        assert catalog.meta.quarantined == 0


def test_a_quarantine_that_can_not_be_cleared_is_said(store, monkeypatch):
    def refuse():
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store._opened.quarantine, "clear", refuse)
    with pytest.raises(StoreIOError):
        store.purge()


def test_a_hidden_namespace_stays_hidden(store):
    fill(store)
    assert store.invalidate(OTHER.id, "wrong build")
    assert store.purge(OTHER.id).objects == 12
    store.purge()
    (info,) = store.namespaces()
    assert (info.namespace, info.objects, info.reason) == (OTHER, 0, "wrong build")


def test_removing_takes_what_is_ours_and_leaves_the_rest(tmp_path):
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        fill(store)
        assert BlockStore.remove(path) is None
        check_all(store, objects(1, 5, 50_000, PARTS))
    letters = [
        *(path / name for name in ("letter.txt", "index/letter.txt", "segments/1.txt")),
        *(path / name for name in ("segments/x.seg", "quarantine/a.rec.txt")),
    ]
    for letter in letters:
        letter.write_text("mine")
    (path / ".spillcache-77-dead").write_text("ours")
    (path / "index.damaged").mkdir()
    (path / "index.damaged" / "data.mdb").write_bytes(bytes(5000))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0000000001.seg").write_text("mine")
    (path / "segments" / "0000000099.seg").symlink_to(outside / "0000000001.seg")
    taken = directory_bytes(path)
    done = BlockStore.remove(path)
    assert done.removed
    assert done.files >= 6
    assert 0 < done.freed_bytes <= taken
    assert done.foreign == ["index", "letter.txt", "quarantine", "segments"]
    assert all(letter.read_text() == "mine" for letter in letters)
    assert (outside / "0000000001.seg").read_text() == "mine"
    left = {str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()}
    assert left == {
        *(str(letter.relative_to(path)) for letter in letters),
        "segments/0000000099.seg",
    }
    with pytest.raises(StoreFormatError):
        BlockStore.remove(path)


def test_a_directory_that_was_ours_alone_can_be_used_again(tmp_path):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store)
    assert BlockStore.remove(tmp_path).foreign == []
    assert list(tmp_path.iterdir()) == []
    with BlockStore.open(config(tmp_path)) as store:
        assert store.namespaces() == []


@pytest.mark.parametrize("name", ["segments", "index", "quarantine"])
def test_a_linked_room_is_not_followed(tmp_path, name):
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        fill(store)
    moved = tmp_path / "elsewhere"
    (path / name).rename(moved)
    (path / name).symlink_to(moved)
    before = sorted(moved.iterdir())
    assert BlockStore.remove(path).foreign == [name]
    assert sorted(moved.iterdir()) == before


def test_a_failing_filesystem_is_a_store_error(tmp_path, monkeypatch):
    with BlockStore.open(config(tmp_path)) as store:
        fill(store)

    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(purge_module, "_remove_files", refuse)
    with pytest.raises(StoreIOError):
        BlockStore.remove(tmp_path)
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, objects(1, 5, 50_000, PARTS))


def test_beside_a_running_writer(tmp_path):
    """Another process has the store open: it is emptied, not removed, and the writer goes on."""
    child = start("put", tmp_path, 1000, 10_000)
    lines_until(child, "1004")
    try:
        assert BlockStore.remove(tmp_path) is None
        with BlockStore.open(config(tmp_path)) as store:
            assert store.purge().objects >= 5 * 12
            assert entries(store, objects(1000, 6, 0, PARTS)) == []
            # What it says next may have been put before the purge; what it says later was not.
            while line := child.stdout.readline():
                wanted = objects(int(line), 6, 60_000, PARTS)
                if entries(store, wanted):
                    check_all(store, wanted)
                    break
            assert line
    finally:
        kill(child)
    with BlockStore.open(config(tmp_path)) as store:
        check_all(store, wanted)


def test_what_only_looks_like_ours_stays(tmp_path):
    """Names that spillcache would not write, and what is no file."""
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 3))
        for name in ("segments/7.seg", "segments/0000000٣.seg", "quarantine/notes.rec"):
            (tmp_path / name).write_text("mine")
        record = f"quarantine/{1:020d}-{'0' * 16}-{'0' * 16}-kv-1-4096-why.rec"
        (tmp_path / record).mkdir()
        store.purge()
        assert store.verify().quarantined == []
        assert BlockStore.inspect(tmp_path).quarantined == 0
    done = BlockStore.remove(tmp_path)
    assert done.foreign == ["quarantine", "segments"]
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    ours = ["quarantine", "quarantine/notes.rec", record, "segments"]
    assert left == sorted([*ours, "segments/0000000٣.seg", "segments/7.seg"])

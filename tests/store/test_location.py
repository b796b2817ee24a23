import errno
import json
import logging
import os
import stat
from functools import partial
from pathlib import Path

import pytest
from store_tools import NAMESPACE, config, objects

from spillcache.config import GIB, MIB
from spillcache.errors import (
    ConfigError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreLocationError,
)
from spillcache.store import location as module
from spillcache.store.block_store import BlockStore
from spillcache.store.location import (
    examine,
    existing,
    open_location,
    read_location,
)
from spillcache.store.small_files import is_stale_temporary


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_missing_directory_is_made_with_its_parents(tmp_path):
    made = open_location(tmp_path / "a" / "b" / "cache", None)
    assert made.quota_bytes == 32 * GIB
    assert read_location(made.path) == made
    assert sorted(p.name for p in made.path.iterdir()) == [
        "index",
        "quarantine",
        "segments",
        "spillcache.json",
    ]


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_location(Path("~/cache"), None).path == tmp_path / "cache"


def test_an_empty_directory_is_narrowed_and_used(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".spillcache-1-abcd").write_text("a maker that died")
    open_location(tmp_path, None)
    assert mode(tmp_path) == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_permissions_whatever_the_umask(tmp_path, umask):
    path = tmp_path / "cache"
    before = os.umask(umask)
    try:
        with BlockStore.open(config(path)) as store:
            store.put(NAMESPACE, objects(1, 2))
    finally:
        os.umask(before)
    for each in (path, *path.rglob("*")):
        assert mode(each) == (0o700 if each.is_dir() else 0o600), each


def test_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(StoreLocationError, match="not a directory"):
        open_location(path, None)
    with pytest.raises(StoreLocationError):
        open_location(path / "below", None)
    with pytest.raises(StoreLocationError):
        read_location(path)
    assert path.read_text() == "mine"


def test_somebody_elses_files_are_neither_adopted_nor_deleted(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreFormatError, match=r"thesis\.txt"):
        open_location(tmp_path, None)
    with pytest.raises(StoreFormatError):
        read_location(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "store_id": "zz", "quota_bytes": 1, "created_ns": 1}',
        '{"format": 1, "store_id": "00", "quota_bytes": 1, "created_ns": 1}',
        f'{{"format": 1, "store_id": "{"00" * 16}", "quota_bytes": Infinity, "created_ns": 1}}',
        "[" * 5000,
    ],
)
def test_settings_that_are_not_ours_are_refused(tmp_path, text):
    (tmp_path / "spillcache.json").write_text(text)
    with pytest.raises(StoreFormatError, match="settings"):
        open_location(tmp_path, None)
    assert (tmp_path / "spillcache.json").read_text() == text


def test_another_format_is_refused(tmp_path):
    made = open_location(tmp_path / "cache", None)
    settings = made.path / "spillcache.json"
    fields = json.loads(settings.read_text())
    settings.write_text(json.dumps({**fields, "format": 2}))
    with pytest.raises(StoreFormatError, match="format 2"):
        open_location(made.path, None)


def test_a_symbolic_link_inside_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = open_location(tmp_path / "cache", None)
    made.segments.rmdir()
    made.segments.symlink_to(elsewhere)
    with pytest.raises(StoreFormatError, match="segments"):
        open_location(made.path, None)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "spillcache.json").symlink_to(made.path / "spillcache.json")
    with pytest.raises(StoreIOError):
        open_location(tmp_path / "linked", None)


def test_a_store_behind_a_symbolic_link_is_used(tmp_path):
    made = open_location(tmp_path / "cache", None)
    (tmp_path / "link").symlink_to(made.path)
    assert open_location(tmp_path / "link", None).store_id == made.store_id


def test_another_users_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StoreLocationError, match="belongs to user"):
        open_location(tmp_path, None)


def test_a_directory_without_write_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, wanted: False)
    with pytest.raises(StoreLocationError, match="writable"):
        open_location(tmp_path, None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.EROFS, StoreLocationError),
        (errno.EACCES, StoreLocationError),
        (errno.EIO, StoreIOError),
    ],
)
def test_a_filesystem_that_refuses(tmp_path, monkeypatch, code, error):
    def refuse(self, *args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(error):
        open_location(tmp_path / "cache", None)


def test_two_makers_agree(tmp_path, monkeypatch):
    first = open_location(tmp_path / "cache", None)
    # The second one has looked before the first had written.
    answers = [None, first]
    real = module._read_settings
    monkeypatch.setattr(module, "_read_settings", lambda path: answers.pop(0) and real(path))
    assert open_location(first.path, None).store_id == first.store_id
    assert not [p for p in first.path.iterdir() if p.name.startswith(".")]


def test_the_quota_belongs_to_the_store(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "cache"
    assert open_location(path, GIB).quota_bytes == GIB
    assert open_location(path, None).quota_bytes == GIB
    assert "quota changed" not in caplog.text
    assert open_location(path, 2 * GIB).quota_bytes == 2 * GIB
    assert "quota changed" in caplog.text
    assert read_location(path).quota_bytes == 2 * GIB
    assert mode(path / "spillcache.json") == 0o600


def test_a_quota_under_the_minimum_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--cache-disk-size.*64\.0 MiB"):
        open_location(tmp_path / "cache", 64 * MIB - 1)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", ["nfs", "cifs", "fuse.sshfs", "9p", "ceph", "lustre"])
def test_a_network_filesystem_is_refused(tmp_path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path}/net rw - {kind} x rw\n")
    with pytest.raises(StoreLocationError, match="network filesystem"):
        open_location(tmp_path / "net" / "cache", None, mounts=mounts)
    assert not (tmp_path / "net").exists()
    open_location(tmp_path / "local", None, mounts=mounts)
    with pytest.raises(StoreLocationError, match="network filesystem"):
        examine(tmp_path / "net" / "cache", mounts=mounts)


def test_examining_finds_what_opening_would_and_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a" / "cache"
    assert examine(path) is None
    assert list(tmp_path.iterdir()) == []
    made = open_location(path, GIB)
    before = [(p, p.stat().st_mtime_ns) for p in sorted(path.rglob("*"))]
    assert examine(path) == made
    assert [(p, p.stat().st_mtime_ns) for p in sorted(path.rglob("*"))] == before
    empty = tmp_path / "empty"
    empty.mkdir()
    assert examine(empty) is None
    (empty / "letter.txt").write_text("mine")
    with pytest.raises(StoreFormatError):
        examine(empty)
    with pytest.raises(StoreLocationError, match="not a directory"):
        examine(empty / "letter.txt")
    with pytest.raises(StoreLocationError):
        examine(empty / "letter.txt" / "cache")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreLocationError, match="can't be made"):
        examine(tmp_path / "b" / "cache")


def test_the_nearest_directory_that_exists(tmp_path):
    assert existing(tmp_path) == tmp_path
    assert existing(tmp_path / "a" / "b" / "c") == tmp_path


def test_only_old_temporary_files_are_left_behind(tmp_path):
    for name, age_s, stale in (
        (".spillcache-1", 7200, True),
        (".spillcache-2", 60, False),
        ("letter", 7200, False),
    ):
        path = tmp_path / name
        path.write_text("x")
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
        assert is_stale_temporary(path) == stale
    assert not is_stale_temporary(tmp_path / ".spillcache-gone")


def test_a_link_to_nothing_is_no_place(tmp_path):
    (tmp_path / "cache").symlink_to(tmp_path / "nowhere")
    for each in (examine, read_location, partial(open_location, quota_bytes=None)):
        with pytest.raises(StoreError):
            each(tmp_path / "cache")
    assert not (tmp_path / "nowhere").exists()


def test_a_quota_beyond_all_numbers_is_refused(tmp_path):
    """It would be written into settings that nobody can read any more."""
    made = open_location(tmp_path / "cache", None)
    with pytest.raises(ConfigError, match="more than can be"):
        open_location(tmp_path / "cache", 1 << 63)
    assert read_location(tmp_path / "cache") == made


def test_a_home_that_nobody_has():
    with pytest.raises(ConfigError, match="home directory"):
        open_location(Path("~no-such-user-here/cache"), None)


def test_another_users_store_is_not_looked_into(tmp_path, monkeypatch):
    open_location(tmp_path / "cache", None)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StoreLocationError, match="belongs to user"):
        read_location(tmp_path / "cache")


def test_care_makes_no_store(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError, match=r"holds no spillcache store|is not there"):
            open_location(path, make=False)
    assert list(tmp_path.iterdir()) == []

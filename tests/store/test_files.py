"""System calls, their fallbacks, and the errors they become."""

import errno
import fcntl
import os

import pytest

from spillcache.errors import StoreFullError, StoreIOError
from spillcache.store import files as module
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.files import Files, read_fully, store_error, write_fully

PAGE = 4096


@pytest.fixture
def page():
    return AlignedBuffer(PAGE).view[:PAGE]


@pytest.mark.parametrize("direct", [True, False])
def test_write_and_read(tmp_path, page, direct):
    files = Files(direct=direct)
    fd = files.create(tmp_path / "a")
    page[:5] = b"hello"
    write_fully(files, fd, page, PAGE)
    files.sync(fd)
    files.sync_directory(tmp_path)
    assert (files.size(fd), files.allocated(fd)) == (2 * PAGE, files.allocated_at(tmp_path / "a"))
    page[:5] = b"     "
    assert read_fully(files, fd, page, PAGE) == PAGE
    assert bytes(page[:5]) == b"hello"
    assert read_fully(files, fd, page, 2 * PAGE) == 0
    files.truncate(fd, PAGE)
    assert files.size(fd) == PAGE
    files.close(fd)
    assert files.names(tmp_path) == ["a"]
    files.unlink(tmp_path / "a")
    assert files.names(tmp_path) == []
    assert files.free_bytes(tmp_path) > 0


def test_a_new_file_is_new_and_private(tmp_path):
    files = Files()
    files.close(files.create(tmp_path / "a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic"):
        files.open(tmp_path / "link")


def test_a_file_that_can_not_be_made_private_is_not_left_open(tmp_path, monkeypatch):
    def refuse(fd, mode):
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "fchmod", refuse)
    before = len(list((tmp_path / "/proc/self/fd").iterdir()))
    with pytest.raises(PermissionError):
        Files().create(tmp_path / "a")
    assert len(list((tmp_path / "/proc/self/fd").iterdir())) == before


def refusing_direct_open(real):
    def fake(path, flags, mode=0o777):
        if flags & os.O_DIRECT:
            if flags & os.O_CREAT:
                os.close(real(path, flags & ~os.O_DIRECT, mode))  # as the kernel may have done
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, mode)

    return fake


def test_a_filesystem_without_direct_io_at_open(tmp_path, monkeypatch):
    files = Files()
    monkeypatch.setattr(os, "open", refusing_direct_open(os.open))
    files.close(files.create(tmp_path / "a"))
    assert not files.direct
    files.close(files.open(tmp_path / "a"))


@pytest.mark.parametrize(("name", "call"), [("preadv", "pread"), ("pwrite", "pwrite")])
def test_a_filesystem_that_takes_the_flag_but_not_the_io(tmp_path, monkeypatch, page, name, call):
    files = Files()
    fd = files.create(tmp_path / "a")
    write_fully(files, fd, page, 0)
    real = getattr(os, name)

    def fake(fd, *args):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, *args)

    monkeypatch.setattr(os, name, fake)
    assert files.direct
    assert getattr(files, call)(fd, page, 0) == PAGE
    assert not files.direct
    assert getattr(files, call)(fd, page, 0) == PAGE
    files.close(fd)


@pytest.mark.parametrize(("name", "call"), [("preadv", "pread"), ("pwrite", "pwrite")])
def test_other_errors_are_raised(tmp_path, monkeypatch, page, name, call):
    files = Files()
    fd = files.create(tmp_path / "a")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="Input/output"):
        getattr(files, call)(fd, page, 0)
    assert files.direct
    files.close(fd)


def test_probe(tmp_path, page, monkeypatch):
    (tmp_path / "a").write_bytes(b"settings")
    files = Files()
    files.probe(tmp_path / "a", page)
    assert files.direct
    monkeypatch.setattr(os, "open", refusing_direct_open(os.open))
    files.probe(tmp_path / "a", page)
    assert not files.direct
    files.probe(tmp_path / "missing", page)  # nothing left to learn


def test_holes(tmp_path, page):
    files = Files()
    fd = files.create(tmp_path / "a")
    page[:] = b"x" * PAGE
    for at in range(4):
        write_fully(files, fd, page, at * PAGE)
    before = files.allocated(fd)
    assert files.punch(fd, PAGE, 2 * PAGE)
    assert files.allocated(fd) == before - 2 * PAGE
    assert files.size(fd) == 4 * PAGE
    read_fully(files, fd, page, PAGE)
    assert bytes(page) == bytes(PAGE)
    with pytest.raises(OSError, match="Invalid"):
        files.punch(fd, -1, PAGE)
    files.close(fd)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_without_holes(monkeypatch, code):
    class Library:
        @staticmethod
        def fallocate(*_):
            return -1

    monkeypatch.setattr(module, "_libc", Library)
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: code)
    assert not Files().punch(3, 0, PAGE)


def test_a_lock_is_held_once(tmp_path):
    files = Files()
    first = files.create(tmp_path / "a")
    second = files.open(tmp_path / "a", write=True)
    assert files.lock(first)
    assert not files.lock(second)
    files.close(first)
    assert files.lock(second)
    files.close(second)


def test_errors_become_ours():
    full = store_error(OSError(errno.EDQUOT, "Disk quota exceeded"), "x was written")
    assert isinstance(full, StoreFullError)
    broken = store_error(OSError(errno.EIO, "Input/output error"), "x was read")
    assert isinstance(broken, StoreIOError)
    assert str(broken) == "Input/output error while x was read; nothing was deleted"
    assert "no progress" in str(store_error(OSError("no progress"), "y"))

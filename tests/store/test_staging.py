"""Long streams of bytes into a file, by a thread of their own, and what becomes of errors."""

import errno
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import payload

from spillcache.config import MIB
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files
from spillcache.store.staging import Staging


class Counting(Files):
    def __init__(self):
        super().__init__()
        self.writes: list[tuple[int, int, str]] = []
        self.syncs = 0
        self.fail_at: int | None = None

    def pwrite(self, fd, buffer, offset):
        if len(self.writes) == self.fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.writes.append((offset, len(buffer), threading.current_thread().name))
        return super().pwrite(fd, buffer, offset)

    def sync(self, fd):
        self.syncs += 1
        super().sync(fd)


@pytest.fixture
def files():
    return Counting()


KNOWN = -1


def write(files, path, pieces, start=4096, size=KNOWN):
    fd = files.create(path)
    pool = BufferPool(64 * MIB)
    size = sum(map(len, pieces)) if size == KNOWN else size
    staging = Staging(files, fd, pool, start, size)
    try:
        for piece in pieces:
            staging.add((piece[:192], piece[192:]))
        staging.end()
        staging.finish()
        return staging.offset
    finally:
        staging.close()
        staging.close()
        os.close(fd)
        assert len({id(buffer) for buffer in pool._free}) == len(pool._free)


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 4095, 4096, 70_000, MIB, 3 * MIB, 9 * MIB]), max_size=5)
)
def test_the_file_holds_what_was_added(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("staging") / "file"
    pieces = [payload(n, size) for n, size in enumerate(sizes)]
    end = write(Counting(), path, pieces)
    expected = b"".join(piece + bytes(-len(piece) % 4096) for piece in pieces)
    assert path.read_bytes()[4096:] == expected
    assert end == 4096 + len(expected)


@pytest.mark.parametrize("size", [0, MIB, 39 * MIB, 400 * MIB, None])
def test_a_size_that_is_not_what_comes_is_no_harm(tmp_path, files, size):
    pieces = [payload(n, MIB + 5) for n in range(40)]
    write(files, tmp_path / "file", pieces, size=size)
    expected = b"".join(piece + bytes(-len(piece) % 4096) for piece in pieces)
    assert (tmp_path / "file").read_bytes()[4096:] == expected


def test_a_short_stream_needs_no_thread_and_a_long_one_has_its_own(tmp_path, files):
    own = threading.current_thread().name
    write(files, tmp_path / "short", [b"x" * 4096] * 3)
    assert files.writes == [(4096, 3 * 4096, own)]
    files.writes.clear()
    write(files, tmp_path / "long", [b"x" * MIB] * 40)
    assert {name for *_, name in files.writes} == {"spillcache-write"}
    assert sum(size for _, size, _ in files.writes) == 40 * MIB
    # The first is short, so that the device has something to do; the last are, so that little is
    # left to do at the end.
    sizes = [size / MIB for _, size, _ in files.writes]
    assert sizes[:6] == [2, 6, 6, 6, 6, 6]
    assert sizes[6:9] == [4, 2, 1]
    assert sum(sizes) == 40
    assert files.syncs == 2
    assert not [t for t in threading.enumerate() if t.name == "spillcache-write"]


def test_a_stream_that_another_follows_ends_in_long_writes(tmp_path, files):
    write(files, tmp_path / "long", [b"x" * MIB] * 40, size=None)
    assert [size / MIB for _, size, _ in files.writes] == [2, 6, 6, 6, 6, 6, 6, 2]


@pytest.mark.parametrize("fail_at", [0, 1, 3, 4])
def test_an_error_of_the_thread_is_the_user_s(tmp_path, files, fail_at):
    files.fail_at = fail_at
    with pytest.raises(OSError, match="error"):
        write(files, tmp_path / "file", [b"x" * MIB] * 40)
    assert files.syncs == 0
    assert not [t for t in threading.enumerate() if t.name == "spillcache-write"]


def test_a_stream_that_is_given_up_is_not_synced(tmp_path, files):
    fd = files.create(tmp_path / "file")
    pool = BufferPool(64 * MIB)
    staging = Staging(files, fd, pool, 0, 60 * MIB)
    staging.add((bytes(30 * MIB),))
    staging.close()
    os.close(fd)
    assert files.syncs == 0
    assert pool.kept_bytes == 24 * MIB


def test_buffered_streams_leave_the_page_cache(tmp_path):
    files = Files(direct=False)
    forgotten = []
    files.forget = lambda fd, offset, length: forgotten.append((offset, length))
    write(files, tmp_path / "file", [b"x" * 5000])
    assert forgotten == [(4096, 8192)]

"""The operating system's side of a store's files: the only place that touches segment bytes.

``Files`` has one small method per system call, so that tests can inject faults and another system
can have its own. Every method may raise OSError and may be called on any thread; the free functions
below turn those into store errors.
"""

import ctypes
import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

from spillcache.errors import StoreError, StoreFullError, StoreIOError

BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the filesystem's own block size is."""
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_libc = ctypes.CDLL(None, use_errno=True)


class Files:
    """System calls on a store's files. ``direct`` is true while reads and writes bypass the page
    cache.
    """

    def __init__(self, *, direct: bool = True) -> None:
        self.direct = direct and bool(_O_DIRECT)

    def probe(self, path: Path, page: memoryview) -> None:
        """Learn whether ``path``'s filesystem allows direct reads; ``page``: an aligned buffer of a
        page.
        """
        if self.direct:
            fd = self.open(path)
            try:
                self.pread(fd, page, 0)
            finally:
                self.close(fd)

    def create(self, path: Path) -> int:
        """Make and open a new file that only its owner may read and write, whatever the umask."""
        fd = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.fchmod(fd, FILE_MODE)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open(self, path: Path, *, write: bool = False) -> int:
        """Open an existing file of the store's own.

        Never follows a symbolic link, never waits for a pipe, and never writes to a file that has
        another name somewhere: FileNotFoundError for what is no file, OSError (EMLINK) for the
        latter.
        """
        fd = self._open(path, os.O_RDWR if write else os.O_RDONLY)
        try:
            require_own(fd, path, write=write)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _open(self, path: Path, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe waits for its other end.
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if self.direct:
            try:
                return os.open(path, flags | _O_DIRECT, FILE_MODE)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
                # Some kernels have made the file by the time they refuse the flag.
                flags &= ~os.O_EXCL
        return os.open(path, flags, FILE_MODE)

    def close(self, fd: int) -> None:
        """Close it."""
        os.close(fd)

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        """One read into ``buffer``: how many bytes came, 0 at the end of the file."""
        try:
            return os.preadv(fd, [buffer], offset)
        except OSError as error:
            if not self._leave_direct(fd, error):
                raise
        return os.preadv(fd, [buffer], offset)

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        """One write from ``buffer``: how many bytes went."""
        try:
            return os.pwrite(fd, buffer, offset)
        except OSError as error:
            if not self._leave_direct(fd, error):
                raise
        return os.pwrite(fd, buffer, offset)

    def _leave_direct(self, fd: int, error: OSError) -> bool:
        """Whether a call failed because the filesystem takes the flag but not the I/O; then it may
        be repeated.
        """
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & _O_DIRECT:
            return False
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~_O_DIRECT)
        self.direct = False
        return True

    def sync(self, fd: int) -> None:
        """Return when the file's bytes, and the length needed to read them, are on the device."""
        if sys.platform == "darwin":  # pragma: no cover
            os.fsync(fd)
        else:
            os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        """As the function below."""
        sync_directory(path)

    def forget(self, fd: int, offset: int, length: int) -> None:
        """Drop a clean range from the page cache, so that the next read of it comes from the
        device.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def punch(self, fd: int, offset: int, length: int) -> bool:
        """Give a range back to the filesystem; it then reads as zeros. False where that is not
        supported.
        """
        if not hasattr(_libc, "fallocate"):  # pragma: no cover
            return False
        mode = _KEEP_SIZE | _PUNCH_HOLE
        if _libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
            return True
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            return False
        raise OSError(code, os.strerror(code))

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file off."""
        os.ftruncate(fd, length)

    def size(self, fd: int) -> int:
        """The file's length in bytes."""
        return os.fstat(fd).st_size

    def allocated(self, fd: int) -> int:
        """What the file takes on the filesystem, in bytes."""
        return os.fstat(fd).st_blocks * BLOCK_BYTES

    def allocated_at(self, path: Path) -> int:
        """As ``allocated``, by name."""
        return os.lstat(path).st_blocks * BLOCK_BYTES

    def next_data(self, fd: int, offset: int) -> int | None:
        """Where the first bytes at or after ``offset`` that are no hole lie; None if there are
        none.
        """
        if not hasattr(os, "SEEK_DATA"):  # pragma: no cover
            return offset if offset < self.size(fd) else None
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def lock(self, fd: int) -> bool:
        """Take the file's writer lock until it is closed, however its process ends; False if
        another has it.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name of the same directory; what had it is gone."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def names(self, path: Path) -> list[str]:
        """The names in a directory."""
        return [each.name for each in path.iterdir()]

    def is_file(self, path: Path) -> bool:
        """Whether there is a file of that name, rather than nothing, a link, a pipe or a
        directory.
        """
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def free_bytes(self, path: Path) -> int:
        """What the filesystem could still give to us."""
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the device."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def require_own(fd: int, path: Path, *, write: bool) -> None:
    """Raise FileNotFoundError for what is no regular file, and OSError (EMLINK) for a file to be
    written that has another name: somebody linked it here so that we would damage it, or linked
    it elsewhere as a copy.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    if write and found.st_nlink > 1:
        raise OSError(errno.EMLINK, "the file has another name and is not written to", str(path))


def read_fully(files: Files, fd: int, buffer: memoryview, offset: int) -> int:
    """Fill ``buffer``; fewer bytes only at the end of the file. Returns how many came."""
    done = 0
    while done < len(buffer):
        count = files.pread(fd, buffer[done:], offset + done)
        if not count:
            break
        done += count
    if not files.direct:
        files.forget(fd, offset, len(buffer))
    return done


def write_fully(files: Files, fd: int, buffer: memoryview, offset: int) -> None:
    """Write all of ``buffer``; raises OSError."""
    done = 0
    while done < len(buffer):
        count = files.pwrite(fd, buffer[done:], offset + done)
        if not count:
            raise OSError(errno.EIO, "a write made no progress")
        done += count


def is_no_space(error: OSError) -> bool:
    """Whether the filesystem, or the user's quota on it, is full."""
    return error.errno in _NO_SPACE


def store_error(error: OSError, doing: str, outcome: str = "nothing was deleted") -> StoreError:
    """The store's error for a failed system call; ``doing`` completes "… failed while"."""
    if is_no_space(error):
        return StoreFullError(f"the filesystem is full while {doing}; nothing was lost")
    what = error.strerror or str(error)
    if isinstance(error.filename, str | bytes | Path):
        what += f" ({os.fsdecode(error.filename)})"
    return StoreIOError(f"{what} while {doing}; {outcome}")

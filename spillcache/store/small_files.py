"""The small files beside a store's segments: read whole, and replaced whole.

Nothing is written through a link, and no pipe is waited for. Functions raise OSError.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path

from spillcache.store.files import FILE_MODE, sync_directory

TEMPORARY = ".spillcache-"
"""How the names of temporary files begin; old ones may be deleted."""
_STALE_S = 3600
_MOST_BYTES = 1 << 16


def read_small(path: Path, most_bytes: int = _MOST_BYTES) -> bytes | None:
    """A file's content; None if there is none. OSError for what is no file, a link too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(fd)


def write_temporary(directory: Path, data: bytes, *, sync: bool = True) -> Path:
    """Write a file under a name that nobody has; whoever gets its path gives it its own."""
    path = directory / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(path, flags, FILE_MODE), "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put a file in place of another, whole, and durably if ``sync``; a link is replaced, not
    followed.
    """
    temporary = write_temporary(path.parent, data, sync=sync)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def is_stale_temporary(path: Path) -> bool:
    """Whether it was left behind by a process that died, as far as its age tells. Never raises."""
    try:
        return path.name.startswith(TEMPORARY) and time.time() - path.lstat().st_mtime > _STALE_S
    except OSError:
        return False

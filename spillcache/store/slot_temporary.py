"""Temporary files of saves: locked while they are written, so that one that nobody has locked was
left behind by a process that died. Any thread.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from spillcache.store.files import Files
from spillcache.store.small_files import TEMPORARY, is_stale_temporary

PREFIX = f"{TEMPORARY}slot-"
_TRIES = 8


def create_temporary(files: Files, directory: Path) -> tuple[Path, int]:
    """Make and open a file under a name that nobody has, its lock taken until it is closed, however
    its process ends: its path and descriptor. Raises OSError.

    A server that starts may find it before it is locked, and removes it; then it is made again.
    """
    for _ in range(_TRIES):
        path = directory / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        fd = files.create(path)
        try:
            if _is_ours(files, fd):
                return path, fd
        except OSError:
            with contextlib.suppress(OSError):
                files.unlink(path)
            files.close(fd)
            raise
        files.close(fd)
    raise OSError(errno.EBUSY, "another process removes temporary files as fast as they are made")


def remove_left_behind(path: Path) -> None:
    """Remove a temporary file of a process that died; others are left alone. Never raises."""
    if not path.name.startswith(PREFIX):
        return
    with contextlib.suppress(OSError):
        files = Files(direct=False)
        fd = files.open(path)
        try:
            if _is_dead(files, fd, path):
                files.unlink(path)
        finally:
            files.close(fd)


def _is_ours(files: Files, fd: int) -> bool:
    try:
        locked = files.lock(fd)
    except OSError:  # a filesystem without locks, where nobody takes one
        locked = True
    return locked and os.fstat(fd).st_nlink > 0


def _is_dead(files: Files, fd: int, path: Path) -> bool:
    try:
        return files.lock(fd)
    except OSError:  # a filesystem without locks: only its age tells
        return is_stale_temporary(path)

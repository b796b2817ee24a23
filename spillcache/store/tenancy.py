"""Who has a store open: a lock on its directory that every process shares, and a mark that tells of
a bad end.

The lock goes with its process, however that ends; the mark stays behind when the last one did not
close the store.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from spillcache.store.files import FILE_MODE, require_own

MARK = "in-use"


class Tenancy:
    """This process's share in a store's directory. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        """Waits for a process that repairs the store."""
        self._mark = directory / MARK
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.is_alone = self._lock_alone()
            """Whether no other process has the store open; none can until ``share``."""
            if not self.is_alone:
                fcntl.flock(self._fd, fcntl.LOCK_SH)
            self.ended_badly = self.is_alone and self._mark.exists()
            """Whether the last process that had the store open did not close it."""
            self._make_mark()
        except OSError:
            os.close(self._fd)
            raise

    def _make_mark(self) -> None:
        # Without O_NONBLOCK, a pipe of that name would be waited for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self._mark, flags, FILE_MODE)
        try:
            require_own(fd, self._mark, write=True)
            os.fchmod(fd, FILE_MODE)
        finally:
            os.close(fd)

    def share(self) -> None:
        """Let other processes in."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        self.is_alone = False

    def end(self, *, well: bool, last: Callable[[], None] = lambda: None) -> None:
        """Give the share back. The last one to end well calls ``last`` while nobody else can come
        in, and removes the mark.
        """
        try:
            if well and self._lock_alone():
                last()
                with contextlib.suppress(FileNotFoundError):
                    self._mark.unlink()
        finally:
            os.close(self._fd)

    def _lock_alone(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

"""Who has a store open: a lock on its directory that every process shares.

The lock goes with its process, however that ends.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02
_QUIET_S = 2.0
"""How long a wait may be before it is told."""

log = logging.getLogger("spillcache.store")


class Tenancy:
    """This process's share in a store's directory. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        """Waits while another process is alone with the store: it looks through the index, makes
        it anew, or deletes all.
        """
        self._fd = _open(directory)
        try:
            self.is_alone = self._enter(directory)
            """Whether no other process has the store open; none can until ``share``."""
        except BaseException:
            os.close(self._fd)
            raise

    def _enter(self, directory: Path) -> bool:
        """Whether nobody else has it open. Never waits in the kernel: who is let in there can't
        tell whether the one that was alone is still there, or died.
        """
        tell_at = time.monotonic() + _QUIET_S
        while not _lock(self._fd, fcntl.LOCK_EX):
            if _lock(self._fd, fcntl.LOCK_SH):
                if _lock(self._fd, fcntl.LOCK_EX):
                    return True  # who was in the way has gone just now
                # What fails to become exclusive is no lock at all.
                if _lock(self._fd, fcntl.LOCK_SH):
                    return False
            if time.monotonic() > tell_at:
                log.warning("waiting for a process that works on %s alone", directory)
                tell_at = float("inf")
            time.sleep(_POLL_S)
        return True

    def share(self) -> None:
        """Let other processes in."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        self.is_alone = False

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Give the share back. The last one to go calls its ``last``, if it has one, while nobody
        else can come in.
        """
        try:
            if last is not None and _lock(self._fd, fcntl.LOCK_EX):
                last()
        finally:
            os.close(self._fd)


@contextmanager
def alone_with(directory: Path) -> Iterator[bool]:
    """Whether nobody has the store in ``directory`` open; if so, nobody gets in meanwhile. Raises
    OSError.
    """
    fd = _open(directory)
    try:
        yield _lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""The LMDB environment of a store: transactions that grow the map when it is full, and errors of
our own tree.

Any thread may begin a transaction; each stays on its thread. One environment per process and
directory: LMDB refuses two, so whoever opens one shares it (``opened.py``). Never used across a
fork.
"""

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from spillcache.errors import StoreError, StoreFullError, StoreIndexError
from spillcache.store.catalog import DATABASES, Catalog
from spillcache.store.files import BLOCK_BYTES, FILE_MODE

MAP_BYTES = 1 << 30
"""The map's first size; sparse, so it costs address space only."""
_MAX_READERS = 512
_MAX_DATABASES = 32
_MAX_GROWTHS = 24
_CLEAR_EVERY_S = 60.0
_FULL_BYTES = 1 << 20
"""With less than that left, a filesystem is full."""

DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""Causes of a StoreIndexError that lie in the file itself, rather than in the system around it."""

T = TypeVar("T")


class _Gate:
    """Many transactions, or one resize: LMDB can't resize a map while this process has a
    transaction.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._closing = False

    def enter(self) -> None:
        """Begin one; ``leave`` must follow."""
        with self._lock:
            while self._closing:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """One is over."""
        with self._lock:
            self._inside -= 1
            if self._closing:
                self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._closing = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()


class Index:
    """See the module. Owned by whoever opened it; ``close`` waits for running transactions."""

    def __init__(self, path: Path, *, read_only: bool = False, map_bytes: int = MAP_BYTES) -> None:
        """Open the environment in directory ``path``, which exists. Raises StoreIndexError.

        Read-only opens create nothing but, at most, a slot in LMDB's reader table.
        """
        self.path = path
        self._pid = os.getpid()
        self._gate = _Gate()
        self._closed = False
        self._clear_at = 0.0
        try:
            self._env = lmdb.open(
                os.fsencode(path),
                map_size=0 if read_only else map_bytes,
                readonly=read_only,
                create=not read_only,
                mode=FILE_MODE,
                max_dbs=_MAX_DATABASES,
                max_readers=_MAX_READERS,
            )
        except (lmdb.Error, OSError) as error:
            raise self._error(error) from error
        try:
            self._databases = {
                name: self._env.open_db(name.encode(), create=not read_only) for name in DATABASES
            }
            self._objects = self._databases["objects"]
            if not read_only:
                for name in ("data.mdb", "lock.mdb"):
                    (path / name).chmod(FILE_MODE)
        except (lmdb.Error, OSError) as error:
            self._env.close()
            raise self._error(error) from error

    def _error(self, error: Exception) -> StoreError:
        if self._is_for_space(error):
            return StoreFullError(f"the filesystem is full while the index {self.path} is written")
        return StoreIndexError(f"the index {self.path} failed: {error}")

    def _is_for_space(self, error: Exception) -> bool:
        """Whether a commit failed because the filesystem, or the user's quota on it, is full."""
        if isinstance(error, lmdb.DiskError) or os.strerror(errno.EDQUOT) in str(error):
            return True
        # LMDB makes an I/O error of a write that was cut short.
        if os.strerror(errno.EIO) not in str(error):
            return False
        try:
            found = os.statvfs(self.path)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < _FULL_BYTES

    def _clear_readers(self) -> None:
        """Give back the places of processes that were killed while they looked: LMDB can't reuse
        pages that a reader may still see, so the file would grow with every write.
        """
        now = time.monotonic()
        if now >= self._clear_at:
            self._clear_at = now + _CLEAR_EVERY_S
            with self._gate.shared():
                self._env.reader_check()

    @contextmanager
    def read(self) -> Iterator[Catalog]:
        """A snapshot, on this thread; raises StoreIndexError.

        Keep it short, for LMDB can't reuse pages that it still sees, and begin no other transaction
        within it.
        """
        self._check()
        try:
            txn = self._begin_read()
            try:
                with txn:
                    yield Catalog(txn, self._databases)
            finally:
                self._gate.leave()
        except (lmdb.Error, struct.error) as error:
            raise self._error(error) from error

    def _begin_read(self) -> Any:
        """Within the gate, which the caller leaves."""
        for _ in range(_MAX_GROWTHS):
            self._gate.enter()
            try:
                return self._env.begin(db=self._objects)
            except lmdb.MapResizedError:
                self._gate.leave()
            except BaseException:
                self._gate.leave()
                raise
            # Another process has grown the map; outside the gate, so that this can wait for the
            # others.
            self._resize(grow=False)
        raise StoreIndexError(f"the index {self.path} changes its size too often")

    def write(self, work: Callable[[Catalog], T]) -> T:
        """Run ``work`` in a write transaction, one at a time over all processes, and commit:
        durable on return.

        ``work`` is run again from the start when the map must grow, so it changes nothing but its
        catalog. If it raises, nothing is changed. Raises StoreIndexError, and StoreFullError when
        the filesystem is full.
        """
        self._check()
        try:
            self._clear_readers()
            for _ in range(_MAX_GROWTHS):
                try:
                    return self._write_once(work)
                except lmdb.MapFullError:
                    self._resize(grow=True)
                except lmdb.MapResizedError:
                    self._resize(grow=False)
        except (lmdb.Error, struct.error) as error:
            raise self._error(error) from error
        raise StoreIndexError(f"the index {self.path} can't grow any more")

    def _write_once(self, work: Callable[[Catalog], T]) -> T:
        with self._gate.shared(), self._env.begin(self._objects, write=True) as txn:
            catalog = Catalog(txn, self._databases)
            result = work(catalog)
            catalog.save()
        return result

    def _resize(self, *, grow: bool) -> None:
        with self._gate.alone():
            size = self._env.info()["map_size"]
            # Zero takes the size that the environment has on disk.
            self._env.set_mapsize(size * 2 if grow else 0)

    def _check(self) -> None:
        if self._closed:
            raise StoreIndexError(f"the index {self.path} is closed")
        if self._pid != os.getpid():
            raise StoreIndexError(f"the index {self.path} was opened before a fork; open it anew")

    def allocated_bytes(self) -> int:
        """What the environment takes on the filesystem."""
        blocks = 0
        for name in ("data.mdb", "lock.mdb"):
            try:
                blocks += os.lstat(self.path / name).st_blocks
            except FileNotFoundError:
                continue
        return blocks * BLOCK_BYTES

    def close(self) -> None:
        """Close it; may be called twice. In a forked child it only forgets it."""
        if not self._closed and self._pid == os.getpid():
            with self._gate.alone():
                self._closed = True
                self._env.close()
        self._closed = True

"""How fast the disk gives back what the store has written: measured on its own segments."""

import logging
import time
from pathlib import Path

from spillcache.config import KIB, MIB
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files

_LEAST_BYTES = 4 * MIB
_MOST_BYTES = 32 * MIB
_FIRST_READ_BYTES = 256 * KIB
_READ_BYTES = 4 * MIB
_LONG_S = 0.25
"""After this there is nothing to learn from more: the disk is slow, and others may want it."""

log = logging.getLogger("spillcache.store")


def read_speed(
    segments: Path, files: Files, pool: BufferPool, least_bytes: int = _LEAST_BYTES
) -> float | None:
    """Bytes per second of long reads past the page cache; None if there are fewer than
    ``least_bytes`` to try it with, or they can't be read. Takes a fraction of a second, or one read
    of 256 KiB where that takes longer.
    """
    try:
        return _measured(segments, files, pool, least_bytes)
    except OSError as error:
        log.warning("the disk's speed was not measured: %s", error)
        return None


def _measured(segments: Path, files: Files, pool: BufferPool, least: int) -> float | None:
    largest = max(
        (segments / name for name in files.names(segments)),
        key=lambda path: path.lstat().st_blocks,
        default=None,
    )
    if largest is None:
        return None
    fd = files.open(largest)
    buffer = pool.take(_READ_BYTES)
    try:
        size = min(files.allocated(fd), _MOST_BYTES)
        if size < least:
            return None
        buffer.array[:] = 0  # so that its pages are there
        files.forget(fd, 0, size)
        return _timed(files, fd, buffer.view, size)
    finally:
        pool.give(buffer)
        files.close(fd)


def _timed(files: Files, fd: int, buffer: memoryview, size: int) -> float:
    """Bytes per second of reading the file's first ``size`` bytes, or fewer where that is slow."""
    start, done, longest = time.perf_counter(), 0, _FIRST_READ_BYTES
    while done < size and (count := files.pread(fd, buffer[:longest], done)):
        done, longest = done + count, _READ_BYTES
        if time.perf_counter() - start > _LONG_S:
            break
    return done / max(time.perf_counter() - start, 1e-9)

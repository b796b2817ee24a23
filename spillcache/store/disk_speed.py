"""How fast the disk gives back what the store has written: measured on its own segments."""

import logging
import time
from pathlib import Path

from spillcache.config import MIB
from spillcache.store.buffers import BufferPool
from spillcache.store.files import Files

_LEAST_BYTES = 4 * MIB
_MOST_BYTES = 32 * MIB
_READ_BYTES = 4 * MIB

log = logging.getLogger("spillcache.store")


def read_speed(segments: Path, files: Files, pool: BufferPool) -> float | None:
    """Bytes per second of long reads past the page cache; None if there are too few bytes to tell,
    or they can't be read. Takes a fraction of a second.
    """
    try:
        return _measured(segments, files, pool)
    except OSError as error:
        log.warning("the disk's speed was not measured: %s", error)
        return None


def _measured(segments: Path, files: Files, pool: BufferPool) -> float | None:
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
        if size < _LEAST_BYTES:
            return None
        buffer.array[:] = 0  # so that its pages are there
        files.forget(fd, 0, size)
        start, done = time.perf_counter(), 0
        while done < size and (count := files.pread(fd, buffer.view[:_READ_BYTES], done)):
            done += count
        return done / max(time.perf_counter() - start, 1e-9)
    finally:
        pool.give(buffer)
        files.close(fd)

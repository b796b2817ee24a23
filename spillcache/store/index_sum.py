"""A digest of the whole index, written when the last process closes a store, so that the next one
knows at once whether it is as it was left: LMDB's pages have no checksums.

It goes before the index is written to again, so it is never older than the index.
"""

import contextlib
import logging
import os
from enum import Enum
from pathlib import Path

from blake3 import blake3

from spillcache.config import MIB
from spillcache.store.files import sync_directory
from spillcache.store.location import INDEX
from spillcache.store.small_files import read_small, replace_file

INDEX_SUM = "index.sum"
_DATA = "data.mdb"
_CHUNK_BYTES = 4 * MIB
_SUM_BYTES = len(blake3().hexdigest()) + 1
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

log = logging.getLogger("spillcache.store")


class Verdict(Enum):
    """What is known of an index from outside."""

    SAME = "as it was left"
    DIFFERENT = "damaged"
    UNKNOWN = "its last process was killed, or it is new"


def write_sum(store: Path) -> None:
    """Write the digest; only while nobody has the index open. Raises OSError."""
    digest = _digest(store / INDEX / _DATA)
    # Not synced: after a power cut it is there, whole, or it isn't, and then the index is looked
    # through.
    replace_file(store / INDEX_SUM, f"{digest}\n".encode(), sync=False)


def check_sum(store: Path) -> Verdict:
    """Compare the index with its digest; reads all of it. Raises OSError."""
    try:
        written = read_small(store / INDEX_SUM)
    except OSError as error:
        log.warning("the index's sum can't be read: %s", error)
        return Verdict.UNKNOWN
    if written is None or len(written) != _SUM_BYTES:
        return Verdict.UNKNOWN
    try:
        digest = _digest(store / INDEX / _DATA)
    except FileNotFoundError:
        return Verdict.UNKNOWN
    return Verdict.SAME if written == f"{digest}\n".encode() else Verdict.DIFFERENT


def remove_sum(store: Path) -> None:
    """From now on the index may change. Raises OSError."""
    # A directory of that name is not ours, and tells nothing.
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        (store / INDEX_SUM).unlink()
        sync_directory(store)


def _digest(path: Path) -> str:
    hasher = blake3()
    with open(os.open(path, _READ), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()

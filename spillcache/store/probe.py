"""Whether an index can be walked, found out in a child process: a damaged LMDB file may kill
whoever reads it.

    python -m spillcache.store.probe DIR/index        exit code 0: sound, as far as was looked
"""

import logging
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from spillcache.errors import StoreError
from spillcache.namespace import Namespace
from spillcache.store.catalog import Catalog
from spillcache.store.index import Index
from spillcache.store.rows import INDEX_FORMAT, segment_key

_WALK_S = 2.0
_TIMEOUT_S = 20.0

log = logging.getLogger("spillcache.store")


def is_sound(index: Path) -> bool:
    """Walk an index in a child process. False if that finds damage, or dies of it."""
    if not sys.executable or not (index / "data.mdb").exists():
        return True
    command = [sys.executable, "-m", "spillcache.store.probe", str(index)]
    try:
        done = subprocess.run(  # noqa: S603 - this very module, nothing from outside
            command, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the index could not be probed: %s", error)
        return True
    return done.returncode == 0


def walk(index: Path, limit_s: float) -> bool:
    """Look at every row, for at most ``limit_s``; whether they are what they should be."""
    deadline = time.monotonic() + limit_s
    try:
        opened = Index(index, read_only=True)
        with opened.read() as catalog:
            for is_right in _findings(catalog):
                if not is_right:
                    return False
                if time.monotonic() > deadline:
                    break
        opened.close()
    except (StoreError, ValueError, OSError, struct.error):
        return False
    return True


def _findings(catalog: Catalog) -> Iterator[bool]:
    """Row by row, whether it is right."""
    yield catalog.meta.index_format == INDEX_FORMAT
    for namespace_id, row in catalog.namespaces():
        yield Namespace.decode(row.encoding).id == namespace_id
    for segment, _ in catalog.segments():
        for _, entry in catalog.places(segment_key(segment)):
            yield entry is not None
    for key in catalog.evictable_from(b"\0"):
        yield catalog.is_evictable(key)


if __name__ == "__main__":
    sys.exit(0 if walk(Path(sys.argv[1]), _WALK_S) else 1)

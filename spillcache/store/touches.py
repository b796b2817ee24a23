"""Uses that were noted but not yet written: a touch never waits for the disk."""

import threading
import time

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.catalog import Catalog

_MOST = 16384

_Key = tuple[bytes, BlockHash]
Uses = dict[_Key, tuple[int, int]]
"""By block: when it was used, and how many windows a restore there reads."""


class Touches:
    """The last use of blocks, kept until the next write transaction; any thread. Lost in a crash,
    which does no harm.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: Uses = {}

    def add(self, namespace_id: bytes, block: BlockHash, window_blocks: int) -> None:
        """Note that a prefix which ends with ``block`` was used just now."""
        key = (namespace_id, block)
        with self._lock:
            self._uses.pop(key, None)
            self._uses[key] = (time.time_ns(), window_blocks)
            if len(self._uses) > _MOST:
                del self._uses[next(iter(self._uses))]

    def snapshot(self) -> Uses:
        """What is to be written."""
        with self._lock:
            return dict(self._uses)

    def forget(self, written: Uses) -> None:
        """These are written."""
        with self._lock:
            for key, use in written.items():
                if self._uses.get(key) == use:
                    del self._uses[key]


def apply(catalog: Catalog, uses: Uses) -> None:
    """Write them: all parts of the block itself, and the windows of those before it that a restore
    there reads.
    """
    for (namespace_id, block), (noted, window_blocks) in uses.items():
        # The store's clock never goes back, as the system's may: then the order is all there is.
        use = catalog.tick() if catalog.meta.clock > time.time_ns() else noted
        catalog.touch_namespace(namespace_id, use)
        for part in Part:
            entry = catalog.entry(namespace_id, block, part)
            if entry is not None:
                catalog.touch(entry, use)
        _touch_windows(catalog, namespace_id, block, use, window_blocks - 1)


def _touch_windows(
    catalog: Catalog, namespace_id: bytes, block: BlockHash, use: int, count: int
) -> None:
    for _ in range(count):
        here = catalog.entry(namespace_id, block, Part.KV) or catalog.entry(
            namespace_id, block, Part.WINDOW
        )
        if here is None or not here.block_index:
            return
        block = here.parent
        window = catalog.entry(namespace_id, block, Part.WINDOW)
        if window is not None:
            catalog.touch(window, use)

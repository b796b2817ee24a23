"""Uses that were noted but not yet written: a touch never waits for the disk."""

import threading
import time
from collections.abc import Iterable

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.catalog import Catalog
from spillcache.store.gone import Gone

_MOST = 16384

_Key = tuple[bytes, BlockHash]
Uses = dict[_Key, tuple[int, int, int]]
"""By block: when it was used, how many windows a restore there reads, and by how many ns its place
among those that go is ahead of its use.
"""
_NS_PER_S = 1_000_000_000


class Touches:
    """The last use of blocks, kept until the next write transaction; any thread. Lost in a crash,
    which does no harm.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: Uses = {}
        self._ahead_ns = 0
        self._gone = Gone()

    def add(
        self, namespace_id: bytes, block: BlockHash, window_blocks: int, ahead_s: float = 0.0
    ) -> None:
        """Note that a prefix which ends with ``block`` was used just now, and is to go as if that
        had been ``ahead_s`` later.
        """
        key, ahead_ns = (namespace_id, block), int(ahead_s * _NS_PER_S)
        with self._lock:
            self._ahead_ns = ahead_ns or self._ahead_ns
            self._uses.pop(key, None)
            self._uses[key] = (time.time_ns(), window_blocks, ahead_ns)
            if len(self._uses) > _MOST:
                del self._uses[next(iter(self._uses))]

    def evicted(self, blocks: Iterable[bytes]) -> None:
        """Remember blocks (namespace id and hash) that went."""
        with self._lock:
            for block in blocks:
                self._gone.add(block)

    def ahead_ns(self, block: bytes) -> int:
        """How far ahead of its use the place of a block (namespace id and hash) that is written now
        is to be: not at all, unless it went not long ago.
        """
        return self._ahead_ns if self._ahead_ns and block in self._gone else 0

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
    for (namespace_id, block), (noted, window_blocks, ahead_ns) in uses.items():
        # The store's clock never goes back, as the system's may: then the order is all there is.
        use = catalog.tick() if catalog.meta.clock > time.time_ns() else noted
        catalog.touch_namespace(namespace_id, use)
        use += ahead_ns
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

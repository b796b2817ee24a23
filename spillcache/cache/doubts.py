"""Blocks that are whole, and failed all the same when they were used.

Who restored them says so (``add``), computes the prompt anew, and then knows whether it was they
(``condemn``) or not (``acquit``). Any thread.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence

from spillcache.cache.ram import RamBlock, RamTier
from spillcache.cache.spill import Spiller
from spillcache.chain import BlockHash
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace

log = logging.getLogger("spillcache.cache")


class Doubts:
    """``lock`` is the cache's, over ``ram``; without a ``spiller`` there is only RAM."""

    def __init__(
        self, ram: RamTier, lock: threading.Condition, spiller: Spiller | None, metrics: Metrics
    ) -> None:
        self._ram, self._lock = ram, lock
        self._spiller, self._metrics = spiller, metrics
        self.blocks: Counter[BlockHash] = Counter()
        """Those whose copy on disk is not used, and by how many they are doubted."""

    def add(self, hashes: Sequence[BlockHash]) -> None:
        """These blocks may be what made the engine fail. RAM forgets them and all that follow them;
        what the disk has of them is not used until ``acquit`` or ``condemn`` is called.
        """
        with self._lock:
            self.blocks.update(hashes)
            doomed = set(hashes)
            for block in self._ram.all():
                if block.hash in doomed or block.parent in doomed:
                    doomed.add(block.hash)
                    self._give_up(block)

    def acquit(self, hashes: Sequence[BlockHash]) -> None:
        """It was not these blocks: what the disk has of them may be used again."""
        with self._lock:
            self.blocks -= Counter(hashes)

    def condemn(self, namespace: Namespace, hashes: Sequence[BlockHash], reason: str) -> None:
        """It was these blocks, which ``add`` has named: the disk forgets them, soon and in another
        thread. RAM may hold them again by now, computed anew: they are written after that.
        """
        self._metrics.condemned_blocks.inc(len(hashes))
        log.error("%d blocks failed in use and are deleted: %s", len(hashes), reason)

        def then() -> None:
            with self._lock:
                self.blocks -= Counter(hashes)
                now = time.monotonic()
                for block in filter(None, map(self._ram.get, hashes)):
                    block.dirty_since = block.dirty_since if block.unsaved else now
                    self._ram.unsave(block)

        if self._spiller is None:
            self.acquit(hashes)
        else:
            self._spiller.discard(namespace.id, hashes, reason, then)

    def _give_up(self, block: RamBlock) -> None:
        if self._spiller is not None:
            self._spiller.give_up(block)
        else:
            self._ram.remove(block)

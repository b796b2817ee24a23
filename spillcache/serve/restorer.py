"""Restores into a slot, in slices: a few milliseconds of imports at a time, on the engine's
thread.
"""

import logging
import time

from spillcache.cache.prefix_cache import Match, PrefixCache
from spillcache.chain import Chain
from spillcache.engine.base import Engine
from spillcache.errors import EngineError, SpillcacheError, StateRejected, StoreError, StoreIOError
from spillcache.serve.job import Tier
from spillcache.serve.slots import Restore

log = logging.getLogger("spillcache.serve")

SLICE_S = 0.01
"""How long one slice may import while other slots have work."""
LATE_S = 10.0
"""A block that does not come for this long ends the restore."""
ATTEMPTS = 3
"""The first and two more without what failed; then cold."""


class Restorer:
    """Begins and advances restores; engine's thread."""

    def __init__(self, engine: Engine, cache: PrefixCache) -> None:
        self._engine = engine
        self._cache = cache

    def begin(self, chain: Chain, live: int) -> Restore | None:
        """A restore of more than ``live`` tokens, if the tiers hold that much."""
        size = self._engine.geometry.block_tokens
        if live >= self._engine.geometry.blocks_reusable(len(chain)) * size:
            return None
        match = self._cache.match(chain)
        if match.blocks * size <= live:
            match.release()
            return None
        return self._open(match)

    def _open(self, match: Match) -> Restore:
        now = time.monotonic()
        return Restore(match, self._cache.restore(match), now, now)

    def advance(self, sequence: int, restore: Restore, *, wait: bool) -> bool:
        """Import what is there; True when the restore is over, complete or given up (then cold).

        ``wait``: nothing else is to be done, so wait for blocks rather than return at once.
        """
        until = time.monotonic() + SLICE_S
        try:
            while not restore.stream.done:
                if not self._import_one(sequence, restore, SLICE_S if wait else 0.0):
                    return False
                if time.monotonic() >= until and not restore.stream.done:
                    return False
            if not self._engine.restored(sequence):
                raise StateRejected("the engine misses a part of the restored state")
        except (StoreError, EngineError) as error:
            return self._failed(sequence, restore, error)
        restore.close()
        self._cache.restored(restore.match)
        return True

    def _import_one(self, sequence: int, restore: Restore, timeout_s: float) -> bool:
        block = restore.stream.take(timeout_s)
        now = time.monotonic()
        if block is None:
            if now - restore.last_block > LATE_S:
                late = StoreIOError(f"no block came from disk for {LATE_S:.0f} s")
                self._cache.failed(late)
                raise late
            return False
        try:
            self._engine.import_(sequence, block.index, block.state)
            restore.size += block.size
        finally:
            block.release()
        restore.last_block = now
        restore.blocks += 1
        return True

    def _failed(self, sequence: int, restore: Restore, error: SpillcacheError) -> bool:
        """Clear, match again without the block that failed, at most twice; then cold."""
        log.warning("a restore stopped after %d blocks: %s", restore.blocks, error)
        restore.close()
        self._engine.clear(sequence)
        step = restore.match.steps[min(restore.blocks, restore.match.blocks - 1)]
        restore.failed.add(step.hash)
        restore.blocks = restore.size = 0
        restore.match.steps = []
        if restore.attempts >= ATTEMPTS:
            return True
        match = self._cache.match(restore.match.chain, without=restore.failed)
        if not match.blocks:
            match.release()
            return True
        restore.attempts += 1
        restore.match, restore.stream = match, self._cache.restore(match)
        restore.last_block = time.monotonic()
        return False

    def tokens_by_tier(self, restore: Restore) -> dict[Tier, int]:
        """Restored tokens by the tier that they came from; empty when it was given up."""
        size = self._engine.geometry.block_tokens
        return {tier: n * size for tier, n in restore.match.blocks_by_source().items()}

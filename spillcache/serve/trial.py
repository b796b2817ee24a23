"""Restored state is on trial until it has given one row of sound logits.

A block may be whole and still be what makes the engine fail. If the engine fails, or gives logits
that are no numbers, while a prompt goes on from restored state, the request is computed anew, from
nothing. If that works, it was the state: RAM and disk forget it, or else it would fail at every
retry. If it fails, too, it was not.
"""

import logging

import numpy as np

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.restore import SOURCES
from spillcache.engine.base import Engine
from spillcache.errors import DecodeError, EngineError
from spillcache.serve.slots import Job, Slot

log = logging.getLogger("spillcache.serve")


class Trials:
    """What is on trial is noted in the slots; engine's thread."""

    def __init__(self, engine: Engine, cache: PrefixCache | None = None) -> None:
        self._engine = engine
        self._cache = cache

    def inherit(self, slot: Slot, source: Slot, live: int) -> None:
        """``slot`` goes on from ``live`` tokens of ``source``, which may be on trial itself: its
        client may have left before it gave logits.
        """
        blocks = -(-live // self._engine.geometry.block_tokens)
        slot.on_trial = min(source.on_trial, blocks)
        slot.tail_on_trial = source.tail_on_trial if slot.on_trial else None

    def failed(self, slot: Slot, error: EngineError) -> bool:
        """Whether restored state may be the reason; then its request is to be computed anew."""
        job, chain = slot.job, slot.chain
        if job is None or chain is None or self._cache is None or not slot.on_trial:
            return False
        log.warning("restored state may be unsound, the prompt is computed anew: %s", error)
        # What was computed from it is no better.
        computed = self._engine.length(slot.index) // self._engine.geometry.block_tokens
        hashes = chain.hashes[: max(slot.on_trial, computed)]
        if slot.tail_on_trial is not None:
            hashes.append(slot.tail_on_trial)
        self._cache.doubts.add(hashes)
        for tier in SOURCES:
            self._cache.refused(tier, job.cached.get(tier, 0), error.code)
            job.refused[error.code] += job.cached.get(tier, 0)
        job.doubted, job.fault = hashes, str(error)
        job.cached, job.cold = {}, True
        return True

    def verdict(self, slot: Slot) -> bool:
        """Look at a prompt's logits; False: its request is to be computed anew."""
        job, chain = slot.job, slot.chain
        if job is None or chain is None or self._cache is None:
            return True
        if not (slot.on_trial or job.doubted):
            return True
        sound = bool(np.isfinite(self._engine.logits(slot.index)).all())
        if not sound and slot.on_trial:
            return not self.failed(slot, DecodeError("the logits are not numbers"))
        slot.on_trial = 0
        if sound and job.doubted:
            self._cache.doubts.condemn(chain.namespace, job.doubted, job.fault)
            job.doubted = []
        return True

    def end(self, job: Job) -> None:
        """The request is over: what was not found guilty by now is not."""
        if self._cache is not None:
            self._cache.doubts.acquit(job.doubted)
        job.doubted = []

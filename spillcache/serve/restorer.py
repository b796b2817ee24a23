"""Restores into a slot, in slices: a few milliseconds of imports at a time, on the engine's
thread.
"""

import logging
import time

from spillcache.cache.match import Match
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.restore import SOURCES, RestoredBlock, RestoreStream
from spillcache.chain import BlockHash, Chain
from spillcache.config import KIB, MIB
from spillcache.engine.base import Engine
from spillcache.errors import (
    ContextFullError,
    EngineError,
    SpillcacheError,
    StateRejected,
    StoreError,
    StoreIOError,
)
from spillcache.serve.job import Decision, Tier
from spillcache.serve.pace import RestorePace
from spillcache.serve.slots import Job, Restore
from spillcache.serve.tally import Tally

log = logging.getLogger("spillcache.serve")

SLICE_S = 0.01
"""Where nothing else is to be done, so long a slice imports, or waits for a block."""
LATE_S = 10.0
"""A block that does not come for this long ends the restore."""
SLOWEST_BYTES_PER_S = 256 * KIB
"""A restore that takes longer than LATE_S and what its bytes take at this speed is ended, too,
though each of its blocks was in time.
"""
SLOW = "slow"
"""Why tokens are computed that a tier holds: that is quicker."""
RUN_BYTES = 64 * MIB
"""So much is imported at once, if it is there and nobody else waits: up to three SLICE_S."""
RUN_BLOCKS = 256
"""And no more blocks: of a model without kv most have no bytes at all."""
ATTEMPTS = 3
"""The first and two more without what failed; then cold."""


class Restorer:
    """Begins and advances restores; engine's thread."""

    def __init__(self, engine: Engine, cache: PrefixCache) -> None:
        self._engine = engine
        self._cache = cache

    def begin(
        self, chain: Chain, live: int, *, ahead: bool = False
    ) -> tuple[Restore | None, Decision]:
        """A restore of more than ``live`` tokens, if the tiers hold that much and it is worth
        it; and the decision. ``ahead``: this is not the last word.
        """
        size = self._engine.geometry.block_tokens
        if live >= self._engine.geometry.blocks_reusable(len(chain)) * size:
            return None, "live" if live else "miss"
        match = self._cache.match(chain, above=live, live_tokens=live)
        return self._decided(match, live, ahead=ahead)

    def _decided(
        self, match: Match, live: int, *, ahead: bool = False
    ) -> tuple[Restore | None, Decision]:
        """What becomes of ``match``, which is taken over."""
        verdict = match.verdict
        if not ahead:
            self._count_slow(match, live)
        if not match.blocks:
            match.release()
            return None, "live" if verdict.word == "miss" and live else verdict.word
        return self._open(match), verdict.word

    def _count_slow(self, match: Match, live: int) -> None:
        """Count what the tiers hold and the match leaves out."""
        left = match.verdict.left(live, self._engine.geometry.block_tokens)
        self._cache.refused(match.verdict.tier, left, SLOW)

    def _open(self, match: Match) -> Restore:
        now = time.monotonic()
        stream, deadline = self._cache.restore(match), _deadline(match, now)
        return Restore(match, stream, now, now, deadline, decision=match.verdict.word)

    def take_up(self, ahead: Restore, chain: Chain, live: int) -> tuple[Restore | None, Decision]:
        """As ``begin``, for a prompt whose restore was begun while it waited for its slot: goes on
        with that, unless there is something better by now.
        """
        match = self._cache.match(chain, live_tokens=live)
        if match.tokens > ahead.match.tokens or ahead.match.tokens <= live:
            ahead.close()
            return self._decided(match, live)
        match.release()
        self._count_slow(ahead.match, live)
        ahead.started = ahead.last_block = now = time.monotonic()
        ahead.deadline = _deadline(ahead.match, now)
        return ahead, ahead.decision

    def advance(self, sequence: int, restore: Restore, pace: RestorePace | None) -> bool:
        """Import what is there; True when the restore is over, complete or given up (then cold).

        ``pace`` says how much, so that others keep theirs. None: nothing else is to be done, so
        wait for blocks rather than return at once.
        """
        until = time.monotonic() + SLICE_S
        try:
            if self._is_too_slow(sequence, restore):
                return self._give_up(sequence, restore)
            while not restore.stream.done:
                if pace is None and time.monotonic() >= until:
                    return False
                if pace is not None and not pace.allows():
                    return False
                if not self._import_some(sequence, restore, pace):
                    return False
            if not self._engine.restored(sequence):
                raise StateRejected("the engine misses a part of the restored state")
        except (StoreError, EngineError) as error:
            return self._failed(sequence, restore, error)
        restore.close()
        self.count(restore)
        return True

    def count(self, restore: Restore) -> None:
        """Count what was imported, once: when the restore ends, however it does."""
        restore.restored.update(self._cache.restored(restore.match, restore.blocks))
        namespace = restore.match.chain.namespace.id
        self._cache.judge.speeds.imported(namespace, restore.blocks, restore.import_s)
        restore.blocks, restore.import_s = 0, 0.0

    def _is_too_slow(self, sequence: int, restore: Restore) -> bool:
        usable = restore.blocks if self._engine.restored(sequence) else 0
        match, judge = restore.match, self._cache.judge
        return judge.gives_up(match.chain.namespace.id, restore.stream, usable, match.blocks)

    def _give_up(self, sequence: int, restore: Restore) -> bool:
        """Go on from what has come so far, where the engine can; else from RAM alone, or cold."""
        match, done = restore.match, restore.blocks
        log.info("a restore is slower than computing: ended after %d of %d", done, match.blocks)
        restore.close()
        restore.decision = "gave_up"
        lost = self.tokens_by_tier(restore)
        self.count(restore)
        if done and self._engine.restored(sequence):
            match.steps = match.steps[:done]
            self._count_lost(restore, lost, SLOW)
            return True
        return self._again(sequence, restore, lost, SLOW, disk=False)

    def _import_some(self, sequence: int, restore: Restore, pace: RestorePace | None) -> bool:
        """Import what is there, up to RUN_BYTES or, beside others, one block; False when nothing
        is.
        """
        first = restore.stream.take(SLICE_S if pace is None else 0.0)
        if first is None:
            self._check_late(restore, time.monotonic())
            return False
        run, error = [first], None
        try:
            if pace is None:
                error = _take_more(restore.stream, run)
            while run:
                self._import_run(sequence, restore, run, pace)
        finally:
            for block in run:
                block.release()
        if error is not None:
            raise error
        return True

    def _import_run(
        self,
        sequence: int,
        restore: Restore,
        run: list[RestoredBlock],
        pace: RestorePace | None,
    ) -> None:
        """Import the first of ``run`` and what goes with it, and take them out."""
        now, first = time.monotonic(), run[0]
        if first.tail_tokens:
            self._engine.import_(sequence, first.index, first.state, first.tail_tokens)
            count = 1
        else:
            whole = [block.state for block in run if not block.tail_tokens]
            whole = whole[:1] if restore.singly else whole
            count = self._engine.import_run(sequence, first.index, whole)
        took = time.monotonic() - now
        restore.last_block = now
        restore.blocks += count
        restore.import_s += took
        for block in run[:count]:
            restore.size += block.size
            block.release()
        del run[:count]
        if pace is not None:
            pace.took(took)

    def _check_late(self, restore: Restore, now: float) -> None:
        """Raise StoreIOError when the disk is too slow; what lies there is then not tried again."""
        if now - restore.last_block > LATE_S:
            late = StoreIOError(f"no block came from disk for {LATE_S:.0f} s")
        elif now > restore.deadline:
            late = StoreIOError("the disk is too slow for this restore")
        else:
            return
        restore.failed.update(step.hash for step in restore.match.steps if step.disk)
        self._cache.disk.failed(late)
        raise late

    def _failed(self, sequence: int, restore: Restore, error: SpillcacheError) -> bool:
        """Clear, match again without the block that failed, at most twice; then cold. Where it is
        not known which block that was, the same blocks one by one.
        """
        log.warning("a restore stopped after %d blocks: %s", restore.blocks, error)
        restore.close()
        step = restore.match.steps[min(restore.blocks, restore.match.blocks - 1)]
        if isinstance(error, ContextFullError):  # the block is not to blame
            restore.is_full = True
        elif isinstance(error, StateRejected) and error.blocks > 1:
            restore.singly = True
        else:
            restore.failed.add(step.hash)
            if isinstance(error, StateRejected):
                self._never_again(restore.match.chain, step.hash, error)
        lost = self.tokens_by_tier(restore)
        self.count(restore)
        restore.decision = "failed"
        return self._again(sequence, restore, lost, error.code)

    def _again(
        self,
        sequence: int,
        restore: Restore,
        lost: dict[Tier, int],
        reason: str,
        *,
        disk: bool = True,
    ) -> bool:
        """Clear, and begin anew with what is left; True where nothing is: cold. ``lost``: what was
        aimed at before.
        """
        self._engine.clear(sequence)
        restore.size = 0
        restore.match.steps = []
        match = self._match_again(restore, disk=disk)
        if match is not None:
            if restore.decision == "failed":
                restore.decision = "partial"
            restore.attempts += 1
            restore.match, restore.stream = match, self._cache.restore(match)
            restore.last_block = now = time.monotonic()
            restore.deadline = _deadline(match, now)
        self._count_lost(restore, lost, reason)
        return match is None

    def _match_again(self, restore: Restore, *, disk: bool) -> Match | None:
        if restore.attempts >= ATTEMPTS:
            return None
        match = self._cache.match(restore.match.chain, without=restore.failed, disk=disk)
        if not match.blocks:
            match.release()
            return None
        return match

    def _count_lost(self, restore: Restore, before: dict[Tier, int], reason: str) -> None:
        """Count what the restore no longer aims at."""
        now = self.tokens_by_tier(restore)
        for tier in SOURCES:
            tokens = max(0, before.get(tier, 0) - now.get(tier, 0))
            self._cache.refused(tier, tokens, reason)
            restore.refused[reason] += tokens

    def _never_again(self, chain: Chain, block: BlockHash, error: StateRejected) -> None:
        """A block that the engine refuses would be refused at every retry."""
        self._cache.doubts.add([block])
        self._cache.doubts.condemn(chain.namespace, [block], str(error))

    def prefilled(self, chain: Chain, start: int, stop: int, seconds: float) -> None:
        """One call computed these tokens: what restores are compared with. A tail costs about as
        much as a block, so it says nothing.
        """
        size = self._engine.geometry.block_tokens
        if not start % size and not stop % size:
            self._cache.judge.speeds.prefilled(chain.namespace.id, start, stop, seconds)

    def report(self, restore: Restore, job: Job, tally: Tally) -> None:
        """Note in ``job`` what became of its restore, which is over."""
        job.restore_s = time.monotonic() - restore.started
        by_tier = self.tokens_by_tier(restore)
        tally.restored(by_tier, job.restore_s)
        job.count_cached(by_tier)
        job.restored_bytes = restore.size
        job.decision = restore.decision

    def tokens_by_tier(self, restore: Restore) -> dict[Tier, int]:
        """Restored tokens by the tier that they came from; empty when it was given up."""
        by_tier: dict[Tier, int] = {}
        by_tier.update(restore.match.tokens_by_source().items())
        return by_tier


def _deadline(match: Match, now: float) -> float:
    """When a restore of ``match`` that begins ``now`` is to be over."""
    size = sum(entry.raw_bytes for step in match.steps for entry in step.disk.values())
    return now + LATE_S + size / SLOWEST_BYTES_PER_S


def _take_more(stream: RestoreStream, run: list[RestoredBlock]) -> SpillcacheError | None:
    """Add to ``run`` what comes next and is there; the error that ended the stream, if one did."""
    size = run[0].size
    while size < RUN_BYTES and len(run) < RUN_BLOCKS:
        try:
            block = stream.take()
        except SpillcacheError as error:
            return error
        if block is None:
            return None
        run.append(block)
        size += block.size
    return None

"""RAM → disk: a writer thread that decoding never waits for.

A job is a chain's last block; written with it are all its ancestors that are not on disk yet,
parents first. Jobs come from eviction (at once), from the clock (a conversation idle for 30 s,
anything dirty for 60 s), from ``flush`` and from ``close``. What a job finds unsaved when it runs
is written, so reasons that come together write a block once.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from spillcache.cache.breaker import Breaker
from spillcache.cache.policy import RANKS
from spillcache.cache.ram import RamBlock, RamTier
from spillcache.config import MIB, CacheConfig, format_size
from spillcache.errors import StoreError
from spillcache.metrics import Metrics
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject

log = logging.getLogger("spillcache.cache")

GROUP_BYTES = 64 * MIB
_TICK_S = 1.0
HANG_S = 1.0
"""How long the thread may take to end beyond the deadline before the disk counts as hanging."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Item:
    block: RamBlock
    part: Part
    payload: memoryview


class Spiller:
    """Owns the writer thread. ``lock`` is the cache's, over ``ram``; payloads are written without
    it.
    """

    def __init__(  # noqa: PLR0917 - one caller, PrefixCache
        self,
        store: BlockStore,
        ram: RamTier,
        lock: threading.Condition,
        config: CacheConfig,
        block_tokens: int,
        queue_bytes: int,
        metrics: Metrics,
        breaker: Breaker,
    ) -> None:
        self._store, self._ram, self._lock = store, ram, lock
        self._config, self._block_tokens = config, block_tokens
        self._queue_bytes = queue_bytes
        self._metrics, self._breaker = metrics, breaker
        self._evicted: deque[RamBlock] = deque()
        self._flush_asked = self._flush_done = 0
        self._stopping = False
        self._deadline = math.inf
        self.leaving_bytes = 0
        """Payload bytes of evicted blocks that wait for the disk."""
        self._thread = threading.Thread(target=self._run, name="spillcache-spill", daemon=True)
        self._thread.start()

    # Called with the lock held.

    def evict(self, block: RamBlock) -> str:
        """Take over a dirty block that RAM gives up; or say why not: short, paused, queue."""
        if not self._long_enough(block):
            return "short"
        if self._stopping or not self._breaker.closed:
            return "paused"
        # One block always may wait, however large it is.
        while self.leaving_bytes and self.leaving_bytes + block.size > self._queue_bytes:
            if not self._drop_oldest():
                return "queue"
        self.leaving_bytes += block.size
        self._ram.leave(block)
        self._evicted.append(block)
        self._lock.notify_all()
        return ""

    def _drop_oldest(self) -> bool:
        """Give up the block that waits longest: the deepest of its chain, so that no other hangs
        on it.
        """
        while self._evicted:
            block = self._evicted.popleft()
            if block.unsaved and not block.pins:
                self._ram.saved(block, *block.parts)
                self._metrics.dropped_blocks.labels("queue").inc()
                self.free(block)
                return True
        return False

    def free(self, block: RamBlock) -> None:
        """Give up a block that was only waiting for the disk, once nobody needs it any more."""
        if block.leaving and not block.unsaved and not block.pins:
            self.leaving_bytes -= block.size
            self._ram.remove(block)

    # Called without it.

    def flush(self) -> None:
        """Write all that is dirty and long enough; returns when it is on disk, or has failed."""
        with self._lock:
            self._flush_asked += 1
            mine = self._flush_asked
            self._lock.notify_all()
            while self._flush_done < mine and self._thread.is_alive():
                self._lock.wait(_TICK_S)  # not for ever: a thread that ends does not say so

    def close(self, progress: Progress = lambda _: None) -> bool:
        """Stop the thread, then write what is left, hottest chains first, within the deadline.

        False when the thread hangs in a write; nothing more is written then.
        """
        with self._lock:
            self._deadline = time.monotonic() + self._config.shutdown_spill_s
            self._stopping = True
            self._lock.notify_all()
        self._thread.join(self._config.shutdown_spill_s + HANG_S)
        if self._thread.is_alive():
            progress("the disk does not answer; what was not saved is lost")
            return False
        self._spill_rest(progress)
        return True

    # The thread.

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception:  # the thread must live on: a bug costs one job, not the tier
                log.exception("the spill thread met a bug; it goes on")
                time.sleep(_TICK_S)

    def _step(self) -> None:
        with self._lock:
            self._lock.wait_for(self._has_work, timeout=_TICK_S)
            waiting = len(self._evicted)
            asked, flushing = self._flush_asked, self._flush_asked > self._flush_done
            dirty = list(self._ram.unsaved())
        due = dirty if flushing else self._due(dirty, time.monotonic())
        try:
            for leaf in chain(self._take_evicted(waiting), self._leaves(due)):
                if self._stopping:
                    break
                self._save(leaf)
        finally:
            with self._lock:
                self._flush_done = asked
                self._lock.notify_all()

    def _take_evicted(self, count: int) -> Iterator[RamBlock]:
        """One by one, so that those whose turn has not come can still be dropped."""
        for _ in range(count):
            with self._lock:
                if not self._evicted:
                    return
                block = self._evicted.popleft()
            yield block

    def _has_work(self) -> bool:
        return bool(self._stopping or self._evicted or self._flush_asked > self._flush_done)

    def _due(self, dirty: Iterable[RamBlock], now: float) -> list[RamBlock]:
        if not self._breaker.closed:
            return []
        idle, longest = self._config.idle_spill_s, self._config.dirty_spill_s
        return [
            block
            for block in dirty
            if now - block.last_use >= idle or now - block.dirty_since >= longest
        ]

    def _leaves(self, dirty: Sequence[RamBlock]) -> list[RamBlock]:
        """The ends of dirty chains, hottest first; chains under ``min_tokens`` are not worth a
        write.
        """
        parents = {block.parent for block in dirty}
        leaves = [
            block for block in dirty if block.hash not in parents and self._long_enough(block)
        ]
        return sorted(leaves, key=lambda block: -block.last_use)

    def _long_enough(self, block: RamBlock) -> bool:
        return (block.index + 1) * self._block_tokens >= self._config.min_tokens

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _spill_rest(self, progress: Progress) -> None:
        with self._lock:
            # Evicted blocks that still wait are among them.
            dirty = [block for block in self._ram.unsaved() if self._long_enough(block)]
        leaves = self._leaves(dirty)
        total = sum(b.size for b in dirty)
        for done, leaf in enumerate(leaves):
            if self._late():
                left = len(leaves) - done
                progress(
                    f"the deadline came first: {left} of {len(leaves)} conversations not saved"
                )
                break
            progress(
                f"saving conversation {done + 1} of {len(leaves)} ({format_size(total)} in all)"
            )
            self._save(leaf)
        if self._late():
            left = sum(bool(block.unsaved) for block in dirty)
            self._metrics.dropped_blocks.labels("deadline").inc(left)

    # One job.

    def _save(self, leaf: RamBlock) -> None:
        """Write ``leaf`` and its unsaved ancestors; once more, from the root on, where the disk has
        evicted an ancestor that was saved.
        """
        with self._lock:
            if self._ram.get(leaf.hash) is not leaf:
                return  # evicted, or written, since it was chosen
            leaf.pins += 1
        try:
            if self._write_chain(leaf) and self._forget_saved(leaf):
                self._write_chain(leaf)
        finally:
            with self._lock:
                leaf.pins -= 1
                self.free(leaf)

    def _write_chain(self, leaf: RamBlock) -> int:
        """Group by group, until the deadline or a failure; how many objects the store dropped."""
        with self._lock:
            groups = deque(_groups(self._collect(leaf)))
        dropped, saved = 0, True
        try:
            while groups and saved and self._breaker.closed and not self._late():
                saved, count = self._write(groups[0])
                dropped += count
                self._settle(groups.popleft(), saved=saved)
        finally:
            for group in groups:
                self._settle(group, saved=False)
        return dropped

    def _forget_saved(self, leaf: RamBlock) -> bool:
        """Count the whole chain as unsaved again; False where RAM does not hold all of it."""
        with self._lock:
            chain_blocks = [leaf]
            while chain_blocks[-1].index:
                parent = self._ram.get(chain_blocks[-1].parent)
                if parent is None:
                    return False
                chain_blocks.append(parent)
            for block in reversed(chain_blocks):
                self._ram.unsave(block)
            return True

    def _collect(self, leaf: RamBlock) -> list[_Item]:
        """The parts to write, kv first, so that a restore reads long runs; their blocks are
        pinned.
        """
        blocks: list[RamBlock] = []
        block: RamBlock | None = leaf
        while block is not None and block.unsaved:
            blocks.append(block)
            block = self._ram.get(block.parent)
        items = [
            _Item(block, part, block.parts[part])
            for part in sorted({p for b in blocks for p in b.unsaved}, key=lambda p: RANKS[p])
            for block in reversed(blocks)
            if part in block.unsaved
        ]
        for item in items:
            item.block.pins += 1
        return items

    def _write(self, group: Sequence[_Item]) -> tuple[bool, int]:
        """Put one group: whether that worked, and how many objects found no parent or no room."""
        objects = [
            StoreObject(
                block=item.block.hash,
                part=item.part,
                parent=item.block.parent,
                block_index=item.block.index,
                token_count=self._block_tokens,
                payload=item.payload,
                rank=RANKS[item.part],
            )
            for item in group
        ]
        try:
            result = self._store.put(group[0].block.namespace, objects)
        except StoreError as error:
            self._met(error)
            return False, 0
        self._breaker.worked()
        self._metrics.spilled_blocks.inc(result.written)
        self._metrics.spilled_bytes.inc(result.written_bytes)
        if result.dropped:
            self._metrics.dropped_blocks.labels("store").inc(result.dropped)
        return True, result.dropped

    def _met(self, error: StoreError) -> None:
        self._breaker.failed(error)
        self._metrics.errors.labels(error.code).inc()
        log.warning("the disk tier failed, nothing is lost but the cache of it: %s", error)

    def _settle(self, group: Sequence[_Item], *, saved: bool) -> None:
        """Unpin, mark what was saved, and free what was only waiting for this."""
        now = time.monotonic()
        with self._lock:
            for item in group:
                block = item.block
                block.pins -= 1
                if saved:
                    self._ram.saved(block, item.part)
                elif block.leaving:
                    self._ram.saved(block, item.part)
                    self._metrics.dropped_blocks.labels("disk").inc()
                else:
                    block.dirty_since = block.last_use = now
            for block in {id(item.block): item.block for item in group}.values():
                self.free(block)


def _groups(items: Sequence[_Item]) -> Iterable[list[_Item]]:
    group: list[_Item] = []
    size = 0
    for item in items:
        if group and size + len(item.payload) > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item.payload)
    if group:
        yield group

"""RAM → disk: a writer thread that decoding never waits for.

A job is a chain's last block; written with it are all its ancestors that are not on disk yet,
parents first. Jobs come from eviction (at once), from the clock (a conversation idle for 30 s, or
one of whose blocks is dirty for 60 s), from ``flush`` and from ``close``. What a job finds unsaved
when it runs is written, so reasons that come together write a block once.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spillcache.cache.breaker import Breaker
from spillcache.cache.due import Due
from spillcache.cache.policy import RANKS, rank
from spillcache.cache.ram import RamBlock, RamTier
from spillcache.cache.watch import Trouble
from spillcache.cache.write_limit import WriteLimit
from spillcache.chain import BlockHash
from spillcache.config import MIB, CacheConfig, format_size
from spillcache.errors import StoreError
from spillcache.metrics import Metrics
from spillcache.processors import give_way
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore, PutResult, StoreObject
from spillcache.store.format import RECORD_HEADER_BYTES, padded

log = logging.getLogger("spillcache.cache")

GROUP_BYTES = 64 * MIB
STEP_S = 60.0
"""How long one put of a group may take before the disk counts as hanging."""
_TICK_S = 1.0
HANG_S = 1.0
"""How long the thread may take to end beyond the deadline before the disk counts as hanging."""

_WHY = {
    "deadline": "the deadline came first",
    "paused": "the disk fails",
    "limit": "the daily limit is reached",
}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Item:
    block: RamBlock
    part: Part
    payload: memoryview
    rank: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush came to. ``blocks`` and ``size_bytes``: what reached the disk meanwhile,
    whatever the reason; ``left``: of what was to be written, the blocks that are not on disk.
    """

    blocks: int
    size_bytes: int
    seconds: float
    left: int
    complete: bool
    """False: the deadline came first, and the writing goes on."""
    problem: str = ""
    """Why something is left, where that is not a matter of time."""


@dataclass(frozen=True, slots=True)
class _Condemned:
    namespace_id: bytes
    blocks: tuple[BlockHash, ...]
    reason: str
    then: Callable[[], None]


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
        geometry: Geometry,
        queue_bytes: int,
        metrics: Metrics,
        breaker: Breaker,
    ) -> None:
        self._store, self._ram, self._lock = store, ram, lock
        self._config, self._geometry = config, geometry
        self._due = Due(config, geometry)
        self._queue_bytes = queue_bytes
        self._metrics, self._breaker = metrics, breaker
        self.limit = WriteLimit(config.write_limit_bytes_day, store.change_note)
        self._evicted: deque[RamBlock] = deque()
        self._condemned: deque[_Condemned] = deque()
        self._flush_asked = self._flush_done = 0
        self._saved_blocks = self._saved_bytes = self._lost_blocks = 0
        self._at_disk_since: float | None = None
        self._stopping = False
        self._last_chance = False
        self._progress: Progress = lambda _: None
        self._deadline = math.inf
        self.leaving_bytes = 0
        """Payload bytes of evicted blocks that wait for the disk."""
        self._thread = threading.Thread(target=self._run, name="spillcache-spill", daemon=True)
        self._thread.start()

    # Called with the lock held.

    def evict(self, block: RamBlock) -> bool:
        """Take over a dirty block that RAM gives up; False, and counted, where it is lost."""
        refused = self._refusal(block)
        if refused:
            self._lose(refused)
            return False
        self.leaving_bytes += block.size
        self._ram.leave(block)
        self._evicted.append(block)
        self._lock.notify_all()
        return True

    def _refusal(self, block: RamBlock) -> str:
        if "evict" not in self._config.spill_on:
            return "off"
        if not self._due.long_enough(block):
            return "short"
        if self._stopping or not self._breaker.closed or not self._thread.is_alive():
            return "paused"
        if self.limit.closed:
            return "limit"
        # One block always may wait, however large it is.
        while self.leaving_bytes and self.leaving_bytes + block.size > self._queue_bytes:
            if not self._drop_oldest():
                return "queue"
        return ""

    def _drop_oldest(self) -> bool:
        """Give up the block that waits longest: the deepest of its chain, so that no other hangs
        on it.
        """
        while self._evicted:
            block = self._evicted.popleft()
            if block.unsaved and not block.pins:
                self._ram.saved(block, *block.parts)
                self._lose("queue")
                self.free(block)
                return True
        return False

    def free(self, block: RamBlock) -> None:
        """Give up a block that was only waiting for the disk, once nobody needs it any more."""
        if block.leaving and not block.unsaved and not block.pins:
            self.give_up(block)

    def give_up(self, block: RamBlock) -> None:
        """Have nobody find ``block`` any more, nor write it."""
        if block.leaving:
            self.leaving_bytes -= block.size
        self._ram.remove(block)
        block.leaving = False

    # Called without it.

    def flush(self, timeout_s: float = math.inf) -> Flushed:
        """Write all that is dirty and long enough; returns when that was done or tried, or when
        ``timeout_s`` is over.
        """
        began = time.monotonic()
        with self._lock:
            pending = self._due.worth_writing(self._ram.unsaved())
            blocks, size, lost = self._saved_blocks, self._saved_bytes, self._lost_blocks
            self._flush_asked += 1
            mine = self._flush_asked
            self._lock.notify_all()
            while self._flush_done < mine and self._thread.is_alive():
                left_s = timeout_s - (time.monotonic() - began)
                if left_s <= 0:
                    break
                self._lock.wait(min(_TICK_S, left_s))  # a thread that ends does not say so
            return Flushed(
                blocks=self._saved_blocks - blocks,
                size_bytes=self._saved_bytes - size,
                seconds=time.monotonic() - began,
                left=sum(bool(b.unsaved) for b in pending) + self._lost_blocks - lost,
                complete=self._flush_done >= mine,
            )

    def discard(
        self,
        namespace_id: bytes,
        blocks: Sequence[BlockHash],
        reason: str,
        then: Callable[[], None],
    ) -> None:
        """Have the store forget blocks that failed in use, in the spill thread; ``then`` is called
        there when it has, or when it failed to.
        """
        with self._lock:
            self._condemned.append(_Condemned(namespace_id, tuple(blocks), reason, then))
            self._lock.notify_all()

    def trouble(self) -> Trouble | None:
        """Why nothing is written: the thread has ended, or hangs; None while all is well."""
        since = self._at_disk_since
        if not self._thread.is_alive():
            ended = "the spill thread has ended: nothing is written any more"
            return None if self._stopping else Trouble(ended, "write", hangs=False)
        if since is not None and time.monotonic() - since > STEP_S:
            return Trouble(f"a write has taken more than {STEP_S:.0f} s", "write", hangs=True)
        return None

    def close(self, progress: Progress = lambda _: None) -> bool:
        """Write what is left, hottest chains first, within the deadline, and end the thread.

        False when the thread hangs in a write: it is left behind. ``progress`` is called in it.
        """
        with self._lock:
            self._deadline = time.monotonic() + self._config.shutdown_spill_s
            self._progress = progress
            self._stopping = True
            self._lock.notify_all()
        if not self._thread.is_alive():  # it died; what it left is still to be saved
            self._thread = threading.Thread(target=self._end, name="spillcache-spill", daemon=True)
            self._thread.start()
        self._thread.join(self._config.shutdown_spill_s + HANG_S)
        if self._thread.is_alive():
            progress("the disk does not answer; what was not saved is lost")
            return False
        return True

    # The thread.

    def _run(self) -> None:
        give_way()
        while not self._stopping:
            try:
                self._step()
            except Exception:  # the thread must live on: a bug costs one job, not the tier
                log.exception("the spill thread met a bug; it goes on")
                time.sleep(_TICK_S)
        self._end()

    def _end(self) -> None:
        try:
            self._discard_condemned()
            if "shutdown" in self._config.spill_on:
                self._spill_rest()
            elif self._evicted:
                self._lose("off", len(self._evicted))
        except Exception:  # the server ends all the same
            log.exception("the spill thread met a bug while it ended")

    def _step(self) -> None:
        with self._lock:
            self._lock.wait_for(self._has_work, timeout=_TICK_S)
            asked, flushing = self._flush_asked, self._flush_asked > self._flush_done
            dirty = list(self._ram.unsaved())
        try:
            self._discard_condemned()
            for leaf in self._jobs(self._chosen(dirty, flushing=flushing)):
                if self._stopping:
                    break
                self._save(leaf)
        finally:
            with self._lock:
                self._flush_done = asked
                self._lock.notify_all()

    def _chosen(self, dirty: Sequence[RamBlock], *, flushing: bool) -> list[RamBlock]:
        if flushing:
            return self._due.leaves(dirty)
        if not dirty or "idle" not in self._config.spill_on or not self._usable():
            return []
        return self._due.ends(dirty, time.monotonic())

    def _jobs(self, leaves: Sequence[RamBlock]) -> Iterator[RamBlock]:
        """``leaves``, and before each of them what RAM has evicted: that waits in little room."""
        for leaf in (*leaves, None):
            yield from self._take_evicted()
            if leaf is not None:
                yield leaf

    def _take_evicted(self) -> Iterator[RamBlock]:
        """One by one, so that those whose turn has not come can still be dropped."""
        for _ in range(len(self._evicted)):
            with self._lock:
                if not self._evicted:
                    return
                block = self._evicted.popleft()
            yield block

    def _has_work(self) -> bool:
        flushing = self._flush_asked > self._flush_done
        return bool(self._stopping or self._evicted or self._condemned or flushing)

    def _discard_condemned(self) -> None:
        while self._condemned:
            bad = self._condemned.popleft()
            try:
                with self._at_disk():
                    self._store.discard(bad.namespace_id, bad.blocks, bad.reason)
            except StoreError as error:
                self._met(error)
            finally:
                bad.then()

    @contextmanager
    def _at_disk(self) -> Iterator[None]:
        """So that ``trouble`` sees when it does not come back."""
        self._at_disk_since = time.monotonic()
        try:
            yield
        finally:
            self._at_disk_since = None

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _usable(self) -> bool:
        return (self._breaker.closed or self._last_chance) and not self.limit.closed

    def _spill_rest(self) -> None:
        """A paused disk is tried once more: there is no later."""
        with self._lock:
            dirty = self._due.worth_writing(
                self._ram.unsaved()
            )  # evicted blocks that still wait are among them
        self._last_chance = True
        leaves = self._due.leaves(dirty)
        size = format_size(sum(b.size for b in dirty))
        reason = ""
        for done, leaf in enumerate(leaves):
            if self._late() or not self._usable():
                reason = self._why_not("paused")
                self._progress(
                    f"{_WHY[reason]}: {len(leaves) - done} of {len(leaves)} conversations not saved"
                )
                break
            self._progress(f"saving conversation {done + 1} of {len(leaves)} ({size} in all)")
            self._save(leaf)
        left = sum(bool(block.unsaved) for block in dirty)
        if left:
            self._lose(reason or self._why_not("failed"), left)

    def _why_not(self, otherwise: str) -> str:
        if self._late():
            return "deadline"
        return "limit" if self.limit.closed else otherwise

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
            dropped = self._write_chain(leaf)
            if dropped and self._forget_saved(leaf):
                dropped = self._write_chain(leaf)
            if dropped:
                self._lose("store", len(dropped))
                log.warning(
                    "%d blocks of a conversation were not kept: the disk has no room for them, or "
                    "the blocks before them are gone, there and from RAM (a purge?)",
                    len(dropped),
                )
        finally:
            with self._lock:
                self._ram.unpin(leaf)
                self.free(leaf)

    def _write_chain(self, leaf: RamBlock) -> set[BlockHash]:
        """Group by group, until the deadline or a failure; the blocks that the store dropped, for
        they found no parent or no room.
        """
        with self._lock:
            groups = deque(_groups(self._collect(leaf)))
        allowed: deque[int] = deque()
        dropped: set[BlockHash] = set()

        def done(result: PutResult) -> None:
            self._wrote(allowed.popleft(), result)
            dropped.update(result.dropped_blocks)
            self._settle(groups.popleft(), result)

        try:
            with self._at_disk():
                self._store.put_each(leaf.namespace, self._batches(tuple(groups), allowed), done)
        except StoreError as error:
            self._met(error)
        finally:
            for group in groups:
                self._settle(group, None)
        try:
            for size in allowed:  # and not written
                self.limit.wrote(size, 0)
        except StoreError as error:
            self._met(error)
        return dropped

    def _batches(
        self, groups: Sequence[Sequence[_Item]], allowed: deque[int]
    ) -> Iterator[list[StoreObject]]:
        """For the store, as long as they may be written; their sizes are added to ``allowed``."""
        for group in groups:
            size = sum(padded(RECORD_HEADER_BYTES + len(item.payload)) for item in group)
            if not self._usable() or self._late() or not self.limit.allows(size):
                return
            allowed.append(size)
            yield [self._object(item) for item in group]

    def _object(self, item: _Item) -> StoreObject:
        return StoreObject(
            block=item.block.hash,
            part=item.part,
            parent=item.block.parent,
            block_index=item.block.index,
            token_count=item.block.tail_tokens or self._geometry.block_tokens,
            payload=item.payload,
            rank=item.rank,
            tail=item.block.tail,
            outgrows=item.block.outgrows,
        )

    def _forget_saved(self, leaf: RamBlock) -> bool:
        """Count the whole chain as unsaved again; False where RAM does not hold all of it."""
        with self._lock:
            if leaf.removed:  # it is doubted
                return False
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
        # A tail needs what a restore of the blocks before it does, and all of its own.
        end = leaf.index if leaf.tail else leaf.index + 1
        items = [
            _Item(
                block,
                part,
                block.parts[part],
                0 if block.tail else rank(part, self._geometry, block.index, end),
            )
            for part in sorted({p for b in blocks for p in b.unsaved}, key=lambda p: RANKS[p])
            for block in reversed(blocks)
            if part in block.unsaved
        ]
        for item in items:
            item.block.pins += 1
        return items

    def _wrote(self, allowed_bytes: int, result: PutResult) -> None:
        """Count a group that is durable."""
        began, now = self._at_disk_since, time.monotonic()
        self._metrics.spill_seconds.observe(now - (began or now))
        self._at_disk_since = now
        self.limit.wrote(allowed_bytes, result.written_bytes)
        self._breaker.worked("write")
        self._saved_bytes += result.written_bytes
        self._metrics.spilled_bytes.inc(result.written_bytes)

    def _met(self, error: StoreError) -> None:
        self._last_chance = False
        self._metrics.errors.labels(error.code).inc()
        self._breaker.failed(error, "write")
        log.warning("the disk tier failed, nothing is lost but the cache of it: %s", error)

    def _settle(self, group: Sequence[_Item], result: PutResult | None) -> None:
        """Unpin, mark what was saved, or dropped for good, and free what was only waiting for
        this.
        """
        now, saved = time.monotonic(), result is not None
        dropped = result.dropped_blocks if result is not None else ()
        with self._lock:
            for item in group:
                self._ram.unpin(item.block)
                if saved:
                    self._ram.saved(item.block, item.part)
            for block in {id(item.block): item.block for item in group}.values():
                if saved:
                    if not block.unsaved and block.hash not in dropped:
                        self._saved_blocks += 1
                        self._metrics.spilled_blocks.inc()
                elif not block.leaving:
                    block.dirty_since = block.last_use = now
                elif block.unsaved:
                    self._ram.saved(block, *block.parts)
                    self._lose(self._why_not("failed"))
                self.free(block)

    def _lose(self, reason: str, blocks: int = 1) -> None:
        with self._lock:
            self._lost_blocks += blocks
        self._metrics.dropped_blocks.labels("disk", reason).inc(blocks)


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

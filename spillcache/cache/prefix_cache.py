"""The one door to the tiers: match a prompt's longest restorable prefix, restore it, offer new
blocks.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakSet

from spillcache.cache.breaker import Breaker
from spillcache.cache.disk import DiskTier
from spillcache.cache.doubts import Doubts
from spillcache.cache.held import Held, held_in_ram, with_disk
from spillcache.cache.judge import Judge
from spillcache.cache.match import Match, step_of
from spillcache.cache.memory import clamp_ram
from spillcache.cache.policy import needed, restorable, tail_places
from spillcache.cache.ram import RamBlock, RamTier
from spillcache.cache.restore import RestoreStream, Source, Step
from spillcache.cache.spill import HANG_S, STEP_S, Flushed, Progress, Spiller
from spillcache.cache.tails import Ends, in_ram, is_tail_of, longest, outgrown, tail_count
from spillcache.cache.watch import Trouble, Watch
from spillcache.cache.worth import Verdict
from spillcache.chain import BlockHash, Chain
from spillcache.config import MIB, CacheConfig
from spillcache.errors import StoreError, StoreIOError
from spillcache.metrics import Metrics
from spillcache.state import BlockState, Geometry, Part
from spillcache.store.block_store import BlockStore, Entry
from spillcache.store.tails import MOST_TAILS

log = logging.getLogger("spillcache.cache")

STAGING_BYTES = 256 * MIB
"""RAM that the disk tier needs to pass blocks through, however small ``--cache-ram`` is."""
_NO_HASHES: frozenset[BlockHash] = frozenset()


class PrefixCache:
    """See the module. Takes over ``store`` and closes it; without one there is only RAM.

    Any thread may call any method; one chain belongs to one thread at a time. Nothing here raises a
    StoreError: what fails on disk is logged, counted, and a miss.
    """

    def __init__(
        self,
        config: CacheConfig,
        geometry: Geometry,
        store: BlockStore | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.geometry = geometry
        self._config = config
        self._store = store
        self._metrics = metrics or Metrics()
        self._lock = threading.Condition()
        capacity = clamp_ram(max(config.ram_bytes, STAGING_BYTES if store is not None else 0))
        self._ram = RamTier(capacity)
        self._ends = Ends()
        self._pinned_blocks = 0
        self._metrics.ram_bytes.set_function(lambda: float(self._ram.used_bytes))
        self._breaker = Breaker()
        self.disk = DiskTier(store, geometry, self._breaker, self._metrics)
        self.judge = Judge(config.restore, geometry, store)
        # Evicted blocks that wait for the disk live beside the others, within the same bound.
        self._queue_bytes = min(config.spill_queue_bytes, capacity // 8) if store is not None else 0
        self._resident_bytes = capacity - self._queue_bytes
        self._streams: WeakSet[RestoreStream] = WeakSet()
        self._spiller: Spiller | None = None
        self._watch: Watch | None = None
        if store is not None:
            self._spiller = Spiller(
                store, self._ram, self._lock, config, geometry, self._queue_bytes,
                self._metrics, self._breaker,
            )  # fmt: skip
            self._watch = Watch(self._look, self._in_trouble)
        self.doubts = Doubts(self._ram, self._lock, self._spiller, self._metrics)
        self._metrics.unsaved_blocks.set_function(lambda: float(self._ram.dirty))
        self._metrics.disk_up.set_function(lambda: float(not self.disk_reason))

    # Out.

    def match(
        self,
        chain: Chain,
        limit: int | None = None,
        without: Collection[BlockHash] = _NO_HASHES,
        *,
        above: int = 0,
        live_tokens: int = 0,
        disk: bool = True,
    ) -> Match:
        """The longest restorable prefix of at most ``limit`` blocks, and a tail after them, looked
        up without payload I/O; or less of it, or none, where computing is quicker.

        ``limit`` defaults to all that a prompt can reuse. When RAM holds that much, the disk is
        asked for a longer tail only; without ``disk`` not even that. ``without``: blocks that are
        not to be used (they just failed). ``above``: a prefix of no more tokens than this is of no
        use; where it is plain that no tier has a longer one, the match is empty, and the blocks
        before are not looked at. ``live_tokens``: what the engine could go on from instead.
        """
        if not self.geometry.parts:  # an engine whose state can't be moved
            return Match(chain, [])
        if limit is None:
            limit = self.geometry.blocks_reusable(len(chain))
        hashes = chain.hashes[:limit]
        if above and not self._goes_past(above, chain, hashes):
            return Match(chain, [])
        with self._lock:
            blocks = [None if h in without else self._pinned(h) for h in hashes]
            tails = in_ram(self._ram, chain, range(len(hashes) + 1), without)
            pinned = [*blocks, *(self._pinned(tail.hash) for tail in tails.values())]
            without = {*without, *self.doubts.blocks} if self.doubts.blocks else without
        try:
            steps, verdict = self._steps(
                chain, hashes, blocks, tails, without, live_tokens=live_tokens, disk=disk
            )
            try:
                pin = self.disk.pin(steps)
            except StoreError as error:
                self.disk.failed(error)
                steps, verdict, pin = [], Verdict("miss", 0), None
        except BaseException:
            self._unpin_all(block for block in pinned if block is not None)
            raise
        used = {step.hash for step in steps if step.ram}
        self._unpin_all(block for block in pinned if block is not None and block.hash not in used)
        held = [block for block in pinned if block is not None and block.hash in used]

        def release() -> None:
            self._unpin_all(held)
            if pin is not None:
                pin.release()

        return Match(chain, steps, verdict, release)

    def _goes_past(self, above: int, chain: Chain, hashes: list[BlockHash]) -> bool:
        """Whether a tier has a block, or a tail, that every prefix of more than ``above`` tokens
        needs.
        """
        # With kv that is the very next block's; without, any later one's boundary will do.
        first = above // chain.block_tokens
        has_kv = self.geometry.has_kv
        later = hashes[first : first + 1] if has_kv else hashes[first:]
        places = [first] if has_kv else range(first, len(hashes) + 1)
        with self._lock:
            if any(self._ram.get(h) is not None for h in later):
                return True
            if any(
                block * chain.block_tokens + tail.tail_tokens > above
                for block, tail in in_ram(self._ram, chain, places, ()).items()
            ):
                return True
        if not self.disk.usable:
            return False
        part = Part.KV if has_kv else Part.BOUNDARY
        found, after = self.disk.find_next(chain, later, part, places)
        return any(found) or any(
            block * chain.block_tokens + tail_count(entries) > above
            for block, entries in after.items()
        )

    def _steps(
        self,
        chain: Chain,
        hashes: list[BlockHash],
        blocks: list[RamBlock | None],
        tails: Mapping[int, RamBlock],
        without: Collection[BlockHash],
        *,
        live_tokens: int,
        disk: bool,
    ) -> tuple[list[Step], Verdict]:
        """The prefix that is worth restoring, of what RAM, or RAM and disk together, hold."""
        present: list[set[Part]] = [set(b.parts) if b else set() for b in blocks]
        count = restorable(present, self.geometry, len(hashes))
        found: list[Mapping[Part, Entry]] = [{} for _ in hashes]
        asks = disk and self.disk.usable
        if asks and count < len(hashes):
            wanted = set(self.geometry.parts)
            asked = [
                i for i, h in enumerate(hashes) if h not in without and not wanted <= present[i]
            ]
            rows = self.disk.find(chain, [hashes[i] for i in asked])
            asks = rows is not None
            for i, entries in zip(asked, rows or (), strict=asks):
                found[i] = entries
        both = [parts | saved.keys() for parts, saved in zip(present, found, strict=True)]
        places = tail_places(both, self.geometry, restorable(both, self.geometry, len(hashes)))
        asks = asks and bool(places) and places[-1] not in tails
        tail = longest(places, tails, self.disk.find_tails(chain, places, without) if asks else {})
        if tail is not None and tail.index * chain.block_tokens + tail.tail_tokens > live_tokens:
            # For the judge it is one block more.
            present = [*present[: tail.index], set(tail.ram)]
            found = [*found[: tail.index], tail.disk]
        else:
            tail = None
        verdict = self.judge.choose(chain.namespace.id, present, found, live_tokens)
        ends = tail is None or verdict.blocks <= tail.index
        count = verdict.blocks if ends or tail is None else tail.index
        steps = [
            step_of(i, hashes[i], blocks[i], found[i], needed(self.geometry, i, count, ends=ends))
            for i in range(count)
        ]
        return steps if ends or tail is None else [*steps, tail], verdict

    def _pinned(self, block_hash: BlockHash) -> RamBlock | None:
        block = self._ram.get(block_hash)
        if block is not None:
            block.pins += 1
            self._pinned_blocks += 1
        return block

    def _unpin(self, block: RamBlock) -> None:
        self._ram.unpin(block)
        self._pinned_blocks -= 1
        if self._spiller is not None:
            self._spiller.free(block)  # it may have reached the disk meanwhile

    def _unpin_all(self, blocks: Iterable[RamBlock]) -> None:
        with self._lock:
            for block in blocks:
                self._unpin(block)

    def restore(self, match: Match) -> RestoreStream:
        """The match's blocks, to be taken one by one. The stream takes the match over: it is
        released once the stream is closed and nothing is read any more.
        """
        stream = RestoreStream(
            match.steps,
            self._store,
            self.disk.failed,
            match.release,
            read_ahead_bytes=self._config.read_ahead_bytes,
            on_read=self.judge.has_read,
        )
        with self._lock:  # the watch looks at them
            self._streams.add(stream)
        return stream

    def restored(self, match: Match, blocks: int) -> dict[Source, int]:
        """Count the first ``blocks`` blocks of a match, which the engine has taken: they are
        restored, whatever becomes of them. Their tokens by tier.
        """
        steps = match.steps[:blocks]
        self._count_pause(steps)
        if steps and steps[-1].tail_tokens:
            last = steps[-1]
            with self._lock:
                self._ends.add(match.chain.parent(last.index), last.hash, last.tail_tokens)
        if blocks == match.blocks and any(step.disk for step in steps):
            self._breaker.worked("read")
        tokens = match.tokens_by_source(blocks)
        for source, count in Counter(match.sources()[:blocks]).items():
            self._metrics.restored_blocks.labels(source).inc(count)
            self._metrics.restored_tokens.labels(source).inc(tokens[source])
        ram = sum(len(view) for step in steps for view in step.ram.values())
        disk = sum(entry.raw_bytes for step in steps for entry in step.disk.values())
        self._metrics.restored_bytes.labels("ram").inc(ram)
        self._metrics.restored_bytes.labels("disk").inc(disk)
        return tokens

    def _count_pause(self, steps: Sequence[Step]) -> None:
        """How long the disk had these blocks until they were used again."""
        last = max((e.last_use for e in steps[-1].disk.values()), default=0) if steps else 0
        pause_s = time.time() - last / 1e9
        if last and pause_s > 0:  # else the order has them ahead of their use
            with self._lock:
                self._ram.order.pause.after(pause_s, len(steps))

    def refused(self, tier: Source, tokens: int, reason: str) -> None:
        """Count tokens that a tier held and that are computed all the same."""
        if tokens:
            self._metrics.refused_tokens.labels(tier, reason).inc(tokens)

    # In.

    def wants(self, chain: Chain, block: int, *, boundary: bool = False) -> bool:
        """Whether RAM lacks a part of block ``block``, so that exporting it is worth the copy."""
        with self._lock:
            known = self._ram.get(chain.hash_of(block))
            return known is None or self._lacks(known, boundary=boundary)

    def _lacks(self, block: RamBlock, *, boundary: bool = False) -> bool:
        wanted = self.geometry.parts
        return any(p not in block.parts for p in wanted if boundary or p is not Part.BOUNDARY)

    @property
    def room_bytes(self) -> int:
        """How much more fits into RAM without letting anything go."""
        with self._lock:
            return self._resident_bytes - self._ram.used_bytes + self._waiting_bytes

    @contextmanager
    def held(self, chain: Chain, block: int) -> Iterator[BlockState]:
        """What RAM has of a whole block of ``chain``: views that are valid within the block."""
        with self._lock:
            known = self._pinned(chain.hashes[block])
        try:
            yield dict(known.parts) if known is not None else {}
        finally:
            self._unpin_all([known] if known is not None else [])

    def offer(self, chain: Chain, block: int, state: BlockState) -> bool:
        """Keep a copy of the state of whole block ``block`` of ``chain``, or, after the last, of
        its tail; the caller keeps its buffers. Whether RAM has all of it now, but maybe for a
        boundary.

        Never waits for the disk: what finds no room is dropped and counted. A tail with a part
        missing serves nobody and is not kept; of one parent's tails the last few are. One that the
        block goes on from makes place for it, as in a live slot, unless it holds a state that no
        slot can go back to.
        """
        is_tail = block == chain.blocks
        if not state or (is_tail and not state.keys() >= set(self.geometry.parts)):
            return False
        name, tail = chain.hash_of(block), b""
        if is_tail:
            tail = chain.tail_tokens(block, chain.block_tokens).tobytes()
        size, now = sum(len(payload) for payload in state.values()), time.monotonic()
        with self._lock:
            known = self._ram.get(name)
            if known is not None and known.leaving:
                return not self._lacks(known)
            entry = known or RamBlock(chain.namespace, name, chain.parent(block), block, tail=tail)
            if not self._make_room(size, entry):
                self._metrics.dropped_blocks.labels("ram", "full").inc()
                return known is not None and not self._lacks(known)
            if not entry.unsaved:
                entry.dirty_since = now
            entry.last_use = now
            self._ram.add(entry, state, save=self._spiller is not None)
            if not self.geometry.has_boundary:
                entry.outgrows += tuple(self._ends.take(chain, block, name))
            gone = [old for h in entry.outgrows if (old := self._ram.get(h)) is not None]
            for old in (*gone, *self._ram.tails(entry.parent)[:-MOST_TAILS]):
                if not old.pins and not old.leaving and not old.removed:
                    self._ram.remove(old)
            if is_tail:
                self._ends.add(entry.parent, name, entry.tail_tokens)
            return not self._lacks(entry)

    def compare(self, chain: Chain) -> None:
        """Ask the disk what it has of ``chain``, its tail included: that is not unsaved in RAM, as
        it would be after an ``offer`` of what came from elsewhere.
        """
        names = [*chain.hashes, chain.hash_of(chain.blocks)]
        found = self.disk.find(chain, names) if self.disk.usable else None
        with self._lock:
            for name, entries in zip(names, found or (), strict=found is not None):
                block = self._ram.get(name)
                if block is not None and not block.leaving:
                    self._ram.saved(block, *entries)

    def _make_room(self, size: int, keep: RamBlock) -> bool:
        """Evict until ``size`` bytes fit; False when that can't be.

        Without a disk a block is of no use once its parent is gone, so the parent stays, too.
        """
        if size > self._resident_bytes:
            return False
        held = [keep]
        if self._spiller is None and self.geometry.has_kv and keep.index:
            parent = self._ram.get(keep.parent)
            if parent is None:
                return False
            held.append(parent)
        if self._fits(size):
            return True
        for block in held:
            block.pins += 1
        try:
            while not self._fits(size):
                victim = self._ram.victim()
                if victim is None:
                    return False
                self._evict(victim)
        finally:
            for block in held:
                self._ram.unpin(block)
        return True

    def _fits(self, size: int) -> bool:
        return self._ram.used_bytes - self._waiting_bytes + size <= self._resident_bytes

    @property
    def _waiting_bytes(self) -> int:
        """What of the evicted blocks has a place of its own."""
        waiting = self._spiller.leaving_bytes if self._spiller is not None else 0
        return min(waiting, self._queue_bytes)

    def _evict(self, victim: RamBlock) -> None:
        self._metrics.evicted_objects.labels("ram").inc(len(victim.parts))
        if victim.unsaved and self._spiller is not None and self._spiller.evict(victim):
            return
        self._ram.remove(victim)

    def used(self, chain: Chain) -> None:
        """Count a use of a whole conversation, when its turn is over: it is the last to be
        evicted. Tails of its earlier turns are not worth a write any more.
        """
        hashes = chain.hashes
        with self._lock:
            for old in outgrown(self._ram, chain):
                if not old.leaving:
                    self._ram.saved(old, *old.parts)
            tails = [
                tail.hash
                for tail in self._ram.tails(chain.parent(chain.blocks))
                if is_tail_of(chain, tail)
            ]
            used = [*hashes, *tails] if tails else hashes
            reused = min(self._ram.touch(used, time.monotonic()), len(hashes))
            ahead_s = self._ram.order.ahead_s
        # What was used before stays longer: the deepest such block, for all before it.
        self.disk.touch(chain, tails, {len(hashes): 0.0} | {reused: ahead_s})

    def used_tail(self, chain: Chain) -> None:
        """Count a use of the chain's tail alone, which was offered after ``used`` was told of its
        turn.
        """
        tail = chain.hash_of(chain.blocks)
        with self._lock:
            self._ram.touch([tail], time.monotonic())
        self.disk.touch(chain, [tail], {})

    # Care.

    def flush(self, timeout_s: float = math.inf) -> Flushed:
        """Write all dirty chains to disk; returns when they are durable, or have failed, or when
        ``timeout_s`` is over. Without a disk there is nothing to do.
        """
        spiller, watch = self._spiller, self._watch
        if spiller is None or watch is None:
            return Flushed(0, 0, 0.0, 0, complete=True)
        flushed = spiller.flush(0.0 if watch.reason else timeout_s)
        problem = self.disk_reason
        if flushed.complete and not problem:
            no_room = "there is no room, or the blocks before them are gone"
            problem = self._breaker.reason or (
                "the daily limit" if spiller.limit.closed else no_room
            )
        return replace(flushed, problem=problem if flushed.left else "")

    def close(self, progress: Progress = lambda _: None) -> None:
        """Spill what is dirty within ``shutdown_spill_s`` and close the store; may be called twice.

        A disk that hangs is left behind, with a line in the log: the process can end all the same.
        """
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        until = time.monotonic() + self._config.shutdown_spill_s + HANG_S
        spiller, self._spiller = self._spiller, None
        idle = spiller is None or spiller.close(progress)
        for stream in list(self._streams):
            stream.close()
        ends = [stream.join for stream in self._streams]
        for join in (*ends, self.judge.join):
            idle = join(max(HANG_S, until - time.monotonic())) and idle
        if self._store is not None and idle:
            self.judge.close()
            self._store.close()
        elif not idle:
            log.error("the cache directory does not answer; it is left as after a crash")

    @property
    def disk_reason(self) -> str:
        """Why the disk tier is not in use; empty when it is."""
        if self._store is None:
            return "no --cache-disk"
        trouble = self._watch.reason if self._watch is not None else ""
        if trouble or self._breaker.closed:
            return trouble
        return f"paused after {self._breaker.reason}, see the log"

    def write_limit(self) -> dict[str, object]:
        """``--cache-disk-write-limit`` and how it stands, for ``/health``; empty without one."""
        return self._spiller.limit.status() if self._spiller is not None else {}

    def _look(self) -> Trouble | None:
        """For the watch."""
        spiller = self._spiller
        trouble = spiller.trouble() if spiller is not None else None
        with self._lock:
            streams = list(self._streams)
        if trouble is None and any(stream.lingering_s > STEP_S for stream in streams):
            trouble = Trouble(f"a read has taken more than {STEP_S:.0f} s", "read", hangs=True)
        return trouble

    def _in_trouble(self, trouble: Trouble) -> None:
        if trouble.hangs:  # nobody else is to wait for it
            self._breaker.hangs(StoreIOError(trouble.text), trouble.direction)

    def status(self) -> dict[str, object]:
        """Bytes and blocks of the RAM tier, and how many of them matches hold on to, for
        ``/health``.
        """
        spiller = self._spiller
        with self._lock:
            return {
                "blocks": len(self._ram),
                "bytes": self._ram.used_bytes,
                "pooled_bytes": self._ram.pooled_bytes,
                "capacity_bytes": self._ram.capacity_bytes,
                "unsaved_blocks": self._ram.dirty,
                "waiting_bytes": spiller.leaving_bytes if spiller is not None else 0,
                "pinned_blocks": self._pinned_blocks,
            }

    def facts(self, most: int) -> Held:
        """Up to ``most`` blocks in RAM and as many on disk, the most recently used; a disk that is
        out of use is not asked.
        """
        with self._lock:
            held = held_in_ram(self._ram, most, self.geometry.block_tokens)
        try:
            if self._store is not None and not self.disk_reason:
                return with_disk(held, self._store.recent(most))
        except StoreError as error:
            self.disk.failed(error)
            return replace(held, complete=False)
        return held

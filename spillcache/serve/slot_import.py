"""What a slot file holds, on its way into a slot, and then into RAM."""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from spillcache.cache.policy import needed
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.config import MIB
from spillcache.engine.base import Engine
from spillcache.errors import (
    EngineError,
    SlotFileError,
    SlotFileInvalid,
    SlotFileIOError,
    SlotFileNoMemory,
    StateRejected,
)
from spillcache.serve.context_room import to_clear
from spillcache.serve.errands import Errands, GoOn
from spillcache.serve.slots import Phase, Slot
from spillcache.state import HEADROOM_BYTES, BlockState, Buffer, Geometry, Part
from spillcache.store.slot_blocks import HELD_RUNS
from spillcache.store.slot_state import Run, SlotState

RUN_BYTES = 8 * MIB
RUN_BLOCKS = 128
"""So much is imported in one call, where nobody waits for its end."""


log = logging.getLogger("spillcache.serve")


class _NotAloneError(Exception):
    """A bad file would cost somebody something from here on."""


class PartsCheck:
    """Whether a file has all that going on from its end needs; records come in their order."""

    def __init__(self, state: SlotState, geometry: Geometry) -> None:
        self._state = state
        self._geometry = geometry
        self._parts: list[set[Part]] = [set() for _ in range(state.blocks)]
        self._next = 0

    def add(self, run: Run) -> None:
        """Raise SlotFileInvalid if a block whose records have all come lacks one."""
        for record in run:
            for parts in self._parts[record.block : record.block + record.blocks]:
                parts.add(record.part)
        self._check(run[-1].block + 1)

    def end(self) -> None:
        """As ``add``: no more come."""
        self._check(len(self._parts))

    def _check(self, stop: int) -> None:
        blocks, ends = self._state.chain.blocks, not self._state.tail_tokens
        for index in range(self._next, stop):
            wanted = needed(self._geometry, index, blocks, ends=ends)
            if index == blocks:
                wanted = self._geometry.parts
            if missing := [p.name.lower() for p in wanted if p not in self._parts[index]]:
                raise SlotFileInvalid(
                    f"the slot file lacks {missing[0]} of block {index}; the slot is as it was",
                    param="filename",
                )
        self._next = stop


@dataclass(frozen=True, slots=True)
class SlotImport:
    """One restore into one slot, which is taken. On the action's thread, but for what it has the
    engine's do.
    """

    engine: Engine
    slot: Slot
    slots: Sequence[Slot]
    errands: Errands
    forget: Callable[[Slot], None]
    """Empties a slot; on the engine's thread."""

    def restore(self, state: SlotState) -> None:
        """Replace what the slot holds. Raises a SlotFileError, with the slot as it was, or a
        SlotFileIOError that says that the slot is empty.

        Where a bad file would cost somebody something, all of it is verified before the engine is
        touched. Else an empty slot takes what is whole as it comes; nobody sees it until all of it
        is known to be, and if it is not, the slot is as empty as it was. When a request comes
        meanwhile, the slot is emptied before it begins, and the file is begun again, and verified
        first.
        """
        if self.errands.do(lambda: self._enters_free(state.tokens)):
            try:
                self._take(state, alone=True)
                return
            except _NotAloneError:
                log.info("a request came while a slot file was read: all of it is verified first")
        for _ in self._runs(state):
            pass
        self.errands.do(lambda: self._make_room(state.tokens))
        self._take(state, alone=False)

    def _take(self, state: SlotState, *, alone: bool) -> None:
        """Import it into the slot, which is empty; whatever fails, it is that again. ``alone``:
        nothing was verified before, and nobody else is to be there.
        """
        try:
            self._import_all(state, alone=alone)
            self.errands.do(lambda: self._finish(state, alone=alone))
        except BaseException as error:
            self.errands.do(lambda: self.forget(self.slot))
            if isinstance(error, EngineError):
                raise SlotFileIOError(
                    f"the engine did not take the file's state: {error}; the slot is empty now"
                ) from error
            if isinstance(error, SlotFileError) and not alone:
                raise SlotFileIOError(f"{error}; the slot is empty now") from error
            raise

    def _runs(self, state: SlotState) -> Generator[Run, None, None]:
        check = PartsCheck(state, self.engine.geometry)
        with closing(state.runs()) as runs:
            for run in runs:
                check.add(run)
                yield run
        check.end()

    def _import_all(self, state: SlotState, *, alone: bool) -> None:
        """A run is read, and verified, while the engine has those before it."""
        some = partial(self._some_alone if alone else self._some, state)
        todo: deque[Run] = deque()
        moving: Future[None] | None = None
        try:
            with closing(self._runs(state)) as runs:
                for run in runs:
                    todo.append(run)
                    moving = self._move(some, todo, moving, HELD_RUNS - 1)
            moving = self._move(some, todo, moving, 0)
        finally:
            if moving is not None:
                moving.exception()  # the engine's thread is done with the runs, and with the slot

    def _move(
        self,
        some: Callable[[deque[Run], GoOn], None],
        todo: deque[Run],
        moving: "Future[None] | None",
        most: int,
    ) -> "Future[None] | None":
        """Have the engine import what is to be done; return when it has at most ``most`` runs."""
        while moving is None or moving.done() or len(todo) > most:
            if moving is not None:
                moving.result()
            if not todo:
                break
            moving = self.errands.move(partial(some, todo))
        return moving

    def _enters_free(self, tokens: int) -> bool:
        """Whether the slot holds nothing, ``tokens`` fit into the context as it is, and a bad file
        would change no bit of what others compute: while somebody answers, its tokens would lie in
        other cells, and windows lie in a ring that all share.
        """
        engine, others = self.engine, [each for each in self.slots if each is not self.slot]
        held = sum(engine.length(each.index) for each in others)
        if engine.length(self.slot.index) or held + tokens > engine.limits.context_tokens:
            return False
        if any(each.job is not None for each in others) or (held and engine.geometry.window_blocks):
            return False
        self.forget(self.slot)
        self.slot.unverified = True
        return True

    def _make_room(self, tokens: int) -> None:
        """Empty the slot, and idle ones where the context needs it; nothing if that won't do."""
        held = sum(
            self.engine.length(each.index)
            for each in self.slots
            if each is not self.slot and each.phase is not Phase.IDLE
        )
        if held + tokens > self.engine.limits.context_tokens:
            raise SlotFileNoMemory(
                f"the context of {self.engine.limits.context_tokens} tokens has no room for "
                f"{tokens} beside {held} that other slots work on; the slot is as it was. Ask "
                "again when they are done, or start the server with a larger -c"
            )
        self.forget(self.slot)
        for idle in to_clear(self.slot, tokens, self.slots, self.engine):
            self.forget(idle)

    def _some_alone(self, state: SlotState, todo: deque[Run], go_on: GoOn) -> None:
        """As ``_some``; raises _NotAloneError once a request has come, for which the slot was
        emptied.
        """
        if not self.slot.unverified:
            raise _NotAloneError
        self._some(state, todo, go_on)

    def _some(self, state: SlotState, todo: deque[Run], go_on: GoOn) -> None:
        """Import records of the first runs, and take them off."""
        while todo:
            done = self._import_some(state, todo[0])
            if done < len(todo[0]):
                todo[0] = todo[0][done:]
            else:
                todo.popleft()
            if not go_on():
                break
        if not todo and not self._others_wait():
            self._expect_window(state)

    def _expect_window(self, state: SlotState) -> None:
        """Nothing is there to be imported: prepare for what comes."""
        first = state.chain.blocks - self.engine.geometry.window_blocks
        if first < state.chain.blocks:
            self.engine.expect_window(self.slot.index, first)

    def _import_some(self, state: SlotState, records: Run) -> int:
        """Import the first of ``records``, or a few that are small; with how many it is done."""
        first, index = records[0], self.slot.index
        if first.part is Part.KV and first.block < state.chain.blocks:
            memory = state.with_headroom(first.payload, HEADROOM_BYTES)
            if self.engine.import_in_place(index, first.block, first.blocks, memory):
                return 1
            if first.blocks > 1:
                raise StateRejected(f"blocks {first.block} … that were written as one")
        if first.block == state.chain.blocks:
            self._append(state, {}, first.block)
            parts = {record.part: record.payload for record in records}
            self.engine.import_(index, first.block, parts, state.tail_tokens)
            return len(records)
        return self._import_blocks(state, records)

    def _import_blocks(self, state: SlotState, records: Run) -> int:
        """As ``_import_some``, of whole blocks, each with all its parts."""
        blocks: dict[int, dict[Part, Buffer]] = {}
        size, last, done = 0, records[0].block, 0
        for record in records:
            others = record.blocks > 1 or record.block == state.chain.blocks
            if record.block != last and (others or self._is_enough(len(blocks), size)):
                break
            last, done = record.block, done + 1
            if record.part in self._needed(state, last):
                blocks.setdefault(last, {})[record.part] = record.payload
                size += len(record.payload)
        if blocks:
            self._append(state, blocks, max(blocks) + 1)
        return done

    def _append(self, state: SlotState, blocks: Mapping[int, BlockState], stop: int) -> None:
        """Import ``blocks``, and, before ``stop``, those of which nothing is needed."""
        index, size = self.slot.index, state.chain.block_tokens
        while (at := self.engine.length(index) // size) < stop:
            run = range(at, min(stop, at + RUN_BLOCKS))
            self.engine.import_run(index, at, [blocks.get(each, {}) for each in run])

    def _is_enough(self, blocks: int, size_bytes: int) -> bool:
        """Whether so much goes in at once; one block where others wait for its end."""
        if self._others_wait():
            return blocks > 0
        return blocks >= RUN_BLOCKS or size_bytes >= RUN_BYTES

    def _others_wait(self) -> bool:
        """Whether a step's end is waited for."""
        return any(slot.job is not None for slot in self.slots)

    def _needed(self, state: SlotState, block: int) -> tuple[Part, ...]:
        """What a restore of the cache's would import: the same calls, the same bits."""
        ends = not state.tail_tokens
        return needed(self.engine.geometry, block, state.chain.blocks, ends=ends)

    def _finish(self, state: SlotState, *, alone: bool) -> None:
        slot, chain = self.slot, state.chain
        if alone and not slot.unverified:
            raise _NotAloneError
        slot.unverified = False
        if len(chain) and not self.engine.restored(slot.index):
            raise StateRejected("a part of the state is missing")
        slot.chain, slot.unkept, slot.last_use = chain, state.private, time.monotonic()
        # Until it has given logits: see ``trial``.
        slot.on_trial = state.blocks
        slot.tail_on_trial = chain.hash_of(chain.blocks) if state.tail_tokens else None


class SlotKeeper:
    """Offers what was restored to RAM, so that it outlives its slot, and a rewritten history finds
    windows and boundaries.
    """

    def __init__(
        self,
        cache: PrefixCache,
        errands: Errands,
        state: SlotState,
        split: Callable[[Buffer, int], Sequence[Buffer]],
    ) -> None:
        """Before the slot's chain grows: its names are taken over. ``split``: the engine's."""
        chain = state.chain
        self._cache = cache
        self._errands = errands
        self._state = state
        self._split = split
        self._chain = Chain(chain.namespace, chain.block_tokens)
        self._chain.root = chain.root
        self._chain.extend(chain.tokens)

    @property
    def fits(self) -> bool:
        """Whether RAM has room for it without letting go of anything."""
        return self._state.file_bytes <= self._cache.room_bytes

    def keep(self) -> None:
        """Offer all of it, a few blocks at a time, at the pace of restores."""
        for run in self._state.runs():
            todo = deque(self._blocks(run))
            while todo:
                self._errands.move(partial(self._some, todo)).result()
        self._cache.compare(self._chain)
        self._cache.used(self._chain)

    def _blocks(self, run: Run) -> Iterator[tuple[int, BlockState]]:
        """What each record, or all of a block's, has for the cache."""
        for block, records in groupby(run, lambda record: record.block):
            parts: dict[Part, Buffer] = {}
            for record in records:
                if record.blocks > 1:
                    split = self._split(record.payload, record.blocks)
                    yield from ((block + n, {record.part: each}) for n, each in enumerate(split))
                else:
                    parts[record.part] = record.payload
            yield block, parts

    def _some(self, todo: deque[tuple[int, BlockState]], go_on: GoOn) -> None:
        while todo:
            self._cache.offer(self._chain, *todo.popleft())
            if not go_on():
                break

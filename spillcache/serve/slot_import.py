"""What a slot file holds, on its way into a slot, and then into RAM."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

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
from spillcache.state import HEADROOM_BYTES, BlockState, Geometry, Part
from spillcache.store.slot_blocks import HELD_RUNS
from spillcache.store.slot_state import Payloads, Run, SlotState

RUN_BYTES = 8 * MIB
RUN_BLOCKS = 128
"""So much is imported in one call, where nobody waits for its end."""
IN_PLACE_BYTES = 1 * MIB
"""What is smaller is copied, so that many go in at once."""


def check_parts(state: SlotState, run: Run, geometry: Geometry) -> None:
    """Raise SlotFileInvalid unless ``run`` has all that going on from the state's end needs."""
    tail, blocks = state.tail_tokens, state.chain.blocks
    for index, parts in enumerate(run[1], run[0]):
        wanted = needed(geometry, index, blocks, ends=not tail)
        if index == blocks:
            wanted = geometry.parts
        if missing := [part.name.lower() for part in wanted if part not in parts]:
            raise SlotFileInvalid(
                f"the slot file lacks {missing[0]} of block {index}; the slot is as it was",
                param="filename",
            )


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

        Where somebody would lose a conversation to a bad file, all of it is verified before the
        engine is touched. An empty slot takes what is whole as it comes; nobody sees it until all
        of it is known to be, and if it is not, the slot is as empty as it was.
        """
        verifies = not self.errands.do(lambda: self._enters_free(state.tokens))
        if verifies:
            for _ in self._runs(state):
                pass
            self.errands.do(lambda: self._make_room(state.tokens))
        try:
            self._import_all(state)
            self.errands.do(lambda: self._finish(state))
        except BaseException as error:
            self.errands.do(lambda: self.forget(self.slot))
            if isinstance(error, EngineError):
                raise SlotFileIOError(
                    f"the engine did not take the file's state: {error}; the slot is empty now"
                ) from error
            if isinstance(error, SlotFileError) and verifies:
                raise SlotFileIOError(f"{error}; the slot is empty now") from error
            raise

    def _runs(self, state: SlotState) -> Iterator[Run]:
        for run in state.runs():
            check_parts(state, run, self.engine.geometry)
            yield run

    def _import_all(self, state: SlotState) -> None:
        """A run is read, and verified, while the engine has those before it."""
        todo: deque[Run] = deque()
        moving: Future[None] | None = None
        try:
            for run in self._runs(state):
                todo.append(run)
                moving = self._move(state, todo, moving, HELD_RUNS - 1)
            moving = self._move(state, todo, moving, 0)
        finally:
            if moving is not None:
                moving.exception()  # the engine's thread is done with the runs, and with the slot

    def _move(
        self, state: SlotState, todo: deque[Run], moving: "Future[None] | None", most: int
    ) -> "Future[None] | None":
        """Have the engine import what is to be done; return when it has at most ``most`` runs."""
        while moving is None or moving.done() or len(todo) > most:
            if moving is not None:
                moving.result()
            if not todo:
                break
            moving = self.errands.move(partial(self._some, state, todo))
        return moving

    def _enters_free(self, tokens: int) -> bool:
        """Whether the slot holds nothing, and ``tokens`` fit into the context as it is."""
        held = sum(self.engine.length(each.index) for each in self.slots)
        if self.engine.length(self.slot.index) or held + tokens > self.engine.limits.context_tokens:
            return False
        self.forget(self.slot)
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

    def _some(self, state: SlotState, todo: deque[Run], go_on: GoOn) -> None:
        """Import blocks of the first runs, and take them off."""
        while todo:
            first, blocks = todo[0]
            done = self._import_run(state, first, blocks)
            if done < len(blocks):
                todo[0] = first + done, blocks[done:]
            else:
                todo.popleft()
            if not go_on():
                break

    def _import_run(self, state: SlotState, block: int, blocks: Sequence[Payloads]) -> int:
        """Import the first of ``blocks``, which begin with ``block``, or a few that are small; how
        many.
        """
        index, tail = self.slot.index, state.tail_tokens
        if block == state.chain.blocks:
            self.engine.import_(index, block, self._needed(state, block, blocks[0]), tail)
            return 1
        if self._in_place(state, block, blocks[0]):
            return 1
        run: list[BlockState] = []
        size = 0
        for each, parts in enumerate(blocks[:RUN_BLOCKS], block):
            if each == state.chain.blocks:
                break
            run.append(self._needed(state, each, parts))
            size += sum(len(payload) for payload in run[-1].values())
            if size >= RUN_BYTES or self._others_wait():
                break
        return self.engine.import_run(index, block, run)

    def _in_place(self, state: SlotState, block: int, parts: Payloads) -> bool:
        """Import a block without a copy, if it is large and the engine can."""
        kv = parts.get(Part.KV)
        if kv is None or len(kv) < IN_PLACE_BYTES:
            return False
        memory = state.with_headroom(kv, HEADROOM_BYTES)
        return self.engine.import_in_place(self.slot.index, block, memory)

    def _others_wait(self) -> bool:
        return any(slot.job is not None for slot in self.slots)

    def _needed(self, state: SlotState, block: int, parts: Payloads) -> BlockState:
        """What a restore of the cache's would import: the same calls, the same bits."""
        blocks, geometry = state.chain.blocks, self.engine.geometry
        if block == blocks:
            return dict(parts)
        wanted = needed(geometry, block, blocks, ends=not state.tail_tokens)
        return {part: parts[part] for part in wanted}

    def _finish(self, state: SlotState) -> None:
        slot, chain = self.slot, state.chain
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

    def __init__(self, cache: PrefixCache, errands: Errands, state: SlotState) -> None:
        """Before the slot's chain grows: its names are taken over."""
        chain = state.chain
        self._cache = cache
        self._errands = errands
        self._state = state
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
            done = 0
            while done < len(run[1]):
                done = self._errands.move(partial(self._some, run, done)).result()
        self._cache.used(self._chain)

    def _some(self, run: Run, done: int, go_on: GoOn) -> int:
        first, blocks = run
        while done < len(blocks):
            self._cache.offer(self._chain, first + done, blocks[done])
            done += 1
            if not go_on():
                break
        return done

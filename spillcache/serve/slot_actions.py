"""POST /slots/{id}: a slot's tokens and state to a file, and back.

An action runs on the thread that asks for it. What concerns the engine and the slots it has the
engine's thread do, a few blocks at a time (``errands``); what concerns the disk, a thread that may
be left behind (``store/steps.py``). So nobody waits for it but its own client.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from spillcache.cache.memory import SHARE, available_bytes
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain, chain_root
from spillcache.config import MIB, format_size
from spillcache.engine.base import Engine
from spillcache.errors import (
    NotReady,
    Overloaded,
    SlotFileInvalid,
    SlotFileNoMemory,
    SpillcacheError,
)
from spillcache.namespace import Namespace
from spillcache.serve.adapters import Namespaces
from spillcache.serve.errands import Errands
from spillcache.serve.slot_export import SlotExport
from spillcache.serve.slot_import import SlotImport, SlotKeeper
from spillcache.serve.slots import Phase, Slot
from spillcache.store.buffers import AlignedBuffer, BufferPool
from spillcache.store.slot_blocks import invalid
from spillcache.store.slot_folder import SlotFolder
from spillcache.store.slot_format import PRIVATE, SALTED, SlotHeader, file_bytes_max
from spillcache.store.slot_reader import SlotFileReader
from spillcache.store.slot_state import SlotState

log = logging.getLogger("spillcache.serve")

MOST_ACTIONS = 64
"""That run or wait; more are refused."""

POOL_BYTES = 96 * MIB
"""Buffers that actions leave to the next: memory that was never used may be slow the first time."""


@dataclass(frozen=True, slots=True)
class SlotDone:
    """What an action did: tokens, bytes of the file, if there is one, and the time it took."""

    tokens: int
    size_bytes: int
    seconds: float


class SlotActions:
    """``save``, ``restore``, ``erase``: any thread but the engine's; they block it. ``attach``: the
    engine's.
    """

    def __init__(
        self,
        engine: Engine,
        slots: Sequence[Slot],
        errands: Errands,
        forget: Callable[[Slot], None],
    ) -> None:
        """``forget``: empties a slot; on the engine's thread."""
        self._engine = engine
        self._slots = slots
        self._errands = errands
        self._empty = forget
        self._namespaces: Namespaces | None = None
        self._cache: PrefixCache | None = None
        self._bytes = threading.Lock()
        """Held by the action whose bytes move: disk and memory are one's at a time."""
        self._pool = BufferPool(POOL_BYTES)
        self._places = threading.BoundedSemaphore(MOST_ACTIONS)

    def attach(self, namespaces: Namespaces, cache: PrefixCache | None) -> None:
        """The model's identity is known now."""
        self._namespaces, self._cache = namespaces, cache

    def running(self) -> dict[int, str]:
        """Slots that actions have now, and which."""
        return {slot.index: slot.action for slot in self._slots if slot.action}

    def make_way(self) -> None:
        """A request is about to begin: empty a slot that is filled from a file that may be bad.
        Engine's thread.
        """
        for slot in self._slots:
            if slot.unverified:
                self._forget(slot)

    def erase(self, index: int) -> SlotDone:
        """Empty a slot. Raises SlotFileInvalid, NotReady, Overloaded."""
        began = time.monotonic()
        self._known()
        with self._taken(index, "erase") as slot:
            tokens = self._errands.do(lambda: self._engine.length(index))
            self._errands.do(lambda: self._forget(slot))
        return SlotDone(tokens, 0, time.monotonic() - began)

    def save(self, index: int, folder: SlotFolder, name: str) -> SlotDone:
        """Write a slot's tokens and state to a file. Raises a SlotFileError, NotReady, Overloaded;
        the file of that name is then as before, unless the error says that it is published.
        """
        began, path, namespaces = time.monotonic(), folder.path_of(name), self._known()
        with self._taken(index, "save") as slot, self._bytes:
            chain = self._errands.do(lambda: _chain_of(slot, namespaces, self._engine))
            log.info("slot %d: saving %d tokens", index, len(chain))
            export = SlotExport(
                self._engine, index, chain, self._errands, cache=self._cache, pool=self._pool
            )
            size = export.save(folder, path, _flags(slot, chain))
        return self._done("saved", index, SlotDone(len(chain), size, time.monotonic() - began))

    def restore(self, index: int, folder: SlotFolder, name: str) -> SlotDone:
        """Replace what a slot holds by what a file says. Raises a SlotFileError, NotReady,
        Overloaded; the slot is then as it was, or empty, and the error says which.
        """
        began, path, namespaces = time.monotonic(), folder.path_of(name), self._known()
        with ExitStack() as held:
            slot = held.enter_context(self._taken(index, "restore"))
            with self._bytes:
                file = held.enter_context(
                    SlotFileReader(folder.files(), path, folder.steps, folder.cipher)
                )
                state = self._state_of(file, index, namespaces)
                keeper = self._keeper(state)
                SlotImport(self._engine, slot, self._slots, self._errands, self._forget).restore(
                    state
                )
            done = SlotDone(state.tokens, state.file_bytes, time.monotonic() - began)
            if keeper is not None:
                self._keep(keeper, state.memory, held.pop_all())
            else:
                self._pool.give(state.memory)
        return self._done("restored", index, done)

    # Before the engine is touched.

    def _state_of(self, file: SlotFileReader, index: int, namespaces: Namespaces) -> SlotState:
        """What the file holds: all that can be known before its blocks are read, verified."""
        self._check(file.header)
        namespace = self._errands.do(lambda: _ours(file.namespace, namespaces))
        tokens, size = file.header.tokens, format_size(file.header.file_bytes)
        log.info("slot %d: restoring %d tokens, %s", index, tokens, size)
        state = file.state(self._engine.part_bytes, self._memory(file))
        known = state.chain.tokens
        if len(known) and int(known.max()) >= self._engine.limits.vocabulary:
            raise invalid("it has a token outside the vocabulary")
        state.chain.namespace = namespace
        return state

    def _known(self) -> Namespaces:
        if self._namespaces is None:
            self._errands.do(lambda: None)  # what is known may only wait for its turn
        if self._namespaces is None:
            raise NotReady("the model's content is being hashed; ask again soon")
        return self._namespaces

    def _check(self, header: SlotHeader) -> None:
        """Raise SlotFileInvalid for what no slot could hold."""
        engine = self._engine
        if header.block_tokens != engine.geometry.block_tokens:
            raise invalid("it has blocks of another size")
        if header.tokens > engine.limits.context_tokens:
            raise invalid(
                f"it has {header.tokens} tokens and the context holds "
                f"{engine.limits.context_tokens}; start the server with a larger -c"
            )
        blocks = -(-header.tokens // header.block_tokens)
        parts = dict.fromkeys(engine.geometry.parts, blocks)
        most = file_bytes_max(header.tokens, engine.geometry, engine.part_bytes, parts)
        if header.file_bytes > most:
            raise invalid(f"it is larger than a slot of {header.tokens} tokens can be")

    def _memory(self, file: SlotFileReader) -> AlignedBuffer:
        """What a file is read through. Raises SlotFileNoMemory."""
        least = file.memory_bytes(self._engine.part_bytes)
        if (used := self._pool.find(least)) is not None:
            return used
        available = available_bytes()
        if available is not None and least > available * SHARE:
            raise SlotFileNoMemory(
                f"restoring takes {format_size(least)} of memory for a moment, and "
                f"{format_size(available)} are available; the slot is as it was"
            )
        return AlignedBuffer(least)

    # The slot.

    @contextlib.contextmanager
    def _taken(self, index: int, action: str) -> Iterator[Slot]:
        """The slot, once its request is over; nobody else gets it within the block."""
        if not 0 <= index < len(self._slots):
            last = len(self._slots) - 1
            raise SlotFileInvalid(
                f"id_slot: there is no {index}; the last is {last}", param="id_slot"
            )
        if not self._places.acquire(blocking=False):
            raise Overloaded(f"{MOST_ACTIONS} slot actions are waiting; try again later")
        slot = self._slots[index]
        try:
            self._errands.do(lambda: _take(slot, action), lambda: slot.phase is Phase.IDLE)
            try:
                yield slot
            finally:
                with contextlib.suppress(NotReady):  # the server stops
                    self._errands.do(lambda: _give_back(slot))
        finally:
            self._places.release()

    def _forget(self, slot: Slot) -> None:
        """Empty a slot; one that is taken stays so."""
        phase = slot.phase
        self._empty(slot)
        slot.phase = phase

    # RAM.

    def _keeper(self, state: SlotState) -> SlotKeeper | None:
        if self._cache is None or state.private or not state.blocks:
            return None
        keeper = SlotKeeper(self._cache, self._errands, state, self._engine.split_run)
        return keeper if keeper.fits else None

    def _keep(self, keeper: SlotKeeper, memory: AlignedBuffer, held: ExitStack) -> None:
        """Keep it, and only then let the slot go: what is computed next must find it kept."""

        def run() -> None:
            with held, contextlib.suppress(NotReady):
                try:
                    keeper.keep()
                    self._pool.give(memory)
                except SpillcacheError as error:
                    log.warning("a restored slot was not kept in RAM: %s", error)

        threading.Thread(target=run, name="spillcache-slot-keep", daemon=True).start()

    def _done(self, what: str, index: int, done: SlotDone) -> SlotDone:
        log.info(
            "slot %d: %s %d tokens, %s in %.2f s", index, what, done.tokens,
            format_size(done.size_bytes), done.seconds,
        )  # fmt: skip
        return done


def _take(slot: Slot, action: str) -> None:
    slot.phase, slot.action = Phase.FILE, action


def _give_back(slot: Slot) -> None:
    slot.phase, slot.action = Phase.IDLE, ""


def _chain_of(slot: Slot, namespaces: Namespaces, engine: Engine) -> Chain:
    """What the slot holds; of an empty one, no tokens."""
    if slot.chain is None or not engine.length(slot.index):
        return Chain(namespaces.of(()), engine.geometry.block_tokens)
    _ours(slot.chain.namespace, namespaces)  # it may be older than the model's identity
    return slot.chain


def _flags(slot: Slot, chain: Chain) -> int:
    salted = SALTED if chain.root != chain_root(chain.namespace.digest) else 0
    return salted | (PRIVATE if slot.unkept else 0)


def _ours(namespace: Namespace, namespaces: Namespaces) -> Namespace:
    try:
        return namespaces.like(namespace)
    except ValueError as error:
        raise invalid(f"it is of another model, or of other settings: {error}") from error

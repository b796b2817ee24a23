"""A matched prefix on its way into the engine: blocks in order, read ahead from disk, handed over
as they come.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from spillcache.chain import BlockHash
from spillcache.config import MIB
from spillcache.errors import SpillcacheError, StoreError, StoreIOError
from spillcache.processors import give_way
from spillcache.state import Buffer, Part
from spillcache.store.block_store import BlockStore, Entry, Payload
from spillcache.store.read_meter import Reading

log = logging.getLogger("spillcache.cache")

Source = Literal["ram", "disk"]
SOURCES: tuple[Source, ...] = get_args(Source)
_NOTHING_READ = Reading(0, 0.0, 0)
_AHEAD_BLOCKS = 16
"""Blocks between reader and engine; the store bounds the bytes that are read ahead."""


@dataclass(frozen=True, slots=True)
class Step:
    """One block of a prefix, and where each part that is needed of it lies."""

    index: int
    hash: BlockHash
    ram: dict[Part, memoryview]
    disk: dict[Part, Entry]
    tail_tokens: int = 0
    """How many tokens a tail has; 0 for a whole block."""

    @property
    def source(self) -> Source:
        """The slowest tier that the block needs."""
        return "disk" if self.disk else "ram"

    @property
    def disk_bytes(self) -> int:
        """What lies on disk of it."""
        return sum(entry.stored_bytes for entry in self.disk.values())


@dataclass(slots=True)
class RestoredBlock:
    """A block's verified parts; the views are valid until ``release``, which the receiver must
    call.
    """

    index: int
    state: dict[Part, Buffer]
    source: Source
    tail_tokens: int = 0
    """How many tokens a tail has; 0 for a whole block."""
    _payloads: list[Payload] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Payload bytes."""
        return sum(len(payload) for payload in self.state.values())

    def release(self) -> None:
        """Give the buffers back; may be called twice."""
        for payload in self._payloads:
            payload.release()
        self._payloads.clear()


class RestoreStream:
    """The blocks of one match, ascending. Used and closed by one thread, the engine's. ``on_read``
    is called when nothing is read any more, on the reader's thread.

    A reader thread runs only where something lies on disk. ``close`` does not wait for it, since a
    disk may hang: whoever comes last, reader or ``close``, frees what is left and calls ``on_end``.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        store: BlockStore | None,
        on_disk_error: Callable[[SpillcacheError], None],
        on_end: Callable[[], None] = lambda: None,
        *,
        read_ahead_bytes: int = 64 * MIB,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._steps = steps
        self._store = store
        self._on_disk_error = on_disk_error
        self._on_end = on_end
        self._read_ahead_bytes = read_ahead_bytes
        self._on_read = on_read
        self.disk_bytes = self.left_bytes = sum(step.disk_bytes for step in steps)
        """What lies on disk, and what of that was not taken yet."""
        self.began = _NOTHING_READ
        self._next = 0
        self._stop = threading.Event()
        self._closed_at = math.inf
        self._ready: queue.Queue[RestoredBlock | SpillcacheError] = queue.Queue(_AHEAD_BLOCKS)
        self._lock = threading.Lock()
        self._users = 1
        self._reader: threading.Thread | None = None
        if any(step.disk for step in steps):
            self._users = 2
            self.began = _reading(store)
            self._reader = threading.Thread(
                target=self._run, name="spillcache-restore", daemon=True
            )
            self._reader.start()

    @property
    def lingering_s(self) -> float:
        """How long the reader thread has outlived ``close``: it hangs in a read."""
        lingers = self._reader is not None and self._reader.is_alive()
        return max(0.0, time.monotonic() - self._closed_at) if lingers else 0.0

    @property
    def reads_disk(self) -> bool:
        """Whether anything of it lies on disk."""
        return self._reader is not None

    @property
    def done(self) -> bool:
        """Whether every block was taken."""
        return self._next == len(self._steps)

    def take(self, timeout_s: float = 0.0) -> RestoredBlock | None:
        """The next block, or None if it is not there within ``timeout_s``.

        Raises what ended the stream: CorruptBlock, ObjectMissing, StoreIOError.
        """
        if self.done:
            return None
        if self._reader is None:
            step = self._steps[self._next]
            self._next += 1
            return RestoredBlock(step.index, dict(step.ram), "ram", step.tail_tokens)
        try:
            item = self._ready.get(timeout=timeout_s) if timeout_s > 0 else self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, SpillcacheError):
            raise item
        self.left_bytes -= self._steps[self._next].disk_bytes
        self._next += 1
        return item

    def close(self) -> None:
        """Stop reading and give every buffer back; at once, and may be called twice."""
        if self._stop.is_set():
            return
        self._closed_at = time.monotonic()
        self._stop.set()
        self._drain()
        self._leave()

    def join(self, timeout_s: float) -> bool:
        """Wait for the reader thread after ``close``; whether it has ended."""
        if self._reader is not None:
            self._reader.join(timeout_s)
            return not self._reader.is_alive()
        return True

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._drain()
            self._on_end()

    def _drain(self) -> None:
        while True:
            try:
                item = self._ready.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, RestoredBlock):
                item.release()

    # The reader thread.

    def _run(self) -> None:
        give_way()
        try:
            for block in self._blocks():
                if not self._put(block):
                    block.release()
                    return
        except SpillcacheError as error:
            self._on_disk_error(error)
            self._put(error)
        except Exception as error:  # a bug must end the restore, never the request
            log.exception("the restore reader failed")
            self._put(StoreIOError(f"the restore reader failed: {error}"))
        finally:
            self._leave()
            self._on_read()

    def _blocks(self) -> Iterator[RestoredBlock]:
        assert self._store is not None  # noqa: S101 - a step with disk parts came from it
        entries = [entry for step in self._steps for entry in step.disk.values()]
        payloads = self._store.read(
            entries, stop=self._stop.is_set, memory_bytes=self._read_ahead_bytes
        )
        try:
            for step in self._steps:
                block = RestoredBlock(step.index, dict(step.ram), step.source, step.tail_tokens)
                if not self._fill(block, step, payloads):
                    return
                yield block
        finally:
            close = getattr(payloads, "close", None)
            if close is not None:
                close()

    def _fill(self, block: RestoredBlock, step: Step, payloads: Iterator[Payload]) -> bool:
        """Add what lies on disk; False, and nothing held, when the store was told to stop."""
        complete = False
        try:
            for part in step.disk:
                payload = next(payloads, None)
                if payload is None:
                    return False
                block.state[part] = payload.view
                block._payloads.append(payload)
            complete = True
        finally:
            if not complete:  # an error of a later part must not keep the earlier ones
                block.release()
        return True

    def _put(self, item: RestoredBlock | SpillcacheError) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


def _reading(store: BlockStore | None) -> Reading:
    """What the meter shows; a store that can't say will fail when it is read."""
    try:
        return store.reading() if store is not None else _NOTHING_READ
    except StoreError:
        return _NOTHING_READ

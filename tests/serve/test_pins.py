"""Pins, buffers and read-aheads are given back, however a request ends."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import GREEDY, Stack, collect, prompt

from spillcache.engine.base import Engine
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import ContextFullError, DecodeError, SpillcacheError, StateRejected
from spillcache.serve import restorer
from spillcache.serve.job import GenerationRequest, Ticket
from spillcache.serve.slots import Phase
from spillcache.store.block_store import BlockStore, Entry, Payload
from spillcache.store.files import Files

OLD = prompt(640)
"""On disk, and nowhere else."""
Fault = Callable[[Stack, pytest.MonkeyPatch], None]


class Held:
    """The payloads that the store handed out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.payloads: list[Payload] = []
        self.gate = threading.Event()
        self.gate.set()
        read = BlockStore.read

        def noted(store: BlockStore, entries: list[Entry], **how: Any) -> Iterator[Payload]:
            stop: Callable[[], bool] = how["stop"]
            for payload in read(store, entries, **how):
                self.payloads.append(payload)
                while payload.entry.block_index > 2 and not self.gate.wait(0.005) and not stop():
                    pass
                yield payload

        monkeypatch.setattr(BlockStore, "read", noted)

    def unreleased(self) -> int:
        return sum(payload._lease is not None for payload in self.payloads)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture
def stack(gguf_model: ModelShelf, tmp_path: Path, held: Held) -> Iterator[Stack]:
    """Two slots; ``OLD`` lies on disk."""
    with Stack(gguf_model("gemma3"), tmp_path / "d", slots=2) as first:
        first.answer(OLD, 1)
    with Stack(gguf_model("gemma3"), tmp_path / "d", slots=2, context_tokens=2048) as running:
        yield running


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def nothing_is_held(stack: Stack, held: Held) -> None:
    """And the server goes on."""
    assert stack.cache is not None
    assert stack.store is not None
    cache, opened = stack.cache, stack.store._opened
    assert opened is not None
    eventually(lambda: not stack.scheduler.busy(), "a slot is busy")
    cache.flush()
    eventually(lambda: not any(b.pins for b in cache._ram._blocks.values()), "RAM is pinned")
    eventually(lambda: cache.status()["pinned_blocks"] == 0, "a match is held")
    eventually(lambda: not opened.pins._counts, "the disk is pinned")
    eventually(lambda: not held.unreleased(), "a buffer is held")
    assert stack.answer(prompt(200, seed=77), 2).done is not None


def submit(stack: Stack, tokens: list[int], steps: int = 4) -> Ticket:
    request = GenerationRequest(np.asarray(tokens, np.uint32), steps, GREEDY)
    return stack.scheduler.submit(request, lambda _: None)


def in_phase(stack: Stack, phase: Phase) -> Callable[[], bool]:
    return lambda: any(slot.phase is phase for slot in stack.scheduler._slots)


def test_answers_from_disk_and_ram_give_back_what_they_held(stack: Stack, held: Held) -> None:
    assert stack.answer(OLD, 4).cached == {"disk": 639}
    longer = OLD + prompt(500, seed=4)
    stack.answer(longer, 4)
    for seed in (5, 6):
        stack.answer(prompt(400, seed=seed), 4)
    assert set(stack.answer(longer, 4).cached) == {"ram", "disk"}
    assert held.payloads
    nothing_is_held(stack, held)


@pytest.mark.parametrize("phase", [Phase.RESTORE, Phase.PREFILL, Phase.DECODE])
def test_clients_that_leave(stack: Stack, held: Held, phase: Phase) -> None:
    if phase is Phase.RESTORE:
        held.gate.clear()
    ticket = submit(stack, OLD + prompt(1000, seed=4), 300)
    eventually(in_phase(stack, phase), f"it never came to {phase}")
    ticket.cancel()
    eventually(lambda: not stack.scheduler.busy(), "it is still at work")
    held.gate.set()
    nothing_is_held(stack, held)


def test_a_client_that_leaves_the_queue_while_its_prompt_is_read_ahead(
    stack: Stack, held: Held
) -> None:
    running = [submit(stack, prompt(100, seed=seed), 900) for seed in range(2)]
    eventually(lambda: all(s.phase is Phase.DECODE for s in stack.scheduler._slots), "idle")
    waiting = submit(stack, OLD)
    eventually(lambda: bool(held.payloads), "nothing is read ahead")
    waiting.cancel()
    eventually(lambda: not held.unreleased(), "a buffer is held")
    for ticket in running:
        ticket.cancel()
    nothing_is_held(stack, held)


def read_fails(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Files, fd: int, buffer: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, "no sector")

    monkeypatch.setattr(Files, "pread", fail)


def is_corrupt(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = Files.pread

    def flip(self: Files, fd: int, buffer: memoryview, offset: int) -> int:
        count = pread(self, fd, buffer, offset)
        if count:
            buffer[count // 2] ^= 1
        return count

    monkeypatch.setattr(Files, "pread", flip)


def is_gone(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    match, store = stack.cache.match, stack.store  # type: ignore[union-attr]

    def evicted(*args: Any, **how: Any) -> Any:
        found = match(*args, **how)
        assert store is not None
        store.purge()
        return found

    monkeypatch.setattr(stack.cache, "match", evicted)


def is_late(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restorer, "LATE_S", 0.05)
    pread = Files.pread

    def slow(self: Files, fd: int, buffer: memoryview, offset: int) -> int:
        time.sleep(0.3)
        return pread(self, fd, buffer, offset)

    monkeypatch.setattr(Files, "pread", slow)


def raising(method: str, error: Exception, *, times: int) -> Fault:
    def fault(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        real, left = getattr(stack.engine, method), [times]
        monkeypatch.setattr(LlamaEngine, "import_run", Engine.import_run)  # one by one

        def broken(*args: Any, **how: Any) -> Any:
            if left[0] and (method != "import_" or args[1] == 5):
                left[0] -= 1
                raise error
            return real(*args, **how)

        monkeypatch.setattr(stack.engine, method, broken)

    return fault


@pytest.mark.parametrize(
    ("fault", "fails"),
    [
        (read_fails, False),
        (is_corrupt, False),
        (is_gone, False),
        (is_late, False),
        (raising("import_", StateRejected("no"), times=1), False),
        (raising("import_", StateRejected("no"), times=9), False),
        (raising("import_", RuntimeError("a bug"), times=1), True),
        (raising("restored", RuntimeError("a bug"), times=1), True),
        (raising("decode", DecodeError("no"), times=1), False),
        (raising("decode", DecodeError("no"), times=9), True),
        (raising("decode", ContextFullError("full"), times=9), True),
        (raising("export", StateRejected("no"), times=9), False),
        (raising("export", RuntimeError("a bug"), times=1), True),
        (raising("sampler", RuntimeError("a bug"), times=1), True),
    ],
)
def test_faults(
    stack: Stack, held: Held, monkeypatch: pytest.MonkeyPatch, fault: Fault, fails: bool
) -> None:
    with monkeypatch.context() as patched:
        fault(stack, patched)
        events = stack.submit(OLD + prompt(300, seed=4), 8)
        if fails:
            with pytest.raises(SpillcacheError):
                collect(events)
        else:
            assert len(collect(events).tokens) == 8
    nothing_is_held(stack, held)


def test_a_request_that_gives_way(stack: Stack, held: Held) -> None:
    old = stack.submit(prompt(900, seed=1), 900)
    young = stack.submit(OLD, 900)
    assert len(collect(old).tokens) == 900
    assert len(collect(young).tokens) == 900
    nothing_is_held(stack, held)


def test_the_end_of_the_server_during_a_restore(
    gguf_model: ModelShelf, tmp_path: Path, held: Held
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(OLD, 1)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.cache is not None
        assert stack.store is not None
        opened = stack.store._opened
        assert opened is not None
        held.gate.clear()
        submit(stack, OLD)
        eventually(in_phase(stack, Phase.RESTORE), "it never began")
        stack.close()
        assert not opened.pins._counts
        assert stack.cache.status()["pinned_blocks"] == 0
        assert not held.unreleased()
        stack.engine.close = lambda: None  # type: ignore[method-assign]  # it was

"""What the queue's head needs from disk is read while it waits for a slot."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import GREEDY, Stack, collect, prompt

from spillcache.serve.job import Event, GenerationRequest, TextEvent
from spillcache.serve.scheduler import Scheduler

CONVERSATION = prompt(640)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.005)


class Reads:
    """Counts the streams that are opened on a store, and the payloads that they gave."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        assert stack.store is not None
        self.opened = 0
        self.payloads = 0
        self._read = stack.store.read
        monkeypatch.setattr(stack.store, "read", self._watched)

    def _watched(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        self.opened += 1
        for payload in self._read(*args, **kwargs):
            self.payloads += 1
            yield payload


@pytest.fixture
def kept(gguf_model: ModelShelf, tmp_path: Path) -> Any:
    """One slot, restarted: the conversation lies on disk only."""
    model = gguf_model("llama")
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(CONVERSATION, 1)
    with Stack(model, tmp_path / "d") as stack:
        yield stack


def occupy(stack: Stack, tokens: int = 3000) -> tuple["queue.Queue[Event]", Any]:
    """An answer that keeps the slot until it is cancelled."""
    events: queue.Queue[Event] = queue.Queue()
    request = GenerationRequest(np.asarray(prompt(100, seed=9), np.uint32), tokens, GREEDY)
    ticket = stack.scheduler.submit(request, events.put)
    assert isinstance(events.get(timeout=60), TextEvent)
    return events, ticket


def pins(stack: Stack) -> Any:
    assert stack.store is not None
    assert stack.store._opened is not None
    return stack.store._opened.pins._counts


def reader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "spillcache-restore"]


def test_it_is_read_before_there_is_a_slot_and_once_only(
    kept: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(kept, monkeypatch)
    _, busy = occupy(kept)
    waiting = kept.submit(CONVERSATION, 4)
    wait_for(lambda: reads.payloads == 10)
    assert pins(kept)
    assert waiting.empty()
    busy.cancel()
    answer = collect(waiting)
    assert answer.cached == {"disk": 639}
    assert reads.opened == 1
    wait_for(lambda: not pins(kept))


def test_the_answer_is_that_of_a_cold_prompt(gguf_model: ModelShelf, kept: Stack) -> None:
    with Stack(gguf_model("llama"), None, ram=False) as cold:
        want = cold.answer(CONVERSATION, 8).tokens
    _, busy = occupy(kept)
    waiting = kept.submit(CONVERSATION, 8)
    wait_for(lambda: bool(pins(kept)))
    busy.cancel()
    answer = collect(waiting)
    assert answer.cached == {"disk": 639}
    assert answer.tokens == want


def test_waiting_longer_than_a_block_may_take_is_not_late(
    kept: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillcache.serve.restorer.LATE_S", 0.2)
    _, busy = occupy(kept)
    waiting = kept.submit(CONVERSATION, 4)
    wait_for(lambda: bool(pins(kept)))
    time.sleep(0.4)
    busy.cancel()
    assert collect(waiting).cached == {"disk": 639}


def test_a_client_that_leaves_the_queue_gives_it_back(
    kept: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(kept, monkeypatch)
    _, busy = occupy(kept)
    request = GenerationRequest(np.asarray(CONVERSATION, np.uint32), 4, GREEDY)
    ticket = kept.scheduler.submit(request, lambda _: None)
    wait_for(lambda: reads.payloads == 10)
    ticket.cancel()
    wait_for(lambda: not pins(kept))
    wait_for(lambda: not reader_threads())
    busy.cancel()
    assert kept.answer(CONVERSATION, 1).cached == {"disk": 639}


def test_only_the_first_in_the_queue_is_read_for(
    kept: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(kept, monkeypatch)
    _, busy = occupy(kept)
    first = kept.submit(prompt(200, seed=4), 4)
    second = kept.submit(CONVERSATION, 4)
    time.sleep(0.2)
    assert reads.opened == 0
    busy.cancel()
    assert collect(first).cached == {}
    assert collect(second).cached == {"disk": 639}


def test_who_does_not_want_the_cache_is_not_read_for(
    kept: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(kept, monkeypatch)
    _, busy = occupy(kept)
    waiting = kept.submit(CONVERSATION, 4, cache_prompt=False)
    time.sleep(0.2)
    busy.cancel()
    assert collect(waiting).cached == {}
    assert reads.opened == 0


def test_ram_needs_no_reading(kept: Stack) -> None:
    assert kept.cache is not None
    other = prompt(640, seed=2)
    kept.answer(other, 1)
    _, busy = occupy(kept)
    waiting = kept.submit(other, 4)
    time.sleep(0.2)
    assert not reader_threads()
    assert all(block.pins == 0 for block in kept.cache._ram._blocks.values())
    busy.cancel()
    assert collect(waiting).cached == {"ram": 639}


def test_what_is_live_by_then_is_better(kept: Stack) -> None:
    """The first of two equal requests restores; the second waits, and goes on in its slot."""
    _, busy = occupy(kept)
    longer = [*CONVERSATION, *prompt(300, seed=3)]
    first, second = kept.submit(longer, 300), kept.submit(longer, 4)
    wait_for(lambda: bool(pins(kept)))
    busy.cancel()
    assert collect(first).cached == {"disk": 640}
    assert collect(second).cached == {"live": 896}
    wait_for(lambda: not pins(kept))


def test_what_ram_holds_by_then_is_better(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("llama")
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(CONVERSATION, 1)
    with Stack(model, tmp_path / "d") as stack:
        assert stack.cache is not None
        reads = Reads(stack, monkeypatch)
        _, busy = occupy(stack)
        longer = [*CONVERSATION, *prompt(300, seed=3)]
        waiting = stack.submit(longer, 4)
        wait_for(lambda: reads.payloads == 10)
        # As if another server had answered the same prompt meanwhile.
        with Stack(model, tmp_path / "d") as other:
            other.answer(longer, 1)
        busy.cancel()
        assert collect(waiting).cached == {"disk": 896}
        wait_for(lambda: not pins(stack))


def test_the_end_of_the_server_gives_it_back(kept: Stack) -> None:
    occupy(kept)
    kept.submit(CONVERSATION, 4)
    wait_for(lambda: bool(pins(kept)))
    kept.scheduler.stop(drain_s=0)
    wait_for(lambda: not pins(kept))
    wait_for(lambda: not reader_threads())


def test_room_is_waited_for_as_a_slot_is(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("llama")
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(CONVERSATION, 1)
    with Stack(model, tmp_path / "d", slots=2, context_tokens=1024) as stack:
        reads = Reads(stack, monkeypatch)
        running = stack.submit(prompt(300, seed=5), 200)
        assert isinstance(running.get(timeout=60), TextEvent)
        assert isinstance(stack.scheduler, Scheduler)
        waiting = stack.submit(CONVERSATION, 4)
        wait_for(lambda: reads.payloads == 10)
        assert stack.scheduler.busy() <= 2
        collect(running)
        assert collect(waiting).cached == {"disk": 639}
        assert reads.opened == 1

"""A turn's tail stays in the engine while the next turn may come, and is copied out when its slot
is needed for something else, after a moment, when somebody flushes, and at the end.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.chain import Chain
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import StateRejected
from spillcache.namespace import Namespace
from spillcache.serve import keeper
from spillcache.state import BlockState

FIRST = 150
"""Two blocks and a part of the third."""
STEPS = 4
HELD = FIRST + STEPS - 1
"""What a slot holds after a first turn: the last token of the answer was never computed."""


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of sequences whose tails were exported."""
    lengths: list[int] = []
    export = LlamaEngine.export

    def noted(self: LlamaEngine, sequence: int, block: int, **wanted: Any) -> BlockState:
        if (block + 1) * self.geometry.block_tokens > self.length(sequence):
            lengths.append(self.length(sequence))
        return export(self, sequence, block, **wanted)

    monkeypatch.setattr(LlamaEngine, "export", noted)
    return lengths


def said_in(stack: Stack, **request: Any) -> list[int]:
    """A first turn, whose end is over."""
    said = prompt(FIRST) + stack.answer(prompt(FIRST), STEPS, **request).tokens
    stack.scheduler._errands.do(lambda: None)
    return said


def tail_of(stack: Stack, said: list[int]) -> bool:
    """Whether RAM has the tail of what was said."""
    chain = Chain(Namespace.of(dict(stack.engine.identity)), 64, said[:-1])
    assert stack.cache is not None
    return not stack.cache.wants(chain, chain.blocks, boundary=True)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_turn_that_comes_at_once_needs_no_copy(
    gguf_model: ModelShelf, exported: list[int], kind: str
) -> None:
    with Stack(gguf_model(kind), None) as stack:
        said = said_in(stack)
        answer = stack.answer([*said, *prompt(20, seed=1)], STEPS)
        assert answer.cached == {"live": HELD}
        stack.scheduler._errands.do(lambda: None)
        assert exported == []
        assert not tail_of(stack, said)
        stack.scheduler.settle(10)
        assert exported == [FIRST + STEPS + 20 + STEPS - 1]
        stack.scheduler.settle(10)
        assert len(exported) == 1, "it is done"


def test_after_a_moment_it_is_copied_out(
    gguf_model: ModelShelf, exported: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "TAIL_WAIT_S", 0.2)
    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        until = time.monotonic() + 30
        while not tail_of(stack, said):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert exported == [HELD]
        assert stack.answer([*said, 7], STEPS).cached == {"live": HELD}


def test_also_while_others_are_answered(
    gguf_model: ModelShelf, exported: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), None, slots=2) as stack:
        said = said_in(stack)
        monkeypatch.setattr(keeper, "TAIL_WAIT_S", 1000.0)
        stack.scheduler._errands.do(lambda: setattr(stack.scheduler._slots[0], "tail_due", 0.0))
        stack.answer(prompt(100, seed=5), STEPS)
        assert tail_of(stack, said)
        assert exported == [HELD]


def test_who_takes_the_slot_has_it_copied_out_first(
    gguf_model: ModelShelf, exported: list[int]
) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        stack.answer(prompt(100, seed=5), STEPS)
        assert exported == [HELD]
        assert stack.answer([*said, 7], STEPS).cached == {"ram": HELD}


def test_so_has_who_goes_back_within_the_conversation(
    gguf_model: ModelShelf, exported: list[int]
) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        assert stack.answer([*said[:140], *prompt(20, seed=2)], STEPS).cached == {"live": 128}
        assert exported == [HELD]
        assert tail_of(stack, said)


def test_so_has_who_goes_on_and_keeps_nothing(gguf_model: ModelShelf, exported: list[int]) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        answer = stack.answer([*said, *prompt(20, seed=1)], STEPS, cache_store=False)
        assert answer.cached == {"live": HELD}
        assert exported == [HELD]
        assert tail_of(stack, said)


def test_what_is_flushed_holds_it(
    gguf_model: ModelShelf, tmp_path: Path, exported: list[int]
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        said = said_in(stack)
        chain = Chain(Namespace.of(dict(stack.engine.identity)), 64, said[:-1])
        stack.scheduler.settle(10)
        assert stack.cache is not None
        assert stack.store is not None
        assert stack.cache.flush().left == 0
        (tails,) = stack.store.tails(chain.namespace.id, [chain.parent(chain.blocks)])
        names = {entry.block for entries in tails for entry in entries.values()}
        assert names == {chain.hash_of(chain.blocks)}
        assert exported == [HELD]


def test_the_end_of_the_server_does_not_come_before_it(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        said = said_in(stack)
        assert not tail_of(stack, said)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.answer([*said, 7], 1).cached == {"disk": HELD}


def test_a_recurrent_state_is_copied_at_once(gguf_model: ModelShelf) -> None:
    """No sequence can go back to it."""
    with Stack(gguf_model("lfm2"), None) as stack:
        assert tail_of(stack, said_in(stack))


@pytest.mark.parametrize("kept", [{"cache_store": False}, {"cache_prompt": False}])
def test_who_is_not_to_be_kept_leaves_none(
    gguf_model: ModelShelf, exported: list[int], kept: dict[str, bool]
) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        said_in(stack, **kept)
        stack.scheduler.settle(10)
        assert exported == []


@pytest.mark.parametrize("error", [StateRejected("not now"), ZeroDivisionError("a bug")])
def test_a_tail_that_cannot_be_copied_is_logged_and_not_missed(
    gguf_model: ModelShelf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*_: object, **__: object) -> BlockState:
        raise error

    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(LlamaEngine, "export", fail)
            stack.scheduler.settle(10)
        assert "a tail was not kept" in caplog.text
        assert not tail_of(stack, said)
        assert stack.answer([*said, 7], STEPS).cached == {"live": HELD}


def test_nobody_waits_for_a_busy_engine_beyond_the_time_given(gguf_model: ModelShelf) -> None:
    go_on = threading.Event()
    with Stack(gguf_model("llama"), None) as stack:
        said = said_in(stack)
        stack.scheduler._errands.move(lambda _: go_on.wait(60))
        stack.scheduler.settle(0.01)
        assert not tail_of(stack, said)
        go_on.set()
        stack.scheduler.settle(10)
        assert tail_of(stack, said)

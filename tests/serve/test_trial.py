"""Blocks that are whole and fail when they are used: the client gets its answer, and they go."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import GREEDY, Answer, Stack, collect, prompt

from spillcache.engine.base import Chunk
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_memory import LlamaMemory
from spillcache.errors import DecodeError, StateRejected
from spillcache.serve.job import GenerationRequest, Ticket
from spillcache.state import Part
from spillcache.store.block_store import StoreObject
from spillcache.store.writer import Writer

PROMPT = prompt(640)
BAD = 4
"""The block that is poisoned."""


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.005)


def counted(stack: Stack, name: str, **labels: str) -> float:
    return stack.metrics.registry.get_sample_value(f"spillcache_{name}", labels) or 0.0


def nan_rows(payload: Any) -> bytes:
    """The same state with the last values of its last layer not numbers (f16)."""
    return bytes(payload[:-64]) + b"\x00\x7e" * 32


@pytest.fixture
def cold(gguf_model: ModelShelf) -> Answer:
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        return stack.answer(PROMPT, 16)


@pytest.fixture
def poisoned(gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose block BAD is sound by every checksum and holds no numbers."""
    put_each = Writer.put_each

    def bad(o: StoreObject) -> StoreObject:
        return replace(o, payload=nan_rows(o.payload)) if o.block_index == BAD else o

    def poison(self: Writer, namespace: Any, batches: Any, done: Any) -> None:
        put_each(self, namespace, [[bad(o) for o in batch] for batch in batches], done)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "put_each", poison)
        with Stack(gguf_model("llama"), tmp_path / "d") as stack:
            stack.answer(PROMPT, 1)
    return tmp_path / "d"


def test_state_that_gives_no_numbers_is_answered_cold_and_goes(
    gguf_model: ModelShelf, poisoned: Path, cold: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    with Stack(gguf_model("llama"), poisoned) as stack:
        answer = stack.answer(PROMPT, 16)
        assert answer.tokens == cold.tokens
        assert answer.logits is not None
        assert np.array_equal(answer.logits[-16:], cold.logits), "the first row is of the failure"
        assert answer.cached == {}
        assert answer.done is not None
        assert answer.done.timings.restored == {"disk": 640}
        assert answer.done.timings.refused == {"ENGINE_DECODE": 639}
        assert counted(stack, "restored_tokens_total", tier="disk") == 640
        assert counted(stack, "refused_tokens_total", tier="disk", reason="ENGINE_DECODE") == 639
        assert counted(stack, "prompt_tokens_total", source="computed") == 640
        assert counted(stack, "condemned_blocks_total") == 10
        assert "10 blocks failed in use and are deleted: the logits are not numbers" in caplog.text
        assert stack.cache is not None
        assert stack.cache.flush().left == 0
        assert not stack.cache.doubts.blocks
    with Stack(gguf_model("llama"), poisoned) as stack:
        again = stack.answer(PROMPT, 16)
        assert again.cached == {"disk": 639}, "what was computed anew took its place"
        assert np.array_equal(again.logits, cold.logits)


def test_what_was_computed_from_it_goes_too(
    gguf_model: ModelShelf, poisoned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The blocks after the restored ones were offered before the logits told."""
    longer = PROMPT + prompt(500, seed=5)
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        cold = stack.answer(longer, 4)
    with Stack(gguf_model("llama"), poisoned) as stack:
        answer = stack.answer(longer, 4)
        assert answer.logits is not None
        assert np.array_equal(answer.logits[-4:], cold.logits)
        assert counted(stack, "condemned_blocks_total") == len(longer) // 64
        stack.answer(prompt(700, seed=8), 1)
        from_ram = stack.answer(longer, 4)
        assert from_ram.cached == {"ram": len(longer) // 64 * 64}
        assert np.array_equal(from_ram.logits, cold.logits)
    with Stack(gguf_model("llama"), poisoned) as stack:
        assert np.array_equal(stack.answer(longer, 4).logits, cold.logits)


def test_a_poisoned_block_in_ram_goes(gguf_model: ModelShelf, cold: Answer) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        stack.answer(PROMPT, 1)
        stack.answer(prompt(700, seed=8), 1)
        assert stack.cache is not None
        for block in stack.cache._ram.all():
            if block.index == BAD:
                view = block.parts[Part.KV]
                view[:] = nan_rows(view)
        answer = stack.answer(PROMPT, 16)
        assert answer.logits is not None
        assert np.array_equal(answer.logits[-16:], cold.logits)
        assert answer.cached == {}
        stack.answer(prompt(700, seed=8), 1)
        again = stack.answer(PROMPT, 16)
        assert again.cached == {"ram": 639}
        assert np.array_equal(again.logits, cold.logits)


def failing(stack: Stack, fails: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decode calls of a prompt's end fail while ``fails`` says so."""
    decode, failures = stack.engine.decode, [0]

    def broken(chunks: list[Chunk]) -> None:
        decode(chunks)
        if any(c.logits for c in chunks) and fails():
            failures[0] += 1
            raise DecodeError("llama_decode failed with code -3")

    monkeypatch.setattr(stack.engine, "decode", broken)
    return failures


@pytest.fixture
def filled(gguf_model: ModelShelf, tmp_path: Path) -> Path:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(PROMPT, 1)
    return tmp_path / "d"


def test_a_decode_that_fails_after_a_restore_is_tried_cold(
    gguf_model: ModelShelf, filled: Path, cold: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), filled) as stack:
        once = iter([True])
        failures = failing(stack, lambda: next(once, False), monkeypatch)
        answer = stack.answer(PROMPT, 16)
        assert failures == [1]
        assert answer.tokens == cold.tokens
        assert counted(stack, "errors_total", code="ENGINE_DECODE") == 1
        assert counted(stack, "condemned_blocks_total") == 10
        assert counted(stack, "requests_total", outcome="error") == 0


def test_an_engine_that_fails_anyway_acquits_the_blocks(
    gguf_model: ModelShelf, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), filled) as stack:
        with monkeypatch.context() as patched:
            failures = failing(stack, lambda: True, patched)
            with pytest.raises(DecodeError):
                stack.answer(PROMPT, 16)
            assert failures == [2], "restored, then cold"
        assert counted(stack, "condemned_blocks_total") == 0
        assert stack.cache is not None
        assert not stack.cache.doubts.blocks
        again = stack.answer(PROMPT, 16).cached
        assert again == {"ram": 576, "disk": 63}, "RAM has what the second try computed"


def test_a_client_that_leaves_acquits_them_too(
    gguf_model: ModelShelf, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), filled) as stack:
        request = GenerationRequest(np.asarray(PROMPT, np.uint32), 4, GREEDY)
        tickets: list[Ticket] = []

        def fails() -> bool:
            tickets[0].cancel()
            return True

        with monkeypatch.context() as patched:
            failures = failing(stack, fails, patched)
            with stack.scheduler._wake:  # nothing is begun before its ticket is here
                tickets.append(stack.scheduler.submit(request, lambda _: None))
            eventually(lambda: failures == [1] and not stack.scheduler.busy())
            eventually(lambda: not len(stack.scheduler._queue))
        assert stack.cache is not None
        eventually(lambda: stack.cache is not None and not stack.cache.doubts.blocks)
        assert counted(stack, "condemned_blocks_total") == 0


def test_a_block_that_the_engine_refuses_does_not_come_back(
    gguf_model: ModelShelf,
    filled: Path,
    cold: Answer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals: list[int] = []
    import_run = LlamaEngine.import_run

    def refuse(self: LlamaEngine, sequence: int, block: int, states: Any) -> int:
        if block <= BAD < block + len(states) and not refusals:
            short = {Part.KV: bytes(states[BAD - block][Part.KV][:-1])}  # by a byte
            states = [*states[: BAD - block], short, *states[BAD - block + 1 :]]
            refusals.extend([BAD] * (block == BAD))
        return import_run(self, sequence, block, states)

    monkeypatch.setattr(LlamaEngine, "import_run", refuse)
    with caplog.at_level(logging.WARNING), Stack(gguf_model("llama"), filled) as stack:
        answer = stack.answer(PROMPT, 16)
        assert np.array_equal(answer.logits, cold.logits)
        assert answer.cached == {"disk": BAD * 64}
        assert answer.done is not None
        assert answer.done.timings.refused == {StateRejected.code: 640 - BAD * 64}
        assert refusals == [BAD]
        assert counted(stack, "condemned_blocks_total") == 1
    with Stack(gguf_model("llama"), filled) as stack:
        assert stack.answer(PROMPT, 16).cached == {"disk": 639}, "it was computed and put anew"


def test_of_blocks_that_are_refused_together_only_the_one_to_blame_goes(
    gguf_model: ModelShelf, cold: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp takes several as one, and does not say which it refuses: then one by one."""
    runs: list[int] = []
    import_run, take = LlamaEngine.import_run, LlamaMemory.set

    def watch(self: LlamaEngine, sequence: int, block: int, states: Any) -> int:
        runs.append(len(states))
        return import_run(self, sequence, block, states)

    with Stack(gguf_model("llama"), None) as stack:
        stack.answer(PROMPT, 1)
        stack.answer(prompt(700, seed=8), 1)
        assert stack.cache is not None
        # Of the two prompts' the first that came.
        rows = next(bytes(b.parts[Part.KV])[-64:] for b in stack.cache._ram.all() if b.index == BAD)

        def refuse(self: LlamaMemory, sequence: int, blob: Any, *rest: int) -> None:
            if rows in bytes(blob):
                raise StateRejected("one of them")
            take(self, sequence, blob, *rest)

        monkeypatch.setattr(LlamaEngine, "import_run", watch)
        monkeypatch.setattr(LlamaMemory, "set", refuse)
        answer = stack.answer(PROMPT, 16)
        assert np.array_equal(answer.logits, cold.logits)
        assert answer.cached == {"ram": BAD * 64}
        assert runs[0] > 1
        assert runs[1 : BAD + 2] == [1] * (BAD + 1)
        assert counted(stack, "condemned_blocks_total") == 1
        assert answer.done is not None
        assert answer.done.timings.refused == {StateRejected.code: 640 - BAD * 64}


@pytest.mark.parametrize("tokens", [852, 1000])
def test_no_block_is_to_blame_where_another_conversation_has_windows(
    gguf_model: ModelShelf, tmp_path: Path, tokens: int
) -> None:
    """From disk beside a resting one: the ring is not empty, as it is in a cold run."""
    first, long = prompt(300, seed=1), prompt(tokens, seed=2)
    with Stack(gguf_model("gemma3"), tmp_path, slots=2) as stack:
        stack.answer(first, 4)
        cold = stack.answer(long, 4)
    with Stack(gguf_model("gemma3"), tmp_path, slots=2) as stack:
        assert stack.answer(first, 4).cached == {"disk": 256}
        again = stack.answer(long, 4)
        assert again.cached == {"disk": (tokens - 1) // 64 * 64}
        assert again.tokens == cold.tokens
        assert counted(stack, "condemned_blocks_total") == 0


def test_what_a_client_left_on_trial_is_still_on_trial(
    gguf_model: ModelShelf, poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left before the restored state had given logits; the next one goes on from it, live."""
    longer = PROMPT + prompt(900, seed=5)
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        cold = stack.answer(longer, 4)
    with Stack(gguf_model("llama"), poisoned) as stack:
        request = GenerationRequest(np.asarray(longer, np.uint32), 4, GREEDY)
        tickets: list[Ticket] = []
        with monkeypatch.context() as patched:
            decode = stack.engine.decode

            def last_call(chunks: list[Chunk]) -> None:
                decode(chunks)
                tickets[0].cancel()

            patched.setattr(stack.engine, "decode", last_call)
            with stack.scheduler._wake:
                tickets.append(stack.scheduler.submit(request, lambda _: None))
            eventually(lambda: stack.engine.length(0) > 640 and not stack.scheduler.busy())
        assert stack.scheduler._slots[0].on_trial == 10
        answer = stack.answer(longer, 4)
        assert answer.logits is not None
        assert np.array_equal(answer.logits[-4:], cold.logits)
        assert counted(stack, "condemned_blocks_total") == len(longer) // 64


def test_a_fork_of_a_slot_on_trial_is_on_trial(
    gguf_model: ModelShelf, poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests at once: the second goes on from what the first has restored."""
    longer = PROMPT + prompt(1500, seed=5)
    other = PROMPT + prompt(70, seed=6)
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        cold = [stack.answer(longer, 2), stack.answer(other, 2)]
    with Stack(gguf_model("llama"), poisoned, slots=2) as stack:
        answers = [stack.submit(longer, 2), stack.submit(other, 2)]
        done = [collect(events) for events in answers]
        assert [a.tokens for a in done] == [a.tokens for a in cold]

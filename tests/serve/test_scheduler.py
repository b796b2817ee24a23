"""The scheduler over the real engine and tiers, on tiny models."""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import GREEDY, Stack, collect, prompt

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, Engine
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import (
    ContextFullError,
    DecodeError,
    EngineError,
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    StateRejected,
)
from spillcache.metrics import Metrics
from spillcache.serve import restorer
from spillcache.serve.job import DoneEvent, ErrorEvent, Event, GenerationRequest, TextEvent
from spillcache.serve.scheduler import Scheduler
from spillcache.serve.slots import Phase


@pytest.fixture
def stack(gguf_model: ModelShelf, tmp_path: Path) -> Any:
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as running:
        yield running


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.005)


def first_token(events: "queue.Queue[Event]") -> None:
    assert isinstance(events.get(timeout=60), TextEvent)


def request(tokens: list[int], steps: int = 4) -> GenerationRequest:
    return GenerationRequest(np.asarray(tokens, np.uint32), steps, GREEDY)


# What comes back.


def test_an_answer_has_its_tokens_usage_and_timings(stack: Stack) -> None:
    answer = stack.answer(prompt(300), 10)
    assert len(answer.tokens) == 10
    assert answer.done is not None
    assert answer.done.reason == "length"
    assert (answer.done.usage.prompt, answer.done.usage.generated) == (300, 10)
    timings = answer.done.timings
    assert timings.prompt_ms > 0
    assert timings.predicted_ms > 0
    assert timings.restored_bytes == 0
    assert stack.metrics.registry.get_sample_value(
        "spillcache_prompt_tokens_total", {"source": "computed"}
    ) == 300  # fmt: skip


def test_a_stop_string_ends_the_answer(stack: Stack) -> None:
    free = stack.answer(prompt(100), 32)
    at = next(i for i in range(4, len(free.text)) if free.text[i] not in free.text[:i])
    cut = stack.answer(prompt(100), 32, stop=(free.text[at],))
    assert cut.text == free.text[:at]
    assert cut.done is not None
    assert cut.done.reason == "stop"
    assert cut.done.stop_string == free.text[at]


def test_many_at_once_are_all_answered_as_alone(gguf_model: ModelShelf) -> None:
    prompts = [prompt(70 + 90 * i, seed=i) for i in range(7)]
    with Stack(gguf_model("llama"), None, ram=False) as alone:
        want = [alone.answer(p, 4).logits for p in prompts]
    with Stack(gguf_model("llama"), None, slots=3) as stack:
        answers = [stack.submit(p, 4) for p in prompts]
        done = [collect(events) for events in answers]
        assert [len(a.tokens) for a in done] == [4] * 7
        # Beside other sequences the bits may differ, the meaning may not.
        assert {sequence for sequence, _ in stack.engine.rows} == {0, 1, 2}
        got = [stack.answer(p, 4).logits for p in prompts]
    for cold, warm in zip(want, got, strict=True):
        assert cold is not None
        assert warm is not None
        assert np.abs(cold[0] - warm[0]).max() < 0.05 * np.abs(cold[0]).max()


def test_a_conversation_goes_on_live(stack: Stack) -> None:
    first = stack.answer(prompt(200), 30)
    turn = prompt(200) + first.tokens + prompt(40, seed=3)
    assert stack.answer(turn, 4).cached == {"live": 229}, "all but the last sampled token"


def test_another_slots_prefix_is_forked_and_stays_live(stack: Stack) -> None:
    system = prompt(640)
    long = stack.answer(system + prompt(900, seed=4), 4)
    branch = stack.answer(system + prompt(50, seed=5), 4)
    assert long.cached == {}
    assert branch.cached == {"live": 640}
    again = stack.answer(system + prompt(900, seed=4) + long.tokens + [7], 4)
    assert again.cached == {"live": 640 + 900 + 3}


def test_a_fork_of_a_busy_slot_with_windows_does_not_wait_for_it(gguf_model: ModelShelf) -> None:
    shared = prompt(1984)
    with Stack(
        gguf_model("gemma3"), None, context_tokens=8192, ubatch_tokens=256, slots=3, threads=1
    ) as stack:
        first = stack.submit([*shared, 7], 2000)
        assert isinstance(first.get(timeout=60), TextEvent)
        others = [stack.submit([*shared, *prompt(600, seed=s)], 4) for s in (4, 5)]
        for other in others:
            assert collect(other).cached == {"live": 1984}
        assert stack.scheduler.busy() == 1, "the first goes on"


def test_two_alternating_conversations_both_stay_cached(gguf_model: ModelShelf) -> None:
    a, b = prompt(500, seed=1), prompt(500, seed=2)
    with Stack(gguf_model("llama"), None) as stack:
        stack.answer(a)
        stack.answer(b)
        for _ in range(3):
            assert stack.answer(a).cached == {"ram": 448}
            assert stack.answer(b).cached == {"ram": 448}


# What the client may ask of the cache.


def at_rest(stack: Stack) -> object:
    """How many blocks RAM holds, once the turn before has been put away: a step comes after it."""
    assert stack.cache is not None
    stack.answer([5], 1, cache_prompt=False)
    return stack.cache.status()["blocks"]


def test_cache_prompt_false_neither_reads_nor_stores(stack: Stack) -> None:
    assert stack.cache is not None
    stack.answer(prompt(300), cache_prompt=False)
    assert at_rest(stack) == 0
    stack.answer(prompt(300))
    assert stack.answer(prompt(300), cache_prompt=False).cached == {}


def test_cache_store_false_reads_but_stores_nothing(stack: Stack) -> None:
    assert stack.cache is not None
    stack.answer(prompt(300))
    deadline = time.monotonic() + 10
    while stack.cache.status()["blocks"] != 5:  # four and a tail, which is kept after the answer
        assert time.monotonic() < deadline
        time.sleep(0.005)
    side = prompt(300) + prompt(200, seed=8)
    assert stack.answer(side, cache_store=False).cached == {"live": 256}
    assert at_rest(stack) == 5


def test_a_salt_separates_tenants(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(300), salt=b"one")
        assert stack.answer(prompt(300), salt=b"two").cached == {}
        assert stack.answer(prompt(300), salt=b"one").cached == {"ram": 256}
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.answer(prompt(300)).cached == {}
        assert stack.answer(prompt(300), salt=b"two").cached == {"disk": 256}


# Refusals.


def test_requests_that_can_not_be_served_are_refused(stack: Stack) -> None:
    for tokens, error in (
        ([], RequestError),
        ([512], RequestError),
        (prompt(4096), PromptTooLong),
    ):
        with pytest.raises(error):
            stack.scheduler.submit(request(tokens), lambda _: None)


def test_a_full_queue_refuses(gguf_model: ModelShelf) -> None:
    engine = LlamaEngine(EngineConfig(gguf_model("llama"), context_tokens=1024, threads=1))
    scheduler = Scheduler(engine, Metrics(), queue_limit=2)  # not started: nothing leaves it
    for _ in range(2):
        scheduler.submit(request([5]), lambda _: None)
    with pytest.raises(Overloaded):
        scheduler.submit(request([5]), lambda _: None)
    scheduler.stop(0)
    with pytest.raises(NotReady):
        scheduler.submit(request([5]), lambda _: None)
    engine.close()


# Cancellation and the end.


def test_a_cancelled_answer_stops_and_its_slot_stays_live(stack: Stack) -> None:
    events: queue.Queue[Event] = queue.Queue()
    ticket = stack.scheduler.submit(request(prompt(300), 3000), events.put)
    first_token(events)
    ticket.cancel()
    ticket.cancel()
    wait_for(lambda: stack.scheduler.busy() == 0)
    while not events.empty():
        assert isinstance(events.get(), TextEvent)
    assert stack.answer(prompt(300) + prompt(9, seed=2)).cached["live"] >= 256


def test_a_cancelled_request_in_the_queue_is_never_begun(stack: Stack) -> None:
    running = [stack.submit(prompt(100, seed=i), 400) for i in range(2)]
    events: queue.Queue[Event] = queue.Queue()
    ticket = stack.scheduler.submit(request(prompt(100), 4), events.put)
    ticket.cancel()
    for answer in running:
        assert len(collect(answer).tokens) == 400
    assert stack.answer(prompt(64, seed=9)).done is not None
    assert events.empty()


def test_stop_lets_running_answers_end_and_refuses_the_rest(stack: Stack) -> None:
    running = [stack.submit(prompt(100, seed=i), 300) for i in range(2)]
    for answer in running:
        first_token(answer)
    waiting = stack.submit(prompt(50), 4)
    stack.scheduler.stop(drain_s=60)
    for answer in running:
        assert len(collect(answer).tokens) == 299
    refused = waiting.get(timeout=5)
    assert isinstance(refused, ErrorEvent)
    assert isinstance(refused.error, NotReady)


def test_stop_cuts_answers_that_take_too_long(stack: Stack) -> None:
    running = stack.submit(prompt(100), 3900)
    first_token(running)
    stack.scheduler.stop(drain_s=0)
    *_, last = list(running.queue)
    assert isinstance(last, ErrorEvent)
    assert isinstance(last.error, NotReady)
    assert not stack.scheduler.alive


# A full context.


def test_an_answer_ends_where_the_context_does(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, context_tokens=256) as stack:
        answer = stack.answer(prompt(200), 1000)
        assert answer.done is not None
        assert answer.done.reason == "length"
        assert len(answer.tokens) == 57, "256 cells, and one token that is not decoded"


def test_idle_conversations_give_way(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, context_tokens=1024, slots=3) as stack:
        for seed in range(3):
            stack.answer(prompt(300, seed=seed), 2)
        assert len(stack.answer(prompt(700, seed=9), 100).tokens) == 100
        assert stack.answer(prompt(300, seed=0), 2).cached["ram"] == 256


def test_the_youngest_gives_way_and_is_taken_up_again(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, context_tokens=1024, slots=2) as stack:
        old = stack.submit(prompt(300, seed=1), 500)
        first_token(old)
        young = stack.submit(prompt(300, seed=2), 500)
        assert len(collect(old).tokens) == 499
        answer = collect(young)
        assert len(answer.tokens) == 500
        assert answer.done is not None
        assert answer.done.usage.prompt == 300
        assert answer.done.usage.generated == 500


def test_a_prompt_that_gives_way_is_counted_as_it_is_taken_up(
    gguf_model: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it went on from at first is not what it goes on from in the end."""
    with Stack(gguf_model("llama"), None, slots=2, ubatch_tokens=64) as stack:
        stack.answer(prompt(400, seed=1), 1)
        decode, full = stack.engine.decode, list[int]()

        def once(chunks: list[Chunk]) -> None:
            if len(chunks) == 1 and len(chunks[0].tokens) > 1 and len(full) == 1:
                full.append(chunks[0].sequence)
                raise ContextFullError("full")
            decode(chunks)

        monkeypatch.setattr(stack.engine, "decode", once)
        old = stack.submit(prompt(60, seed=5), 400)
        first_token(old)
        full.append(-1)
        young = stack.answer(prompt(400, seed=1) + prompt(300, seed=3), 4)
        assert len(full) == 2
        assert young.cached == {"ram": 400}
        assert len(collect(old).tokens) == 399
        computed = stack.metrics.registry.get_sample_value(
            "spillcache_prompt_tokens_total", {"source": "computed"}
        )
        assert computed == 400 + 60 + 300


# Faults.


def test_a_full_context_is_not_the_block_s_fault(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(640), 1)
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as stack:
        stack.answer(prompt(100, seed=7), 1)
        import_run, left = stack.engine.import_run, [1]

        def full(sequence: int, block: int, states: Any) -> int:
            if left[0] and block:
                left[0] -= 1
                raise ContextFullError("full")
            return import_run(sequence, block, states[:2])

        monkeypatch.setattr(stack.engine, "import_run", full)
        answer = stack.answer(prompt(640), 4)
        assert answer.cached == {"disk": 639}
        assert answer.done is not None
        assert answer.done.timings.refused == {}, "in the end nothing was"
        assert left == [0]
        assert stack.metrics.registry.get_sample_value("spillcache_condemned_blocks_total") == 0


def test_a_failed_decode_fails_its_requests_only(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = stack.engine.decode

    def broken(chunks: list[Chunk]) -> None:
        decode(chunks)
        raise DecodeError("llama_decode failed with code -3")

    monkeypatch.setattr(stack.engine, "decode", broken)
    with pytest.raises(DecodeError):
        stack.answer(prompt(300))
    monkeypatch.setattr(stack.engine, "decode", decode)
    assert stack.answer(prompt(300)).done is not None
    assert stack.metrics.registry.get_sample_value(
        "spillcache_errors_total", {"code": "ENGINE_DECODE"}
    ) == 1  # fmt: skip


def test_a_context_that_stays_full_fails_the_prompt(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(chunks: list[Chunk]) -> None:
        raise ContextFullError("full")

    with monkeypatch.context() as patched:
        patched.setattr(stack.engine, "decode", full)
        with pytest.raises(ContextFullError):
            stack.answer(prompt(300))
    assert stack.answer(prompt(300)).done is not None


def test_a_bug_fails_the_requests_at_hand_not_the_server(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stack.engine, "sampler", None)
        with pytest.raises(EngineError, match="internal error: TypeError"):
            stack.answer(prompt(300))
    assert stack.answer(prompt(300)).done is not None


def test_a_block_that_can_not_be_exported_is_not_kept(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StateRejected("no")

    monkeypatch.setattr(stack.engine, "export", refuse)
    assert len(stack.answer(prompt(300)).tokens) == 8
    assert stack.cache is not None
    assert stack.cache.status()["blocks"] == 0


@pytest.mark.parametrize("failures", [1, 3])
def test_a_restore_that_the_engine_refuses_is_tried_shorter_then_cold(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        cold = stack.answer(prompt(640), 16)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(640), 1)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        left = [failures]
        import_ = stack.engine.import_

        def fail(sequence: int, block: int, state: Any, tokens: int | None = None) -> None:
            import_(sequence, block, state, tokens)
            if block == 5 - (failures - left[0]) and left[0]:
                left[0] -= 1
                raise StateRejected("half-written state stays behind")

        monkeypatch.setattr(stack.engine, "import_", fail)
        monkeypatch.setattr(LlamaEngine, "import_run", Engine.import_run)  # one by one
        warm = stack.answer(prompt(640), 16)
        assert left == [0]
        assert warm.cached == ({"disk": 5 * 64} if failures == 1 else {})
    assert warm.tokens == cold.tokens
    assert np.array_equal(warm.logits, cold.logits)


def test_a_restore_whose_blocks_do_not_come_is_given_up(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        cold = stack.answer(prompt(640), 16)
    monkeypatch.setattr(restorer, "LATE_S", 0.05)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.store is not None
        read = stack.store.read

        def slow(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            for payload in read(entries, stop, memory_bytes):
                while payload.entry.block_index >= 3 and not stop():
                    time.sleep(0.01)
                yield payload

        monkeypatch.setattr(stack.store, "read", slow)
        warm = stack.answer(prompt(640), 16)
        assert warm.cached.get("disk", 0) <= 3 * 64
    assert np.array_equal(warm.logits, cold.logits)


def test_a_disk_that_hangs_is_not_asked_again_for_this_prompt(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        cold = stack.answer(prompt(640), 8)
    monkeypatch.setattr(restorer, "LATE_S", 1.0)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.store is not None
        read, go, streams = stack.store.read, threading.Event(), list[int]()

        def hangs(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            streams.append(1)
            payloads = read(entries, stop, memory_bytes)
            yield next(payloads)
            go.wait(30)  # whatever it is told, as a read that hangs
            yield from payloads

        monkeypatch.setattr(stack.store, "read", hangs)
        warm = stack.answer(prompt(640), 8)
        assert warm.cached == {}
        assert len(streams) == 1
        assert stack.store._opened is not None
        assert stack.store._opened.pins._counts, "a read goes on in what they protect"
        go.set()
        wait_for(lambda: not stack.store._opened.pins._counts)
    assert np.array_equal(warm.logits, cold.logits)


def test_a_restore_whose_blocks_trickle_is_given_up(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is in time, all of them together are not."""
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        cold = stack.answer(prompt(640), 8)
    monkeypatch.setattr(restorer, "LATE_S", 1.0)
    monkeypatch.setattr(restorer, "SLOWEST_BYTES_PER_S", 1e12)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.store is not None
        read = stack.store.read

        def trickle(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            for payload in read(entries, stop, memory_bytes):
                until = time.monotonic() + 0.4
                while time.monotonic() < until and not stop():
                    time.sleep(0.01)
                yield payload

        monkeypatch.setattr(stack.store, "read", trickle)
        warm = stack.answer(prompt(640), 8)
        assert warm.cached == {}
        wait_for(lambda: not stack.store._opened.pins._counts)
    assert np.array_equal(warm.logits, cold.logits)


def test_a_restore_goes_on_beside_an_answer(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(2000), 1)
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as stack:
        long = stack.submit(prompt(100, seed=3), 1900)
        first_token(long)
        assert collect(stack.submit(prompt(2000), 2)).cached == {"disk": 1984}
        assert long.qsize() < 1899, "the restore came first"
        assert len(collect(long).tokens) == 1899


def test_a_restore_does_not_wait_for_long_prefill_calls(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks come a little later than it looks for the first: then a call of another's prompt
    is what it waits for.
    """
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(640), 1)
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as stack:
        assert stack.store is not None
        read, decode = stack.store.read, stack.engine.decode
        go, sizes = threading.Event(), list[int]()

        def later(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            assert go.wait(30)
            yield from read(entries, stop, memory_bytes)

        def noted(chunks: list[Chunk]) -> None:
            sizes.append(sum(len(chunk.tokens) for chunk in chunks))
            decode(chunks)
            time.sleep(0.2)  # a slow machine: the pace allows no more than a block
            if len(sizes) == 4:
                go.set()

        monkeypatch.setattr(stack.store, "read", later)
        monkeypatch.setattr(stack.engine, "decode", noted)
        restoring = stack.submit(prompt(640), 1)
        other = stack.submit(prompt(1500, seed=2), 1)
        assert collect(restoring).cached == {"disk": 639}
        assert sizes[:4] == [64] * 4
        monkeypatch.setattr(stack.engine, "decode", decode)
        collect(other)


def test_answers_go_on_while_another_prompt_is_prefilled(
    gguf_model: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), None, slots=2) as stack:
        calls: list[int] = []
        decode = stack.engine.decode

        def noted(chunks: list[Chunk]) -> None:
            calls.append(max(len(chunk.tokens) for chunk in chunks))
            decode(chunks)

        long = stack.submit(prompt(100, seed=3), 3000)
        first_token(long)
        monkeypatch.setattr(stack.engine, "decode", noted)
        assert collect(stack.submit(prompt(900), 1)).done is not None
        prefills = [i for i, size in enumerate(calls) if size > 1]
        assert len(prefills) >= 3
        assert all(later > earlier + 1 for earlier, later in itertools.pairwise(prefills))
        assert long.qsize() < 2999, "the prefill ended first"


def test_a_client_that_leaves_during_a_restore_frees_everything(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(640), 1)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        assert stack.store is not None
        read = stack.store.read

        def stuck(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            payloads = read(entries, stop, memory_bytes)
            yield next(payloads)
            while not stop():
                time.sleep(0.01)
            payloads.close()

        with monkeypatch.context() as patched:
            patched.setattr(stack.store, "read", stuck)
            ticket = stack.scheduler.submit(request(prompt(640)), lambda _: None)
            slot = stack.scheduler._slots[0]
            wait_for(lambda: slot.phase is Phase.RESTORE)
            ticket.cancel()
            wait_for(lambda: slot.phase is Phase.IDLE)
        assert slot.restore is None
        assert stack.engine.length(0) == 0
        assert stack.answer(prompt(640), 1).cached == {"disk": 639}


def test_before_the_cache_is_attached_requests_are_served_live(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        stack.answer(prompt(300))
        assert stack.answer(prompt(300)).cached == {"live": 256}
        assert isinstance(stack.answer(prompt(300)).done, DoneEvent)


def test_a_bug_in_admission_fails_that_request_and_no_other(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    with monkeypatch.context() as patched:
        patched.setattr(stack.cache, "match", broken)
        with pytest.raises(EngineError, match="internal error: RuntimeError"):
            stack.answer(prompt(300))
    assert stack.answer(prompt(300)).done is not None


def test_a_bug_at_the_end_of_a_turn_leaves_the_slot_usable(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(stack.cache, "used", broken)
        assert len(stack.answer(prompt(300)).tokens) == 8
        wait_for(lambda: stack.scheduler.busy() == 0)
    assert stack.scheduler._slots[0].phase is Phase.IDLE
    assert stack.answer(prompt(300)).cached == {"live": 256}


def test_hybrids_keep_boundaries_on_the_stride_while_they_answer(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    """So that a branch off a long answer reuses up to the stride before it."""
    with Stack(gguf_model("lfm2"), tmp_path / "d") as stack:
        stride = stack.engine.geometry.boundary_stride * 64
        answer = stack.answer(prompt(100), 2 * stride + 100)
        whole = prompt(100) + answer.tokens
    with Stack(gguf_model("lfm2"), tmp_path / "d") as stack:
        branch = whole[: 2 * stride + 20] + prompt(50, seed=3)
        assert stack.answer(branch, 4).cached == {"disk": 2 * stride}
        ending = (len(whole) - 1) // 64 * 64
        other = [*whole[:ending], *prompt(9, seed=4)]
        assert stack.answer(other, 4).cached == {"disk": ending}
    with Stack(gguf_model("lfm2"), tmp_path / "d") as stack:
        assert stack.answer([*whole, 7], 4).cached == {"disk": len(whole) - 1}


def test_a_request_that_gives_way_during_its_restore_frees_it(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("llama")
    with Stack(model, tmp_path / "d", slots=2, context_tokens=1024) as stack:
        stack.answer(prompt(500, seed=2), 1)
    with Stack(model, tmp_path / "d", slots=2, context_tokens=1024) as stack:
        assert stack.store is not None
        read, go = stack.store.read, threading.Event()

        def slow(entries: Any, stop: Callable[[], bool], memory_bytes: int) -> Any:
            payloads = read(entries, stop, memory_bytes)
            yield next(payloads)
            while not stop() and not go.is_set():
                time.sleep(0.01)
            yield from payloads

        monkeypatch.setattr(stack.store, "read", slow)
        old = stack.submit(prompt(200, seed=1), 800)
        first_token(old)
        young = stack.submit(prompt(500, seed=2), 20)
        wait_for(lambda: any(s.phase is Phase.RESTORE for s in stack.scheduler._slots))
        assert len(collect(old).tokens) == 799
        go.set()
        assert len(collect(young).tokens) == 20
        wait_for(lambda: not stack.store._opened.pins._counts)


def test_a_restore_takes_the_slot_that_was_not_used_for_longest(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    system = prompt(640)
    a, b = system + prompt(700, seed=1), system + prompt(600, seed=2)
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as stack:
        stack.answer(b, 1)
    with Stack(gguf_model("llama"), tmp_path / "d", slots=2) as stack:
        first = stack.answer(a, 4)
        assert stack.answer(b, 4).cached == {"disk": 1216}, "in the other slot"
        assert stack.answer(a + first.tokens + [7], 4).cached["live"] == len(a) + 3


def test_when_the_engines_thread_has_ended_it_is_not_alive(stack: Stack) -> None:
    assert stack.scheduler.alive
    stack.scheduler.stop(0)
    assert not stack.scheduler.alive

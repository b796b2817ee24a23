"""The whole path over a slow disk: never slower than cold, and never another answer."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import ModelShelf
from stack import Answer, Stack, collect, prompt

from spillcache.cache import judge, probe
from spillcache.cache.speeds import Speeds
from spillcache.serve.job import Timings

TOKENS = 1500
TOKEN_S = 4e-4
"""What computing is taken to cost: a prompt 0.6 s."""
FULL_S = 3.0
"""What restoring one takes on a slow disk."""


@pytest.fixture(autouse=True)
def _computing_is_as_quick_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Speeds.prefilled

    def prefilled(
        speeds: Speeds, namespace_id: bytes, start: int, stop: int, seconds: float
    ) -> None:
        assert seconds > 0
        measured(speeds, namespace_id, start, stop, TOKEN_S * (stop - start))

    monkeypatch.setattr(Speeds, "prefilled", prefilled)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "d"


def timings(answer: Answer) -> Timings:
    assert answer.done is not None
    return answer.done.timings


def first_life(model: Path, disk: Path, *prompts: list[int]) -> list[Answer]:
    """Compute the prompts, so that the disk has them and what computing costs is known."""
    with Stack(model, disk, restore="auto") as stack:
        stack.answer(prompt(200, seed=99), 1)
        return [stack.answer(each) for each in prompts]


def slow(model: Path, disk: Path, tokens: list[int]) -> float:
    """Bytes per second of a disk from which restoring a prompt takes ``FULL_S``."""
    with Stack(model, disk) as stack:
        return timings(stack.answer(tokens, 1)).restored_bytes / FULL_S


def same(one: Answer, other: Answer) -> None:
    assert one.tokens == other.tokens
    assert one.logits is not None
    assert other.logits is not None
    np.testing.assert_array_equal(one.logits, other.logits)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_a_slow_disk_is_found_out_once_and_remembered(
    gguf_model: ModelShelf, disk: Path, kind: str
) -> None:
    model, tokens = gguf_model(kind), prompt(TOKENS)
    (cold,) = first_life(model, disk, tokens)
    bytes_s = slow(model, disk, tokens)
    with Stack(model, disk, restore="auto", throttle_bytes_s=bytes_s) as stack:
        found_out = stack.answer(tokens)
        assert timings(found_out).decision == "gave_up"
        assert timings(found_out).restore_ms < 1000 * FULL_S * 0.75
        assert found_out.cached.get("disk", 0) % 64 == 0
        same(found_out, cold)
    with Stack(model, disk, restore="auto", throttle_bytes_s=bytes_s) as stack:
        known = stack.answer(tokens)
        assert timings(known).decision == "compute"
        assert (known.cached, timings(known).restored_bytes) == ({}, 0)
        same(known, cold)
        count = stack.metrics.registry.get_sample_value
        assert count("spillcache_cache_decisions_total", {"decision": "compute"}) == 1
    with Stack(model, disk, throttle_bytes_s=50_000_000) as stack:
        assert stack.answer(tokens).cached != {}, "it was all there"


def test_a_disk_that_has_become_quick_again_is_found_out_beside_a_request(
    gguf_model: ModelShelf, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("llama")
    one, other = prompt(TOKENS), prompt(TOKENS, seed=2)
    first_life(model, disk, one, other)
    bytes_s = slow(model, disk, one)
    with Stack(model, disk, restore="auto", throttle_bytes_s=bytes_s) as stack:
        assert timings(stack.answer(one)).decision == "gave_up"
    monkeypatch.setattr(judge, "PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(probe, "EVERY_S", 0.0)
    with Stack(model, disk, restore="auto") as stack:
        assert stack.cache is not None
        assert timings(stack.answer(one)).decision == "compute"
        assert stack.cache.judge.join(10)
        again = stack.answer(other)
        assert timings(again).decision == "restore"
        assert again.cached["disk"] == TOKENS // 64 * 64
    with Stack(model, disk, restore="auto") as stack:
        assert timings(stack.answer(one)).decision == "restore", "remembered, too"


def test_what_ram_holds_is_restored_although_the_rest_is_not(
    gguf_model: ModelShelf, disk: Path
) -> None:
    model, tokens = gguf_model("llama"), prompt(TOKENS)
    (cold,) = first_life(model, disk, tokens)
    bytes_s = slow(model, disk, tokens)
    with Stack(model, disk, restore="auto", throttle_bytes_s=bytes_s) as stack:
        assert stack.cache is not None
        stack.cache.judge.speeds.no_faster_than(bytes_s)
        stack.answer(tokens[:641], 1)
        stack.answer(prompt(300, seed=3), 1)
        partial = stack.answer(tokens)
        assert timings(partial).decision == "partial"
        assert partial.cached == {"ram": 640}
        same(partial, cold)


def test_the_decision_is_told(gguf_model: ModelShelf, disk: Path) -> None:
    with Stack(gguf_model("llama"), disk) as stack:
        tokens = prompt(300)
        assert timings(stack.answer(tokens, cache_prompt=False)).decision == "off"
        first = stack.answer(tokens)
        assert timings(first).decision == "live", "of the request before"
        assert timings(stack.answer(tokens)).decision == "live"
        turn = [*tokens, *first.tokens, 7, 8]
        assert timings(stack.answer(turn)).decision == "live"
        assert timings(stack.answer(prompt(300, seed=2))).decision == "miss"
        assert timings(stack.answer(tokens)).decision == "restore"
        assert timings(stack.answer([5])).decision == "miss"
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        assert timings(stack.answer(tokens)).decision == "off"
        assert timings(stack.answer(tokens)).decision == "live"


def test_a_restore_beside_an_answer_is_given_up_as_well(gguf_model: ModelShelf, disk: Path) -> None:
    model, tokens = gguf_model("llama"), prompt(TOKENS)
    first_life(model, disk, tokens)
    bytes_s = slow(model, disk, tokens)
    with Stack(model, disk, restore="auto", throttle_bytes_s=bytes_s / 2, slots=2) as stack:
        talking = stack.submit(prompt(100, seed=4), 2000)
        began = time.monotonic()
        waiting: queue.Queue = stack.submit(tokens, 4)
        answer = collect(waiting)
        assert timings(answer).decision == "gave_up"
        assert len(answer.tokens) == 4
        assert time.monotonic() - began < 60
        assert talking.qsize() > 0

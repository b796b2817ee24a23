"""The self-test must pass on an honest engine and see through every kind of lie."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models import ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, Engine, Limits, Logits
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_sections import KVLayout
from spillcache.engine.self_test import mean_kl
from spillcache.errors import DecodeError
from spillcache.state import BlockState, Part

KINDS = ["llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2"]
MOST_TELLING = {
    "llama": Part.KV,
    "gemma3": Part.WINDOW,
    "lfm2": Part.BOUNDARY,
    "qwen35": Part.KV,
    "mamba": Part.BOUNDARY,
    "mamba2": Part.BOUNDARY,
}


Open = Callable[..., LlamaEngine]


@pytest.fixture
def opened(gguf_model: ModelShelf) -> Iterator[Open]:
    engines: list[LlamaEngine] = []

    def make(
        kind: str = "llama", type_: type[LlamaEngine] = LlamaEngine, **options: Any
    ) -> LlamaEngine:
        values = {"context_tokens": 512, "ubatch_tokens": 128, "slots": 1, "threads": 1}
        model = gguf_model(kind, **({"n_swa": 128} if kind == "gemma3" else {}))
        engines.append(type_(EngineConfig(model=model, **values | options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_an_honest_engine_passes_bit_for_bit(opened: Open, kind: str, flash_attention: str) -> None:
    engine = opened(kind, flash_attention=flash_attention)
    verdict = engine.self_test()
    assert (verdict.passed, verdict.exact) == (True, True)
    blocks = engine.geometry.window_blocks + 2
    assert verdict.detail == f"{64 * blocks} restored tokens: bit-identical to cold"
    assert engine.length(0) == 0


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("bf16", "bf16")])
def test_quantised_state_passes(opened: Open, types: tuple[str, str]) -> None:
    verdict = opened(type_k=types[0], type_v=types[1], flash_attention="on").self_test()
    assert verdict.exact


class DropsRows(LlamaEngine):
    """Imports a block whose second half is lost: of the part that its model remembers most in."""

    part = Part.KV
    import_run = Engine.import_run

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        changed = dict(state)
        if self.part in changed:
            raw = bytearray(changed[self.part])
            layout = {
                Part.KV: self._state.kv,
                Part.WINDOW: self._state.window,
                Part.BOUNDARY: self._state.recurrent,
            }[self.part]
            assert layout is not None
            if isinstance(layout, KVLayout):
                layout = layout.of(tokens or layout.cells)
            for offset, size in layout.data:
                raw[offset + size // 2 : offset + size] = bytes(size - size // 2)
            changed[self.part] = raw
        super().import_(sequence, block, changed, tokens)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_lost_rows_are_noticed(opened: Open, kind: str, slots: int) -> None:
    class Liar(DropsRows):
        part = MOST_TELLING[kind]

    verdict = opened(kind, Liar, slots=slots).self_test()
    assert (verdict.passed, verdict.exact) == (False, False)
    assert "between two cold cell layouts" in verdict.detail


class LosesTails(DropsRows):
    """All is well with whole blocks."""

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        if tokens is None:
            LlamaEngine.import_(self, sequence, block, state)
        else:
            super().import_(sequence, block, state, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_tail_is_noticed(opened: Open, kind: str) -> None:
    class Liar(LosesTails):
        part = MOST_TELLING[kind]

    verdict = opened(kind, Liar).self_test()
    assert (verdict.passed, verdict.exact) == (False, False)


class MixesUpRuns(LlamaEngine):
    """All is well with blocks that come alone."""

    def import_run(self, sequence: int, block: int, states: Sequence[BlockState]) -> int:
        layout = self._state.kv
        if layout is None or len(states) < 2:
            return super().import_run(sequence, block, states)
        raw = bytearray(states[1][Part.KV])
        for offset, size in layout.data:
            raw[offset : offset + size] = states[0][Part.KV][offset : offset + size]
        return super().import_run(sequence, block, [states[0], {**states[1], Part.KV: raw}])


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rows_of_a_run_in_the_wrong_place_are_noticed(opened: Open, kind: str) -> None:
    assert not opened(kind, MixesUpRuns).self_test().passed


class ImportsNothing(LlamaEngine):
    """Says that a block is there, and does nothing."""

    import_run = Engine.import_run

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        known = self._sequences[sequence]
        size = self.geometry.block_tokens
        known.length = known.boundary_at = block * size + (tokens or size)


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_that_does_nothing_is_noticed(opened: Open, kind: str) -> None:
    verdict = opened(kind, ImportsNothing).self_test()
    assert not verdict.passed
    assert verdict.detail.startswith("mean KL to cold ")


class ShiftsBytes(LlamaEngine):
    """Every row lies one byte further than it should."""

    import_run = Engine.import_run

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        changed = dict(state)
        kv = self._state.kv.of(tokens or 64) if self._state.kv else None
        for part, layout in ((Part.KV, kv), (Part.BOUNDARY, self._state.recurrent)):
            if layout is not None and part in changed:
                raw = bytearray(changed[part])
                for offset, size in layout.data:
                    raw[offset + 1 : offset + size] = raw[offset : offset + size - 1]
                changed[part] = raw
        super().import_(sequence, block, changed, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_shifted_bytes_are_noticed(opened: Open, kind: str) -> None:
    assert not opened(kind, ShiftsBytes).self_test().passed


class AnswersByHeart(LlamaEngine):
    """Logits that don't depend on any state: equal, and worth nothing."""

    def logits(self, sequence: int) -> Logits:
        return np.linspace(0, 1, self.limits.vocabulary, dtype=np.float32)


def test_logits_without_a_memory_prove_nothing(opened: Open) -> None:
    verdict = opened("llama", AnswersByHeart).self_test()
    assert verdict.detail == "importing state has no effect on this engine"
    assert not verdict.passed


class ForgetsBoundaries(LlamaEngine):
    """Exports no boundary, or no window: what decoding needs is missing."""

    def export(self, sequence: int, block: int, *, boundary: bool = False) -> BlockState:
        state = super().export(sequence, block, boundary=boundary)
        return {part: payload for part, payload in state.items() if part is Part.KV}


@pytest.mark.parametrize("kind", ["gemma3", "lfm2", "mamba"])
def test_a_missing_part_is_noticed(opened: Open, kind: str) -> None:
    verdict = opened(kind, ForgetsBoundaries).self_test()
    assert not verdict.passed
    assert verdict.detail == "restored state lacks a part that decoding needs"


class Truncates(LlamaEngine):
    """Exports a byte less than there is."""

    def export(self, sequence: int, block: int, *, boundary: bool = False) -> BlockState:
        state = super().export(sequence, block, boundary=boundary)
        return {part: memoryview(payload)[:-1] for part, payload in state.items()}


class FailsToDecode(LlamaEngine):
    """Breaks down in the middle of the test."""

    calls = 0

    def decode(self, chunks: Sequence[Chunk]) -> None:
        self.calls += 1
        if self.calls == 4:
            raise DecodeError("llama_decode failed with code -3")
        super().decode(chunks)


@pytest.mark.parametrize(
    ("type_", "reason"), [(Truncates, "bytes, not"), (FailsToDecode, "code -3")]
)
def test_an_engine_that_refuses_fails(opened: Open, type_: type[LlamaEngine], reason: str) -> None:
    engine = opened("llama", type_)
    verdict = engine.self_test()
    assert not verdict.passed
    assert verdict.detail.startswith("the engine refused its own state: ")
    assert reason in verdict.detail
    assert engine.length(0) == 0, "every sequence is empty again"


class AlmostExact(LlamaEngine):
    """After an import the logits differ from the cold ones by ``error``; another sequence's cells
    make the cold ones differ by ``noise``.
    """

    error, noise = 0.0, 0.0
    imported = crowded = False
    import_run = Engine.import_run

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        self.imported = True
        super().import_(sequence, block, state, tokens)

    def decode(self, chunks: Sequence[Chunk]) -> None:
        if chunks[0].sequence != 0:
            self.crowded, self.imported = True, False
        super().decode(chunks)

    def logits(self, sequence: int) -> Logits:
        scale = self.error if self.imported else self.noise if self.crowded else 0.0
        away = np.random.default_rng(1).normal(0, scale, self.limits.vocabulary)
        return super().logits(sequence) + away.astype(np.float32)


@pytest.mark.parametrize(
    ("error", "noise", "slots", "passed"),
    [(0.01, 0.1, 2, True), (0.1, 0.01, 2, False), (0.01, 0.1, 1, True)],
    ids=["below the noise", "above the noise", "one slot"],
)
def test_a_little_noise_is_measured_against_the_engines_own(
    opened: Open, error: float, noise: float, slots: int, passed: bool
) -> None:
    class Noisy(AlmostExact):
        pass

    Noisy.error, Noisy.noise = error, noise
    verdict = opened("llama", Noisy, slots=slots).self_test()
    assert (verdict.passed, verdict.exact) == (passed, False)
    assert verdict.detail.startswith("mean KL to cold ")
    assert "between two cold cell layouts" in verdict.detail


def test_a_context_that_is_too_small(opened: Open) -> None:
    engine = opened("gemma3", context_tokens=256)
    assert engine.self_test().detail == (
        "the context is too small for the self-test; give a larger -c"
    )
    assert not engine.self_test().passed


def test_a_context_that_is_just_large_enough(opened: Open) -> None:
    engine = opened("gemma3")
    cells = (engine.geometry.window_blocks + 3) * 64
    engine.limits = replace(engine.limits, context_tokens=cells)
    assert engine.self_test().passed
    engine.limits = replace(engine.limits, context_tokens=cells - 1)
    assert not engine.self_test().passed
    assert isinstance(engine.limits, Limits)


def test_an_unknown_layout_fails(opened: Open) -> None:
    engine = opened("llama")
    engine._state = replace(engine._state, problem="laid out anew")
    verdict = engine.self_test()
    assert (verdict.passed, verdict.exact, verdict.detail) == (False, False, "laid out anew")


def test_mean_kl() -> None:
    p = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    q = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32))
    first = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert mean_kl(p, q) == pytest.approx(first / 2, rel=1e-5)
    assert mean_kl(p, p) == 0
    assert mean_kl(p + 100, p) == pytest.approx(0, abs=1e-5), "logits are known up to a constant"

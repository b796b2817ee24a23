from collections.abc import Iterator

import numpy as np
import pytest
from models import BOS, EOS, IM_END, ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, SamplingParams, Tokens
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_sampler import LlamaSampler

PROMPT = np.array([BOS, *range(20, 40)], np.uint32)
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


@pytest.fixture(scope="module")
def shared(gguf_model: ModelShelf) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(EngineConfig(gguf_model("llama"), context_tokens=512, slots=2, threads=1))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: LlamaEngine) -> LlamaEngine:
    """With the logits of PROMPT in sequence 0 and of another prompt in sequence 1."""
    for sequence in (0, 1):
        shared.clear(sequence)
    shared.decode([Chunk(0, PROMPT, logits=True), Chunk(1, PROMPT[::-1].copy(), logits=True)])
    return shared


def draw(
    engine: LlamaEngine, count: int, history: Tokens = PROMPT, sequence: int = 0, **params: object
) -> list[int]:
    """``count`` draws from the same logits by one sampler."""
    sampler = engine.sampler(SamplingParams(**params), history)  # type: ignore[arg-type]
    try:
        return [sampler.sample(sequence) for _ in range(count)]
    finally:
        sampler.close()


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits.astype(np.float64) - logits.max())
    return p / p.sum()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_greedy_is_the_largest(engine: LlamaEngine, temperature: float) -> None:
    for sequence in (0, 1):
        best = int(engine.logits(sequence).argmax())
        assert draw(engine, 3, sequence=sequence, temperature=temperature) == [best] * 3
    assert engine.logits(0).argmax() != engine.logits(1).argmax(), "a row each"


def test_top_k_of_one_is_the_largest(engine: LlamaEngine) -> None:
    best = int(engine.logits(0).argmax())
    assert draw(engine, 5, temperature=5.0, top_k=1, seed=3) == [best] * 5


def test_a_seed_decides(engine: LlamaEngine) -> None:
    hot = PLAIN | {"temperature": 2.0}
    one, same, other = (draw(engine, 30, seed=seed, **hot) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len(set(one)) > 5
    assert draw(engine, 30, seed=1 + (1 << 32), **hot) == one, "32 bits of it count"


def test_without_a_seed_draws_differ(engine: LlamaEngine) -> None:
    hot = PLAIN | {"temperature": 2.0}
    assert draw(engine, 30, **hot) != draw(engine, 30, **hot)


def test_draws_follow_the_distribution(engine: LlamaEngine) -> None:
    p = softmax(engine.logits(0) / 0.5)
    drawn = np.bincount(draw(engine, 3000, seed=7, **PLAIN | {"temperature": 0.5}), minlength=512)
    top = p.argsort()[-3:]
    assert np.abs(drawn[top] / 3000 - p[top]).max() < 0.04


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 3}, lambda p: set(p.argsort()[-3:].tolist())),
        ({"min_p": 0.5}, lambda p: set(np.flatnonzero(p >= 0.5 * p.max()).tolist())),
        (
            {"top_p": 0.3},
            lambda p: set(
                p.argsort()[::-1][: int((np.sort(p)[::-1].cumsum() < 0.3).sum()) + 1].tolist()
            ),
        ),
    ],
    ids=["top_k", "min_p", "top_p"],
)
def test_only_the_likely_are_drawn(engine: LlamaEngine, params: dict, kept: object) -> None:
    allowed = kept(softmax(engine.logits(0)))  # type: ignore[operator]
    drawn = set(draw(engine, 2000, seed=5, **PLAIN | params))
    assert drawn <= allowed
    assert len(allowed) < 256
    assert len(drawn) > len(allowed) // 2
    assert not set(draw(engine, 2000, seed=5, **PLAIN)) <= allowed, "without it others come"


@pytest.mark.parametrize(
    "penalty",
    [{"repeat_penalty": 5.0}, {"frequency_penalty": 90.0}, {"presence_penalty": 90.0}],
    ids=lambda penalty: next(iter(penalty)),
)
def test_a_penalty_changes_the_choice(engine: LlamaEngine, penalty: dict) -> None:
    best = int(engine.logits(0).argmax())
    history = np.array([best], np.uint32)
    assert draw(engine, 1, history, temperature=0.0) == [best]
    assert draw(engine, 1, history, temperature=0.0, **penalty) != [best], "it was in the prompt"
    fresh = draw(engine, 2, np.zeros(0, np.uint32), temperature=0.0, **penalty)
    assert fresh[0] == best
    assert fresh[1] != best, "what was drawn counts, too"


def test_penalties_look_back_only_so_far(engine: LlamaEngine) -> None:
    best = int(engine.logits(0).argmax())
    others = [t for t in range(100, 110) if t != best][:5]
    history = np.array([best, *others], np.uint32)
    strong = {"temperature": 0.0, "presence_penalty": 90.0}
    assert draw(engine, 1, history, **strong, penalty_last_n=6) != [best]
    assert draw(engine, 1, history, **strong, penalty_last_n=5) == [best]
    assert draw(engine, 1, history, **strong, penalty_last_n=0) == [best], "off"
    assert draw(engine, 1, history, **strong, penalty_last_n=-1) != [best], "all of it"


def test_ignore_eos_forbids_every_end(engine: LlamaEngine) -> None:
    """Even where nothing else is likely."""
    row = engine._api.llama_get_logits_ith(engine._context, engine._row(0))
    for token in (EOS, IM_END):
        row[token] = 1000.0
    assert draw(engine, 1, temperature=0.0)[0] in {EOS, IM_END}
    assert set(draw(engine, 50, seed=1, **PLAIN)) <= {EOS, IM_END}
    assert draw(engine, 1, temperature=0.0, ignore_eos=True)[0] not in {EOS, IM_END}
    assert not set(draw(engine, 50, seed=1, **PLAIN, ignore_eos=True)) & {EOS, IM_END}


def test_closed_twice(engine: LlamaEngine) -> None:
    sampler = engine.sampler(SamplingParams(), PROMPT)
    assert isinstance(sampler, LlamaSampler)
    sampler.close()
    assert sampler._chain is None
    sampler.close()

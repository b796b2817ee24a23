from collections.abc import Iterator

import numpy as np
import pytest
from models import BOS, EOS, IM_END, ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, SamplingParams, Tokens, TokenShares
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


@pytest.mark.parametrize(
    "params",
    [
        {"typical_p": 0.2},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.001},
        {"dynatemp_range": 0.9, "dynatemp_exponent": 2.0},
        {"mirostat": 1, "mirostat_tau": 1.0},
        {"mirostat": 2, "mirostat_tau": 1.0},
        {"dry_multiplier": 5.0, "dry_allowed_length": 0},
        {"logit_bias": ((30, 50.0),)},
        {"samplers": ("temperature",), "temperature": 0.01},
    ],
    ids=lambda params: next(iter(params)),
)
def test_each_way_of_sampling_changes_the_draws_and_follows_the_seed(
    engine: LlamaEngine, params: dict
) -> None:
    plain = draw(engine, 60, seed=1, **PLAIN)
    changed = draw(engine, 60, seed=1, **PLAIN | params)
    assert changed == draw(engine, 60, seed=1, **PLAIN | params)
    assert changed != plain


def test_samplers_that_are_not_named_are_off(engine: LlamaEngine) -> None:
    plain = draw(engine, 60, seed=1, **PLAIN)
    off = {"temperature": 0.01, "top_k": 1, "min_p": 0.9}
    assert draw(engine, 60, seed=1, **PLAIN | off, samplers=("penalties", "top_p")) == plain


def test_biases(engine: LlamaEngine) -> None:
    best = int(engine.logits(0).argmax())
    never = {"logit_bias": ((best, float("-inf")),)}
    assert draw(engine, 1, temperature=0.0, **never) != [best]
    assert draw(engine, 3, temperature=0.0, logit_bias=((77, 100.0),)) == [77] * 3
    assert set(draw(engine, 20, seed=1, **PLAIN, logit_bias=((77, 100.0),))) == {77}


def test_dry_looks_back_on_the_prompt(engine: LlamaEngine) -> None:
    best = int(engine.logits(0).argmax())
    history = np.array([50, 51, 52, 53, best, 50, 51, 52, 53], np.uint32)
    dry = {"temperature": 0.0, "dry_multiplier": 100.0}
    assert draw(engine, 1, history, **dry) != [best]
    assert draw(engine, 1, history, **dry, dry_penalty_last_n=4) == [best]
    assert draw(engine, 1, history, **dry, dry_penalty_last_n=0) == [best]
    assert draw(engine, 1, history, **dry, dry_penalty_last_n=-1) != [best]
    assert draw(engine, 1, history, **dry, dry_sequence_breakers=()) != [best]


def test_min_keep(engine: LlamaEngine) -> None:
    hot = PLAIN | {"top_p": 0.001, "seed": 1, "temperature": 5.0}
    assert len(set(draw(engine, 60, **hot))) == 1
    assert len(set(draw(engine, 60, **hot, min_keep=9))) == 9


def shares(engine: LlamaEngine, **params: object) -> list[TokenShares]:
    sampler = engine.sampler(SamplingParams(seed=1, **params), PROMPT)  # type: ignore[arg-type]
    found = []
    for _ in range(20):
        token = sampler.sample(0)
        assert sampler.shares is not None
        assert sampler.shares.token == token
        found.append(sampler.shares)
    sampler.close()
    return found


def test_shares_are_the_models_own(engine: LlamaEngine) -> None:
    p = softmax(engine.logits(0))
    for one in shares(engine, n_probs=3):
        assert not one.drawn
        assert one.share == pytest.approx(np.log(p[one.token]), abs=1e-4)
        assert [token for token, _ in one.top] == p.argsort()[::-1][:3].tolist()
        values = [share for _, share in one.top]
        assert values == pytest.approx(np.log(np.sort(p)[::-1][:3]).tolist(), abs=1e-4)
    assert all(one.top == () for one in shares(engine, n_probs=0))
    assert len(shares(engine, n_probs=9999)[0].top) == 512


def test_shares_of_what_was_drawn_from(engine: LlamaEngine) -> None:
    for one in shares(engine, n_probs=9, post_sampling_probs=True, **PLAIN | {"top_k": 4}):
        assert one.drawn
        assert one.token in {token for token, _ in one.top}
        assert sum(share for _, share in one.top) == pytest.approx(1.0, abs=1e-5)
        assert len(one.top) == 4
    (greedy, *_) = shares(engine, n_probs=9, post_sampling_probs=True, temperature=0.0)
    assert (greedy.share, greedy.top) == (1.0, ((greedy.token, 1.0),))


def test_shares_change_no_draw(engine: LlamaEngine) -> None:
    hot = {"temperature": 2.0, "seed": 3, "repeat_penalty": 1.3}
    plain = draw(engine, 30, **hot)
    assert draw(engine, 30, **hot, n_probs=2) == plain
    assert draw(engine, 30, **hot, n_probs=2, post_sampling_probs=True) == plain


def test_shares_are_numbers_whatever_happens(engine: LlamaEngine) -> None:
    never = tuple((token, float("-inf")) for token in range(512))
    for params in ({"temperature": 1e-45}, {"logit_bias": never}, {"logit_bias": never[1:]}):
        for one in shares(engine, n_probs=2, post_sampling_probs=True, **params):
            values = [one.share, *(share for _, share in one.top)]
            assert np.isfinite(values).all()


def test_closed_twice(engine: LlamaEngine) -> None:
    sampler = engine.sampler(SamplingParams(), PROMPT)
    assert isinstance(sampler, LlamaSampler)
    sampler.close()
    assert sampler._chain is None
    sampler.close()

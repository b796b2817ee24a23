"""A conversation on the demo model with restarts between its turns: *equivalent* to one without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stack import Stack

from spillcache.engine.base import Sampler
from spillcache.engine.self_test import mean_kl

ANSWER_TOKENS = 24
TURNS = (
    "The harbour master keeps a ledger of every ship that enters, with its cargo and its crew. "
    "Tonight three ships wait outside in the fog. Describe what he writes first.",
    "The second ship carries salt and copper. What does he ask its captain?",
    "The captain answers that two of his sailors are ill. What must be done?",
    "At midnight the fog lifts. What do they see?",
    "A message comes from the lighthouse. What does it say?",
    "Morning comes. How does the ledger's page end?",
)


class Forced(Sampler):
    """Goes down a given answer, so that every run computes logits after the same tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)

    def sample(self, sequence: int) -> int:
        return next(self._tokens)

    def close(self) -> None:
        pass


def force(stack: Stack, tokens: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.engine, "sampler", lambda *_: Forced(tokens))


def rows(stack: Stack, prompt: list[int], answer: list[int], patch: Any) -> NDArray[np.float32]:
    force(stack, answer, patch)
    logits = stack.answer(prompt, ANSWER_TOKENS).logits
    assert logits is not None
    return logits


def test_six_turns_with_restarts_are_equivalent_to_none(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    uninterrupted: list[NDArray[np.float32]] = []
    with Stack(demo_model, None, context_tokens=2048) as stack:
        history: list[int] = []
        for i, question in enumerate(TURNS):
            text = f"<start_of_turn>user\n{question}<end_of_turn>\n<start_of_turn>model\n"
            history += stack.engine.tokenize(text, add_special=i == 0, parse_special=True)
            answer = stack.answer(history, ANSWER_TOKENS)
            assert answer.logits is not None
            prompts.append(list(history))
            answers.append(answer.tokens)
            uninterrupted.append(answer.logits)
            if i:
                assert answer.cached["live"] >= len(prompts[i - 1])
            history = history + answer.tokens

    restarted = []
    for i, (prompt, answer_tokens) in enumerate(zip(prompts, answers, strict=True)):
        with Stack(demo_model, tmp_path / "d", context_tokens=2048) as stack:
            restarted.append(rows(stack, prompt, answer_tokens, monkeypatch))
            if i:  # all whole blocks of what was said so far come from disk
                said = len(prompts[i - 1]) + ANSWER_TOKENS - 1
                counted = stack.metrics.registry.get_sample_value(
                    "spillcache_prompt_tokens_total", {"source": "disk"}
                )
                assert counted == said // 64 * 64

    # The engine's own noise: the same cold prompts, alone and beside another sequence.
    alone, beside = [], []
    for prompt, answer_tokens in zip(prompts, answers, strict=True):
        with Stack(demo_model, None, ram=False, context_tokens=2048, slots=2) as stack:
            alone.append(rows(stack, prompt, answer_tokens, monkeypatch))
        with Stack(demo_model, None, ram=False, context_tokens=2048, slots=2) as stack:
            force(stack, [7] * 300, monkeypatch)
            stack.answer([2] + [9, 88, 451] * 80, 4)
            beside.append(rows(stack, prompt, answer_tokens, monkeypatch))
    noise = mean_kl(np.concatenate(alone), np.concatenate(beside))
    distance = mean_kl(np.concatenate(uninterrupted), np.concatenate(restarted))
    print(f"mean KL: restarts {distance:.2g}, two cold cell layouts {noise:.2g}")
    assert noise > 0
    assert distance <= noise
    assert np.array_equal(uninterrupted[0], restarted[0]), "the first turn is cold in both"

"""A conversation on the demo model with restarts between its turns: the bits of one without."""

from pathlib import Path

import numpy as np
from stack import Answer, Stack

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


def test_six_turns_with_restarts_are_those_of_none(demo_model: Path, tmp_path: Path) -> None:
    live: list[Answer] = []
    prompts: list[list[int]] = []
    with Stack(demo_model, None, context_tokens=2048) as stack:
        history: list[int] = []
        for i, question in enumerate(TURNS):
            text = f"<start_of_turn>user\n{question}<end_of_turn>\n<start_of_turn>model\n"
            history += stack.engine.tokenize(text, add_special=i == 0, parse_special=True)
            prompts.append(list(history))
            live.append(stack.answer(history, ANSWER_TOKENS))
            history = history + live[-1].tokens
    for i, prompt in enumerate(prompts):
        with Stack(demo_model, tmp_path / "d", context_tokens=2048) as stack:
            restarted = stack.answer(prompt, ANSWER_TOKENS)
        held = len(prompts[i - 1]) + ANSWER_TOKENS - 1 if i else 0
        assert live[i].cached == ({"live": held} if i else {})
        assert restarted.cached == ({"disk": held} if i else {})
        assert restarted.tokens == live[i].tokens
        assert restarted.logits is not None
        assert live[i].logits is not None
        assert np.array_equal(restarted.logits, live[i].logits), i

"""What a model answers when nothing is cached and nobody else is there: the judge of a bench's
answers. In the bench's own process, one thread at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk, Logits
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.serve.prompt_plan import next_stop

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an answer compares with what the model says after the same tokens."""

    same: bool
    """Every token is the likeliest one, bit for bit."""
    behind: float
    """By how much, in logits, the worst of its tokens is less likely than the likeliest."""


class Reference:
    """One model, cold every time, in the canonical split of a server with nobody else on it."""

    def __init__(self, model: Path, context_tokens: int, flash_attention: bool) -> None:
        self._engine = LlamaEngine(
            EngineConfig(
                model,
                context_tokens=context_tokens,
                slots=2,
                threads=1,
                flash_attention="on" if flash_attention else "off",
            )
        )
        tokens = range(self._engine.limits.vocabulary)
        self._ends = [token for token in tokens if self._engine.is_end(token)]

    @property
    def vocabulary(self) -> int:
        return self._engine.limits.vocabulary

    def answer(self, prompt: Tokens, count: int) -> Tokens:
        """The greedy answer, ``count`` tokens long, past the model's end if need be."""
        logits, out = self._prefill(0, prompt), Tokens()
        while True:
            out.append(int(logits.argmax()))
            if len(out) == count:
                return out
            logits = self._step(0, out[-1])

    def judge(self, prompt: Tokens, answer: Sequence[int]) -> Verdict:
        """Compare an answer token by token, each after the answer's own tokens before it: so one
        near tie that falls the other way does not condemn what follows.
        """
        logits, behind = self._prefill(0, prompt), 0.0
        for index, token in enumerate(answer):
            if index:
                logits = self._step(0, answer[index - 1])
            behind = max(behind, float(logits.max() - logits[token]))
        return Verdict(behind == 0.0, behind)

    def noise(self, prompt: Tokens, beside: Tokens, count: int) -> float:
        """By how much the logits of one prompt's answer differ between a cold run alone and one
        whose cells lie behind another sequence's, with the end of the prompt computed one by one:
        what the engine itself does to a conversation that is not alone.
        """
        answer = self.answer(prompt, count)
        alone = [self._prefill(0, prompt)] + [self._step(0, token) for token in answer]
        self._prefill(0, beside)
        half = max(1, len(prompt) // 2)
        self._prefill(1, prompt[:half], keep=True)
        other = [self._step(1, token) for token in prompt[half:]][-1:]
        other += [self._step(1, token) for token in answer]
        pairs = zip(alone, other, strict=True)
        finite = [
            np.abs(np.delete(one, self._ends) - np.delete(two, self._ends)) for one, two in pairs
        ]
        return max(float(each.max()) for each in finite)

    def close(self) -> None:
        self._engine.close()

    def _prefill(self, sequence: int, prompt: Tokens, *, keep: bool = False) -> Logits:
        engine, tokens = self._engine, np.array(prompt, np.uint32)
        for each in (sequence,) if keep else (0, 1):
            engine.clear(each)
        geometry, total, start = engine.geometry, len(prompt), 0
        while start < total:
            stop = next_stop(start, total, engine.limits.call_tokens, geometry)
            engine.decode([Chunk(sequence, tokens[start:stop], logits=stop == total)])
            start = stop
        if total % geometry.block_tokens == 0 and not geometry.has_boundary:
            engine.truncate(sequence, total - 1)  # as the scheduler does: see prompt_plan
            return self._step(sequence, prompt[-1])
        return self._logits(sequence)

    def _step(self, sequence: int, token: int) -> Logits:
        self._engine.decode([Chunk(sequence, np.array([token], np.uint32), logits=True)])
        return self._logits(sequence)

    def _logits(self, sequence: int) -> Logits:
        """Without the model's ends, which ``ignore_eos`` forbids."""
        logits = self._engine.logits(sequence)
        logits[self._ends] = -np.inf
        return logits

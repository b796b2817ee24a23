"""A sampler chain of llama.cpp's own, in llama-server's order."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from spillcache.engine.base import Sampler, SamplingParams, Tokens

_TOP_K_MAX = 1 << 30
"""Beyond every vocabulary, and within C's int."""


class LlamaSampler(Sampler):
    """penalties → (no end token) → top_k → top_p → min_p → temperature → a seeded draw; or greedy.

    ``row`` maps a sequence to its row in the last decode call; ``ends`` lists the tokens that end
    an answer. Used and closed on the engine's thread.
    """

    def __init__(  # noqa: PLR0917 - one caller, LlamaEngine.sampler
        self,
        api: Any,
        context: Any,
        model: Any,
        params: SamplingParams,
        history: Tokens,
        row: Callable[[int], int],
        ends: Callable[[], Sequence[int]],
    ) -> None:
        self._api, self._context, self._row = api, context, row
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        vocab = api.llama_model_get_vocab(model)
        self._add_penalties(params, vocab, history)
        if params.ignore_eos:
            self._forbid(vocab, ends())
        if params.temperature <= 0:
            self._add(api.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(api.llama_sampler_init_top_k(min(params.top_k, _TOP_K_MAX)))
        if params.top_p < 1:
            self._add(api.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            self._add(api.llama_sampler_init_min_p(params.min_p, 1))
        self._add(api.llama_sampler_init_temp(params.temperature))
        seed = secrets.randbits(32) if params.seed is None else params.seed & 0xFFFFFFFF
        self._add(api.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        self._api.llama_sampler_chain_add(self._chain, sampler)

    def _add_penalties(self, params: SamplingParams, vocab: Any, history: Tokens) -> None:
        off = (
            params.repeat_penalty == 1.0
            and params.frequency_penalty == 0.0
            and params.presence_penalty == 0.0
        )
        last = params.penalty_last_n
        if off or last == 0:
            return
        most = int(self._api.llama_n_ctx(self._context))  # the ring is allocated at once
        last = most if last < 0 else min(last, most)
        size = self._api.llama_vocab_n_tokens(vocab)
        penalties = self._api.llama_sampler_init_penalties(
            size, last, params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        )
        self._add(penalties)
        for token in history[-last:].tolist():
            self._api.llama_sampler_accept(penalties, token)

    def _forbid(self, vocab: Any, tokens: Sequence[int]) -> None:
        biases = (self._api.llama_logit_bias * len(tokens))()
        for slot, token in zip(biases, tokens, strict=True):
            slot.token, slot.bias = token, float("-inf")
        size = self._api.llama_vocab_n_tokens(vocab)
        self._add(self._api.llama_sampler_init_logit_bias(size, len(tokens), biases))

    def sample(self, sequence: int) -> int:
        """See Sampler."""
        return int(self._api.llama_sampler_sample(self._chain, self._context, self._row(sequence)))

    def close(self) -> None:
        """See Sampler."""
        if self._chain is not None:
            self._api.llama_sampler_free(self._chain)
            self._chain = None

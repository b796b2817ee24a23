"""One answer's choice of tokens: a chain of llama.cpp's, and a grammar over it."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillcache.engine.base import Logits, Sampler, SamplingParams, Tokens, TokenShares
from spillcache.engine.guides import TokenGuide
from spillcache.engine.llama_chain import new_chain

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class LlamaSampler(Sampler):
    """See Sampler, and ``llama_chain`` for the order.

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
        ends: Callable[[], list[int]],
    ) -> None:
        self._api, self._context, self._row, self._params = api, context, row, params
        vocab = api.llama_model_get_vocab(model)
        if params.ignore_eos:
            never = tuple((token, float("-inf")) for token in ends())
            params = replace(params, logit_bias=(*params.logit_bias, *never))
        self._chain = new_chain(api, vocab, params, history, int(api.llama_n_ctx(context)))
        self._steps = params.guide.start() if isinstance(params.guide, TokenGuide) else None
        self._candidates: _Candidates | None = None
        if self._steps is not None or params.n_probs is not None:
            self._candidates = _Candidates(api, int(api.llama_vocab_n_tokens(vocab)))

    def sample(self, sequence: int) -> int:
        """See Sampler."""
        row = self._row(sequence)
        if self._candidates is None:
            return int(self._api.llama_sampler_sample(self._chain, self._context, row))
        return self._sample_aside(self._candidates, row)

    def _sample_aside(self, candidates: "_Candidates", row: int) -> int:
        """As the library does, but with a look at what it chooses from."""
        pointer = self._api.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, (candidates.most,))
        token = candidates.choose(self._chain, logits)
        if self._steps is not None:
            # Most of the time the model does what the grammar wants; looking for all that it allows
            # takes far longer than looking at one token.
            if not self._steps.allows(token):
                token = candidates.choose(self._chain, logits, self._steps.allowed())
            self.ended = self._steps.take(token)
        self._api.llama_sampler_accept(self._chain, token)
        if self._params.n_probs is not None:
            self.shares = self._shares(candidates, logits, token, self._params.n_probs)
        return token

    def _shares(
        self, candidates: "_Candidates", logits: Logits, token: int, count: int
    ) -> TokenShares:
        if not self._params.post_sampling_probs:
            ids, values = None, _log_shares(logits)
        elif self._params.temperature <= 0:  # nothing is drawn
            return TokenShares(token, 1.0, ((token, 1.0),) if count else (), drawn=True)
        else:
            ids, values = candidates.left()
        # JSON knows neither infinity nor what is no number.
        values = np.nan_to_num(values, nan=0.0, neginf=float(np.finfo(np.float32).min))
        best = _largest(values, count)
        tokens = best if ids is None else ids[best]
        share = values[token] if ids is None else values[np.flatnonzero(ids == token)[0]]
        top = tuple(zip(tokens.tolist(), values[best].tolist(), strict=True))
        return TokenShares(token, float(share), top, self._params.post_sampling_probs)

    def close(self) -> None:
        """See Sampler."""
        if self._chain is not None:
            self._api.llama_sampler_free(self._chain)
            self._chain = None


class _Candidates:
    """The tokens to choose from, as llama.cpp's samplers take them."""

    def __init__(self, api: Any, most: int) -> None:
        self.most = most
        self._api = api
        self._native = (api.llama_token_data * most)()
        self._data = np.frombuffer(self._native, _CANDIDATE)
        self._all = np.arange(most)
        self._array: Any = None

    def choose(self, chain: Any, logits: Logits, allowed: NDArray[np.int64] | None = None) -> int:
        """What ``chain`` chooses among the ``allowed`` tokens; does not accept it."""
        ids, chances = (self._all, logits) if allowed is None else (allowed, logits[allowed])
        data = self._data[: len(ids)]
        data["id"], data["logit"], data["p"] = ids, chances, 0
        self._array = self._api.llama_token_data_array(self._native, len(ids), -1, False)
        self._api.llama_sampler_apply(chain, ctypes.byref(self._array))
        return int(self._array.data[self._array.selected].id)

    def left(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The tokens that the last choice was drawn from, and their probabilities."""
        size = int(self._array.size) * _CANDIDATE.itemsize
        # The samplers may have put them elsewhere.
        raw = ctypes.string_at(self._array.data, size)
        data = np.frombuffer(raw, _CANDIDATE)
        return data["id"], data["p"]


def _log_shares(logits: Logits) -> Logits:
    """The logarithms of the softmax."""
    highest = float(logits.max())
    total = highest + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    return np.subtract(logits, np.float32(total))


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Where the ``count`` largest values are, the largest first."""
    count = min(count, len(values))
    if not count:
        return np.zeros(0, np.int64)
    found = np.argpartition(values, -count)[-count:]
    return found[np.argsort(-values[found], kind="stable")]

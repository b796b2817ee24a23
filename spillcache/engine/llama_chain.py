"""llama.cpp's sampler chains, in llama-server's order: biases, the samplers that were asked for,
then a draw.
"""

import ctypes
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spillcache.engine.base import SamplingParams, Tokens

_TOP_K_MAX = 1 << 30
"""Beyond every vocabulary, and within C's int."""
_MIROSTAT_M = 100
"""Tokens that Mirostat's first version estimates its exponent from; llama-server's number."""


def new_chain(
    api: Any, vocab: Any, params: SamplingParams, history: Tokens, context_tokens: int
) -> Any:
    """A chain that the caller frees. ``history``: what penalties and DRY look back on;
    ``context_tokens`` is as far as they may.
    """
    return _Chain(api, vocab, params, history, context_tokens).native


class _Chain:
    def __init__(
        self, api: Any, vocab: Any, params: SamplingParams, history: Tokens, context_tokens: int
    ) -> None:
        self._api, self._vocab, self._params = api, vocab, params
        self._history, self._context_tokens = history, context_tokens
        self._size = int(api.llama_vocab_n_tokens(vocab))
        self.native = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if params.logit_bias:
            self._bias(params.logit_bias)
        seed = secrets.randbits(32) if params.seed is None else params.seed & 0xFFFFFFFF
        greedy = params.temperature <= 0 and "temperature" in params.samplers
        if params.mirostat and not greedy:
            self._mirostat(seed)
            return
        for name in params.samplers:
            if not greedy or name in {"penalties", "dry"}:
                _STEPS[name](self, seed)
        if greedy:
            self._add(api.llama_sampler_init_greedy())
        else:
            self._add(api.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        self._api.llama_sampler_chain_add(self.native, sampler)

    def _bias(self, biases: Sequence[tuple[int, float]]) -> None:
        array = (self._api.llama_logit_bias * len(biases))()
        for slot, (token, bias) in zip(array, biases, strict=True):
            slot.token, slot.bias = token, bias
        self._add(self._api.llama_sampler_init_logit_bias(self._size, len(biases), array))

    def _mirostat(self, seed: int) -> None:
        params, api = self._params, self._api
        self._temperature(seed)
        tau, eta = params.mirostat_tau, params.mirostat_eta
        if params.mirostat == 1:
            self._add(api.llama_sampler_init_mirostat(self._size, seed, tau, eta, _MIROSTAT_M))
        else:
            self._add(api.llama_sampler_init_mirostat_v2(seed, tau, eta))

    # The steps, by llama-server's names. Those that would change nothing are left out.

    def _look_back(self, sampler: Any, last: int) -> None:
        """Add a sampler that looks back on the prompt, too."""
        self._add(sampler)
        for token in self._history[-last:].tolist():
            self._api.llama_sampler_accept(sampler, token)

    def _reach(self, last: int) -> int:
        # The library allocates that many at once.
        return self._context_tokens if last < 0 else min(last, self._context_tokens)

    def _penalties(self, _: int) -> None:
        params, last = self._params, self._reach(self._params.penalty_last_n)
        repeat, frequency = params.repeat_penalty, params.frequency_penalty
        presence = params.presence_penalty
        if last and (repeat, frequency, presence) != (1.0, 0.0, 0.0):
            sampler = self._api.llama_sampler_init_penalties(
                self._size, last, repeat, frequency, presence
            )
            self._look_back(sampler, last)

    def _dry(self, _: int) -> None:
        params, last = self._params, self._reach(self._params.dry_penalty_last_n)
        if not params.dry_multiplier or not last:
            return
        breakers = [text.encode() for text in params.dry_sequence_breakers]
        sampler = self._api.llama_sampler_init_dry(
            self._vocab,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            last,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )
        self._look_back(sampler, last)

    def _top_n_sigma(self, _: int) -> None:
        if self._params.top_n_sigma > 0:
            self._add(self._api.llama_sampler_init_top_n_sigma(self._params.top_n_sigma))

    def _top_k(self, _: int) -> None:
        if self._params.top_k > 0:
            self._add(self._api.llama_sampler_init_top_k(min(self._params.top_k, _TOP_K_MAX)))

    @property
    def _keep(self) -> int:
        return max(1, self._params.min_keep)

    def _typical(self, _: int) -> None:
        if self._params.typical_p < 1:
            self._add(self._api.llama_sampler_init_typical(self._params.typical_p, self._keep))

    def _top_p(self, _: int) -> None:
        if self._params.top_p < 1:
            self._add(self._api.llama_sampler_init_top_p(self._params.top_p, self._keep))

    def _min_p(self, _: int) -> None:
        if self._params.min_p > 0:
            self._add(self._api.llama_sampler_init_min_p(self._params.min_p, self._keep))

    def _xtc(self, seed: int) -> None:
        params = self._params
        if params.xtc_probability > 0:
            sampler = self._api.llama_sampler_init_xtc(
                params.xtc_probability, params.xtc_threshold, self._keep, seed
            )
            self._add(sampler)

    def _temperature(self, _: int) -> None:
        params = self._params
        if params.dynatemp_range > 0:
            sampler = self._api.llama_sampler_init_temp_ext(
                params.temperature, params.dynatemp_range, params.dynatemp_exponent
            )
        else:
            sampler = self._api.llama_sampler_init_temp(params.temperature)
        self._add(sampler)


_STEPS: Mapping[str, Callable[[_Chain, int], None]] = {
    "penalties": _Chain._penalties,
    "dry": _Chain._dry,
    "top_n_sigma": _Chain._top_n_sigma,
    "top_k": _Chain._top_k,
    "typ_p": _Chain._typical,
    "top_p": _Chain._top_p,
    "min_p": _Chain._min_p,
    "xtc": _Chain._xtc,
    "temperature": _Chain._temperature,
}

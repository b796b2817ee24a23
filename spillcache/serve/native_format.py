"""Answers of ``POST /completion``, as llama-server's clients read them.

Fields and types are llama-server's, with our tiers in ``timings``. A setting that this server does
not offer is told with the value that asks for nothing.
"""

from collections.abc import Mapping
from typing import Any

from spillcache.errors import SpillcacheError
from spillcache.serve.answer_format import timings_object
from spillcache.serve.http_errors import describe_error
from spillcache.serve.job import DoneEvent, GenerationRequest, TextEvent

_RANDOM_SEED = 2**32 - 1
_NOT_OFFERED: Mapping[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 0,
    "dry_sequence_breakers": [],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "n_keep": 0,
    "n_discard": 0,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "grammar": "",
    "timings_per_token": False,
    "post_sampling_probs": False,
}


class NativeFormat:
    """One answer's JSON objects; an AnswerForm. ``about`` comes before all others."""

    end = b""
    ping = b""

    def __init__(self, model: str, *, stream: bool, return_tokens: bool) -> None:
        self._model = model
        self._stream = stream
        self._return_tokens = return_tokens
        self._settings: dict[str, Any] = {}
        self._prompt = ""
        self._prompt_tokens = self._said = 0
        self._new_line = False

    def about(self, request: GenerationRequest, prompt: str) -> None:
        """What was asked for, and the prompt's text."""
        self._prompt, self._prompt_tokens = prompt, len(request.tokens)
        sampling = request.sampling
        limit = -1 if request.max_tokens is None else request.max_tokens
        self._settings = {
            "seed": _RANDOM_SEED if sampling.seed is None else sampling.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_last_n": sampling.penalty_last_n,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop": list(request.stop),
            "max_tokens": limit,
            "n_predict": limit,
            "ignore_eos": sampling.ignore_eos,
            "stream": self._stream,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
            "lora": [{"id": adapter, "scale": scale} for adapter, scale in request.lora or ()],
            **_NOT_OFFERED,
        }

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """The answer in one piece."""
        self._new_line = "\n" in text
        ids = [one.token for one in tokens] if self._return_tokens else []
        return self._end(text, ids, done)

    def head(self) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The event with a piece of text; with its token id, if that was asked for."""
        self._new_line |= "\n" in event.text
        tokens = [event.token] if isinstance(event, TextEvent) and self._return_tokens else []
        self._said += isinstance(event, TextEvent)
        if not event.text and not tokens:
            return []
        piece = {
            "index": 0,
            "content": event.text,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._said,
            "tokens_evaluated": self._prompt_tokens,
        }
        return [piece]

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """All that is known in the end."""
        return [self._end("", [], done)]

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        return describe_error(error)[1]

    def _end(self, text: str, tokens: list[int], done: DoneEvent) -> dict[str, Any]:
        usage = done.usage
        by_itself = "eos" if done.stop_string is None else "word"
        return {
            "index": 0,
            "content": text,
            "tokens": tokens,
            "id_slot": done.slot,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "generation_settings": self._settings,
            "prompt": self._prompt,
            "has_new_line": self._new_line,
            "truncated": False,
            "stop_type": "limit" if done.reason == "length" else by_itself,
            "stopping_word": done.stop_string or "",
            # The last token of an answer is never computed.
            "tokens_cached": usage.prompt + max(0, usage.generated - 1),
            "timings": timings_object(usage, done.timings),
        }

"""Answers of ``POST /completion`` and ``POST /infill``, as llama-server's clients read them.

Fields and types are llama-server's, with our tiers in ``timings``. A setting that this server does
not offer is told with the value that asks for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from spillcache.engine.base import Engine, SamplingParams
from spillcache.errors import SpillcacheError
from spillcache.serve.answer_format import logprob_entry, timings_object
from spillcache.serve.http_errors import describe_error
from spillcache.serve.job import DoneEvent, GenerationRequest, TextEvent

_RANDOM_SEED = 2**32 - 1
_NOT_OFFERED: Mapping[str, Any] = {
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_discard": 0,
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "speculative.types": "none",
    "timings_per_token": False,
    "backend_sampling": False,
}
_ONLY_OF_ANSWERS: Mapping[str, Any] = {
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
}


def sampling_settings(sampling: SamplingParams) -> dict[str, Any]:
    """What ``generation_settings`` and ``/props`` have in common."""
    return {
        "seed": _RANDOM_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.penalty_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "ignore_eos": sampling.ignore_eos,
        "n_probs": sampling.n_probs or 0,
        "min_keep": sampling.min_keep,
        "post_sampling_probs": sampling.post_sampling_probs,
        "samplers": list(sampling.samplers),
        **_NOT_OFFERED,
    }


class NativeFormat:
    """One answer's JSON objects; an AnswerForm."""

    end = b""
    ping = b""

    def __init__(
        self,
        model: str,
        token_bytes: Callable[[int], bytes],
        *,
        stream: bool,
        return_tokens: bool,
        fields: list[str] | None = None,
        grammar: str = "",
        n_keep: int = 0,
    ) -> None:
        """``fields``: which fields of the answer are wanted; ``a/b`` is b within a. None: all.
        ``grammar`` and ``n_keep`` are told as they are.
        """
        self._model = model
        self._token_bytes = token_bytes
        self._stream = stream
        self._return_tokens = return_tokens
        self._fields = fields or []
        self._grammar, self._n_keep = grammar, n_keep
        self._settings: dict[str, Any] = {}
        self._prompt = ""
        self._prompt_tokens = self._said = 0
        self._new_line = False

    def about(self, request: GenerationRequest, engine: Engine) -> None:
        """See AnswerForm."""
        self._prompt = engine.detokenize(request.tokens.tolist(), special=True)
        self._prompt_tokens = len(request.tokens)
        sampling = request.sampling
        limit = -1 if request.max_tokens is None else request.max_tokens
        self._settings = {
            **sampling_settings(sampling),
            **_ONLY_OF_ANSWERS,
            "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
            "stop": list(request.stop),
            "max_tokens": limit,
            "n_predict": limit,
            "n_keep": self._n_keep,
            "stream": self._stream,
            # JSON knows no infinity.
            "logit_bias": [
                {"token": token, "bias": bias if bias > float("-inf") else None}
                for token, bias in sampling.logit_bias
            ],
            "grammar": self._grammar,
            "lora": [{"id": adapter, "scale": scale} for adapter, scale in request.lora or ()],
        }

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """The answer in one piece."""
        self._new_line = "\n" in text
        ids = [event.token for event in tokens] if self._return_tokens else []
        return self._end(text, ids, done, self._shares(tokens))

    def head(self) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The event with a piece of text; with its token id, as llama-server's streams have it."""
        self._new_line |= "\n" in event.text
        events = [event] if isinstance(event, TextEvent) else []
        self._said += len(events)
        shares = self._shares(events)
        tokens = [one.token for one in events]
        if not event.text and not shares and not (tokens and self._return_tokens):
            return []
        piece = {
            "index": 0,
            "content": event.text,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._said,
            "tokens_evaluated": self._prompt_tokens,
            **shares,
        }
        return [piece]

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """All that is known in the end."""
        return [self._end("", [], done, {})]

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        return describe_error(error)[1]

    def _shares(self, events: list[TextEvent]) -> dict[str, Any]:
        """How likely these tokens were, if that was asked for."""
        found = [
            logprob_entry(
                event.shares,
                self._token_bytes,
                ("prob", "top_probs") if event.shares.drawn else ("logprob", "top_logprobs"),
            )
            for event in events
            if event.shares is not None
        ]
        return {"completion_probabilities": found} if found else {}

    def _end(
        self, text: str, tokens: list[int], done: DoneEvent, shares: dict[str, Any]
    ) -> dict[str, Any]:
        usage = done.usage
        by_itself = "eos" if done.stop_string is None else "word"
        whole = {
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
            **shares,
        }
        return _only(whole, self._fields) if self._fields else whole


def _only(whole: Mapping[str, Any], fields: list[str]) -> dict[str, Any]:
    """The fields of these names; others are passed over, as llama-server does."""
    found: dict[str, Any] = {}
    for path in fields:
        value: Any = whole
        for step in path.split("/"):
            value = value.get(step, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT:
            found[path] = value
    return found


_ABSENT = object()

"""Answers as OpenAI's clients read them, with llama-server's ``timings`` and our tiers."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from spillcache import __version__
from spillcache.engine.base import Engine, TokenShares
from spillcache.errors import SpillcacheError
from spillcache.serve.http_errors import describe_error
from spillcache.serve.job import (
    DoneEvent,
    FinishReason,
    GenerationRequest,
    TextEvent,
    Timings,
    Usage,
)

FINGERPRINT = f"spillcache-{__version__}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's ``usage``, in tokens."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached_total},
    }


def timings_object(usage: Usage, timings: Timings) -> dict[str, Any]:
    """llama-server's ``timings``, and ours: the tiers of reused tokens, restore and queue.

    Times and rates have three decimals: what lies beyond is noise.
    """
    computed, parted = usage.prompt - usage.cached_total, timings.parted
    return {
        "cache_n": usage.cached_total,
        **_pace("prompt", computed, timings.prompt_ms),
        **_pace("predicted", usage.generated, timings.predicted_ms),
        "cache": {tier: usage.cached.get(tier, 0) for tier in ("live", "ram", "disk")},
        "restore_ms": round(timings.restore_ms, 3),
        "restored_bytes": timings.restored_bytes,
        "restored": {tier: timings.restored.get(tier, 0) for tier in ("ram", "disk")},
        "refused": timings.refused,
        "queue_ms": round(timings.queue_ms, 3),
        "cache_decision": timings.decision,
        "parted": parted and {"at": parted.at, "lost": parted.lost},
    }


def logprob_entry(
    shares: TokenShares, token_bytes: Callable[[int], bytes], names: tuple[str, str]
) -> dict[str, Any]:
    """One token of ``logprobs.content``, or of llama-server's ``completion_probabilities``.

    ``names``: what a share is called, and the list of the likeliest tokens.
    """
    share, top = names

    def entry(token: int, value: float) -> dict[str, Any]:
        data = token_bytes(token)
        text = data.decode(errors="replace")
        return {"id": token, "token": text, "bytes": list(data), share: value}

    best = [entry(token, value) for token, value in shares.top]
    return {**entry(shares.token, shares.share), top: best}


def _pace(what: str, tokens: int, ms: float) -> dict[str, Any]:
    return {
        f"{what}_n": tokens,
        f"{what}_ms": round(ms, 3),
        f"{what}_per_token_ms": round(ms / tokens, 3) if tokens else 0.0,
        f"{what}_per_second": round(1000.0 * tokens / ms, 3) if ms > 0 else 0.0,
    }


class AnswerForm(Protocol):
    """What an answer looks like to a client."""

    end: bytes
    """What a stream ends with, after its last event."""

    ping: bytes
    """What a stream says when there has been nothing to tell for a while; may be nothing."""

    def about(self, request: GenerationRequest, engine: Engine) -> None:
        """What was asked for; comes before all others. May take long: not on the event loop."""

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """The answer in one piece; ``text`` is all of it, ``tokens`` the events that it came in."""

    def head(self) -> list[dict[str, Any]]:
        """A stream's events before the first piece of text."""

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The event with a piece of text, if there is something to tell."""

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """The events after the last piece."""

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """The event that ends a stream that can't go on."""


class AnswerFormat(ABC):
    """One answer's JSON objects as OpenAI has them; they share an id, a time and the model's
    name.
    """

    end = b"data: [DONE]\n\n"
    ping = b""
    id_prefix: str
    whole: str
    """The ``object`` of an answer in one piece."""
    chunk: str
    """The ``object`` of a piece of a stream."""

    def __init__(
        self,
        model: str,
        token_bytes: Callable[[int], bytes],
        *,
        include_usage: bool,
        return_tokens: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._include_usage = include_usage
        self._return_tokens = return_tokens
        self.common = {
            "id": self.id_prefix + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def about(self, request: GenerationRequest, engine: Engine) -> None:  # noqa: B027
        """Nothing of it is told."""

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """The answer in one piece; its token ids are in it if they were asked for."""
        choice = {**self._whole_choice(text), "finish_reason": done.reason}
        extra = {"tokens": [one.token for one in tokens]} if self._return_tokens else {}
        return {
            **self.common,
            "object": self.whole,
            "choices": [{"index": 0, "logprobs": self._logprobs(tokens), **choice}],
            "usage": usage_object(done.usage),
            "timings": timings_object(done.usage, done.timings),
            **extra,
        }

    def head(self) -> list[dict[str, Any]]:
        """The chunks before the first piece of text."""
        return []

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The chunk with an event's text, if it has any; with its token id, if that was asked for.

        A token whose text is held back has a chunk too, if ids were asked for.
        """
        token = event.token if isinstance(event, TextEvent) and self._return_tokens else None
        logprobs = self._logprobs([event]) if isinstance(event, TextEvent) else None
        if not event.text and token is None and logprobs is None:
            return []
        chunk = self._stream_chunk(self._piece_choice(event.text), None, logprobs)
        return [chunk if token is None else {**chunk, "tokens": [token]}]

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """The chunks after the last piece: why it ended, then usage if it was asked for."""
        chunks = [self._stream_chunk(self._last_choice(), done.reason)]
        if self._include_usage:
            usage = {"choices": [], "usage": usage_object(done.usage)}
            chunks.append({**self.common, "object": self.chunk, **usage})
        chunks[-1]["timings"] = timings_object(done.usage, done.timings)
        return chunks

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        return describe_error(error)[1]

    def _logprobs(self, events: list[TextEvent]) -> dict[str, Any] | None:
        """How likely these tokens were; None if it was not asked for."""
        names = ("logprob", "top_logprobs")
        found = [
            logprob_entry(event.shares, self._token_bytes, names)
            for event in events
            if event.shares is not None
        ]
        return {"content": found} if found else None

    def _stream_chunk(
        self,
        choice: dict[str, Any],
        reason: FinishReason | None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choices = [{"index": 0, **choice, "logprobs": logprobs, "finish_reason": reason}]
        chunk = {**self.common, "object": self.chunk, "choices": choices}
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    @abstractmethod
    def _whole_choice(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _piece_choice(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _last_choice(self) -> dict[str, Any]: ...


class CompletionFormat(AnswerFormat):
    """Completions: the same object for the whole and its pieces."""

    id_prefix = "cmpl-"
    whole = "text_completion"
    chunk = "text_completion"

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _piece_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _last_choice(self) -> dict[str, Any]:
        return {"text": ""}

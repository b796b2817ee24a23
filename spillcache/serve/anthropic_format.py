"""Answers, errors and models as Anthropic's clients read them."""

import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from spillcache.errors import SpillcacheError
from spillcache.serve.answer_format import timings_object
from spillcache.serve.answer_parser import Thought
from spillcache.serve.block_format import BlockFormat, Opening
from spillcache.serve.error_shapes import anthropic_error
from spillcache.serve.http_errors import describe_error
from spillcache.serve.job import DoneEvent, Usage
from spillcache.serve.tool_call import CallBegun

SIGNATURE = "unsigned"
"""Of thoughts. Clients send back only those that are signed; nobody checks it here."""


def message_usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's ``usage``: a prompt's tokens are read from the cache, or computed and kept in it,
    or else ``input_tokens``.
    """
    return {
        "input_tokens": usage.prompt - usage.cached_total - usage.kept,
        "cache_creation_input_tokens": usage.kept,
        "cache_read_input_tokens": usage.cached_total,
        "output_tokens": usage.generated,
    }


class MessageFormat(BlockFormat):
    """A message. ``stops``: the client's stop sequences; ``limit``: its ``max_tokens``;
    ``thoughts``: whether it asked for them.
    """

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(
        self, model: str, *, stops: Collection[str], limit: int | None, thoughts: bool
    ) -> None:
        super().__init__(thoughts=thoughts)
        self._stops = stops
        self._limit = limit
        self._content: list[dict[str, Any]] = []
        self._common = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        return anthropic_error(*describe_error(error))

    def _start(self, usage: Usage) -> list[dict[str, Any]]:
        end = {"stop_reason": None, "stop_sequence": None}
        said: dict[str, Any] = {**self._common, "content": [], **end}
        message = {**said, "usage": message_usage(usage)}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _open(self, block: Opening) -> list[dict[str, Any]]:
        return [self._event("start", content_block=_block(block))]

    def _delta(self, block: Opening, text: str) -> list[dict[str, Any]]:
        kind, field = _DELTAS[type(block)]
        return [self._event("delta", delta={"type": kind, field: text})]

    def _ended(self, block: Opening, text: str, *, whole: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        told = []
        if isinstance(block, Thought):
            signature = {"type": "signature_delta", "signature": SIGNATURE}
            told.append(self._event("delta", delta=signature))
        told.append(self._event("stop"))
        self._content.append(_block(block) | _filled(block, text))
        return told

    def _event(self, step: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"content_block_{step}", "index": len(self._content), **fields}

    def _finish(self, done: DoneEvent) -> list[dict[str, Any]]:
        delta = {
            "type": "message_delta",
            "delta": self._reason(done),
            "usage": message_usage(done.usage),
            "timings": timings_object(done.usage, done.timings),
        }
        return [delta, {"type": "message_stop"}]

    def _whole(self, done: DoneEvent) -> dict[str, Any]:
        return {
            **self._common,
            "content": self._content,
            **self._reason(done),
            "usage": message_usage(done.usage),
            "timings": timings_object(done.usage, done.timings),
        }

    def _reason(self, done: DoneEvent) -> dict[str, Any]:
        stop = None
        if done.reason == "length":
            full = self._limit is not None and done.usage.generated < self._limit
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif self._calls:
            reason = "tool_use"
        elif done.stop_string in self._stops:
            reason, stop = "stop_sequence", done.stop_string
        else:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop}


_DELTAS: Mapping[type, tuple[str, str]] = {
    str: ("text_delta", "text"),
    Thought: ("thinking_delta", "thinking"),
    CallBegun: ("input_json_delta", "partial_json"),
}


def _block(block: Opening) -> dict[str, Any]:
    """A content block that has said nothing yet."""
    if isinstance(block, CallBegun):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
    if isinstance(block, Thought):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _filled(block: Opening, text: str) -> dict[str, Any]:
    """What it has said in the end. Of a call that was cut off, the values that are whole: as
    Anthropic's clients read it from a stream.
    """
    if isinstance(block, CallBegun):
        return {"input": from_json(text or "{}", allow_partial=True)}
    if isinstance(block, Thought):
        return {"thinking": text, "signature": SIGNATURE}
    return {"text": text}


def model_facts(name: str, created_s: int) -> dict[str, Any]:
    """What Anthropic's clients read of a model, beside its id."""
    created = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "display_name": name, "created_at": created}


def page_facts(name: str) -> dict[str, Any]:
    """What they read of the list of the one model."""
    return {"has_more": False, "first_id": name, "last_id": name}

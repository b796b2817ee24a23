"""Answers as clients of OpenAI's Responses API read them: items, and events that tell of them."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from spillcache.errors import SpillcacheError
from spillcache.serve.answer_format import timings_object
from spillcache.serve.answer_parser import Thought
from spillcache.serve.block_format import BlockFormat, Opening
from spillcache.serve.http_errors import describe_error
from spillcache.serve.job import DoneEvent, Usage
from spillcache.serve.tool_call import CallBegun

_PREFIXES: Mapping[type, str] = {str: "msg_", Thought: "rs_", CallBegun: "fc_"}
_EVENTS: Mapping[type, str] = {
    str: "output_text",
    Thought: "reasoning_text",
    CallBegun: "function_call_arguments",
}


def response_usage(usage: Usage, thought: int) -> dict[str, Any]:
    """OpenAI's ``usage`` of responses, in tokens; ``thought``: how many of the answer's were
    thoughts.
    """
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached_total,
            "cache_write_tokens": usage.kept,
        },
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.prompt + usage.generated,
    }


class ResponseFormat(BlockFormat):
    """A response; ``echoed``: the fields of the request that it repeats."""

    def __init__(self, model: str, echoed: Mapping[str, Any]) -> None:
        super().__init__()
        self._items: list[dict[str, Any]] = []
        self._item_id = ""
        self._said = -1
        self._common = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **echoed,
            "previous_response_id": None,
            "store": False,
        }

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        fault = describe_error(error)[1]["error"]
        told = {"code": fault["code"], "message": fault["message"]}
        return self._event("response.failed", response=self._response("failed", error=told))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._said += 1
        return {"type": kind, "sequence_number": self._said, **fields}

    def _item_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        place = {"item_id": self._item_id, "output_index": len(self._items)}
        return self._event(f"response.{kind}", **place, **fields)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        fields = {"error": None, "incomplete_details": None, "usage": None, **more}
        return {**self._common, "status": status, "output": list(self._items), **fields}

    def _start(self, usage: Usage) -> list[dict[str, Any]]:  # noqa: ARG002
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response("in_progress")) for kind in kinds]

    def _open(self, block: Opening) -> list[dict[str, Any]]:
        self._item_id = _PREFIXES[type(block)] + uuid.uuid4().hex
        item = self._item(block, None, "in_progress")
        added = self._event("response.output_item.added", output_index=len(self._items), item=item)
        if isinstance(block, CallBegun):
            return [added]
        part = self._item_event("content_part.added", content_index=0, part=_part(block, ""))
        return [added, part]

    def _delta(self, block: Opening, text: str) -> list[dict[str, Any]]:
        return [self._item_event(f"{_EVENTS[type(block)]}.delta", delta=text, **_place(block))]

    def _ended(self, block: Opening, text: str, *, whole: bool) -> list[dict[str, Any]]:
        done = f"{_EVENTS[type(block)]}.done"
        if isinstance(block, CallBegun):
            told = [self._item_event(done, name=block.name, arguments=text)]
        else:
            part = _part(block, text)
            told = [
                self._item_event(done, text=text, **_place(block)),
                self._item_event("content_part.done", content_index=0, part=part),
            ]
        item = self._item(block, text, "completed" if whole else "incomplete")
        told.append(
            self._event("response.output_item.done", output_index=len(self._items), item=item)
        )
        self._items.append(item)
        return told

    def _item(self, block: Opening, text: str | None, status: str) -> dict[str, Any]:
        """An item of the output; ``text``: all that it says, None while it begins."""
        common = {"id": self._item_id, "status": status}
        content = [] if text is None else [_part(block, text)]
        if isinstance(block, CallBegun):
            call = {"call_id": block.id, "name": block.name, "arguments": text or ""}
            return {"type": "function_call", **common, **call}
        if isinstance(block, Thought):
            return {"type": "reasoning", **common, "summary": [], "content": content}
        return {"type": "message", **common, "role": "assistant", "content": content}

    def _finish(self, done: DoneEvent) -> list[dict[str, Any]]:
        whole = self._whole(done)
        return [self._event(f"response.{whole['status']}", response=whole)]

    def _whole(self, done: DoneEvent) -> dict[str, Any]:
        short = done.reason == "length"
        return self._response(
            "incomplete" if short else "completed",
            incomplete_details={"reason": "max_output_tokens"} if short else None,
            usage=response_usage(done.usage, self._thought),
            timings=timings_object(done.usage, done.timings),
        )


def _part(block: Opening, text: str) -> dict[str, Any]:
    if isinstance(block, Thought):
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _place(block: Opening) -> dict[str, Any]:
    """Where in its item a block stands."""
    if isinstance(block, CallBegun):
        return {}
    return (
        {"content_index": 0} if isinstance(block, Thought) else {"content_index": 0, "logprobs": []}
    )

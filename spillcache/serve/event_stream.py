"""An answer as server-sent events, piece by piece while it is generated."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from spillcache.serve.answer_events import AnswerEvents, ClientGone
from spillcache.serve.answer_format import AnswerForm
from spillcache.serve.job import DoneEvent, ErrorEvent, Event

PING_S = 10.0
"""A stream that pings is silent no longer than this."""


class EventStream(Response):
    """Sends the events of ``events``, of which ``first`` were already taken; closes it at the end.

    All that is there goes out in one write: nothing waits for more.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AnswerEvents, first: list[Event], form: AnswerForm) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._events = events
        self._batch = first
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send until the answer ends or the client goes; ``events`` watch ``receive`` already."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        data = _encode(self._form.head())
        try:
            await send(start)
            while True:
                data += b"".join(self._encode_event(event) for event in self._batch)
                more = not _is_end(self._batch[-1])
                if data or not more:
                    await send({"type": "http.response.body", "body": data, "more_body": more})
                if not more:
                    return
                data = b""
                self._batch = await self._next_events(send)
        except (ClientGone, OSError):
            return  # nobody is there to be told
        finally:
            self._events.close()

    async def _next_events(self, send: Send) -> list[Event]:
        """The next events; until they come the form's pings go out, if it has any."""
        if not self._form.ping:
            return await self._events.next_events()
        coming = asyncio.ensure_future(self._events.next_events())
        try:
            while not (await asyncio.wait({coming}, timeout=PING_S))[0]:
                ping = {"type": "http.response.body", "body": self._form.ping, "more_body": True}
                await send(ping)
        finally:
            coming.cancel()
        return coming.result()

    def _encode_event(self, event: Event) -> bytes:
        if isinstance(event, ErrorEvent):
            return _encode([self._form.failure(event.error)])
        pieces = self._form.pieces(event)
        if isinstance(event, DoneEvent):
            end = self._form.end if event.is_last else b""
            return _encode(pieces + self._form.tail(event)) + end
        return _encode(pieces)


def _is_end(event: Event) -> bool:
    return event.is_last if isinstance(event, DoneEvent) else isinstance(event, ErrorEvent)


def _encode(objects: Iterable[dict[str, Any]]) -> bytes:
    """Events; those whose objects have a type are named by it."""
    return b"".join(
        b"%bdata: %b\n\n"
        % (
            b"event: %b\n" % one["type"].encode() if "type" in one else b"",
            json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode(),
        )
        for one in objects
    )

"""The bridge from the scheduler's thread to the event loop: one answer's events, one client.

The client may leave at any moment, also while the prompt is still computed. Then the work stops at
once: a watcher reads the connection for as long as the answer takes.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import replace

from starlette.types import Receive

from spillcache.errors import NotReady, SpillcacheError
from spillcache.serve.answer_log import log_done, log_failed, log_left, log_waiting
from spillcache.serve.door import Door
from spillcache.serve.job import (
    DoneEvent,
    ErrorEvent,
    Event,
    GenerationRequest,
    TextEvent,
    Ticket,
)
from spillcache.serve.text_thread import in_text_thread
from spillcache.serve.turn import Turn

LONG_WAIT_S = 10.0
"""Waiting longer than this for a slot is worth a warning."""


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


class AnswerEvents:
    """The events of one request, or of some that follow each other. Everything but the listener
    runs on the event loop.

    ``receive`` is the connection's, its body already read. ``turn`` learns the answer before its
    end is told, so that the next request finds it. Whoever makes one must ``close`` it.
    """

    def __init__(self, receive: Receive, turn: Turn | None = None) -> None:
        self._turn = turn
        self._tokens: list[int] = []
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._ticket: Ticket | None = None
        self._following: deque[GenerationRequest] = deque()
        self._service: Door | None = None
        self._gone = False
        self._ended = False
        self._late: asyncio.TimerHandle | None = None
        self._watcher = asyncio.create_task(self._watch())

    def submit(
        self, service: Door, request: GenerationRequest, *following: GenerationRequest
    ) -> None:
        """Queue the request, and each of the ``following`` when the one before is answered; raises
        what ``Door.submit`` raises, and ClientGone.
        """
        self._service, self._following = service, deque(following)
        self._begin(service, request)

    def _begin(self, service: Door, request: GenerationRequest) -> None:
        if self._gone:
            raise ClientGone
        self._tokens, self._ended = [], False
        self._ticket = service.submit(request, self._listen)
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_later(LONG_WAIT_S, self._warn_if_waiting)

    async def next_events(self) -> list[Event]:
        """What has come since the last call, at least one event; raises ClientGone."""
        event = await self._queue.get()
        events: list[Event] = []
        while event is not None:
            self._note(event)
            if isinstance(event, DoneEvent):
                await self._learn(event.stop_string)
                event = replace(event, is_last=not self._following)
            events.append(event)
            if isinstance(event, DoneEvent) and not event.is_last:
                self._go_on()
            if self._queue.empty():
                return events
            event = self._queue.get_nowait()
        raise ClientGone

    def _go_on(self) -> None:
        """Queue the next request; where that is refused, its answer is an error."""
        if self._service is not None:
            try:
                self._begin(self._service, self._following.popleft())
            except SpillcacheError as error:
                self._queue.put_nowait(ErrorEvent(error))

    def close(self) -> None:
        """Cancel the work, if any is left, and stop watching. May be called twice."""
        if self._ticket is not None:
            self._ticket.cancel()
        self._watcher.cancel()
        if self._late is not None:
            self._late.cancel()

    async def _learn(self, stop: str | None) -> None:
        turn, tokens = self._turn, self._tokens
        if turn is not None and tokens:
            with contextlib.suppress(NotReady):  # the server ends first: the answer is out
                await in_text_thread(lambda: turn.learn(tokens, stop))

    def _note(self, event: Event) -> None:
        if isinstance(event, TextEvent):
            self._tokens.append(event.token)
        elif isinstance(event, DoneEvent):
            self._ended = True
            log_done(event)
        elif isinstance(event, ErrorEvent):
            self._ended = True
            log_failed(event.error)

    def _warn_if_waiting(self) -> None:
        if self._ticket is not None and not self._ticket.started and not self._ended:
            log_waiting(LONG_WAIT_S)

    def _listen(self, event: Event) -> None:
        """Runs on the scheduler's thread."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            # The loop is closed: the server is on its way out, and the client long gone.
            return

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        if not self._ended:
            log_left()
        if self._ticket is not None:
            self._ticket.cancel()
        self._queue.put_nowait(None)

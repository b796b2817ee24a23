"""uvicorn's HTTP connection, with a clock on what it waits for without one.

Clients that dawdle, by design or not, would otherwise keep their connections for ever: those that
never end a request's head, and those that don't read their answers. (Bodies have a clock in
``middleware.BodyLimit``, connections between two requests one of uvicorn's.)
"""

import asyncio
import json
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from spillcache.errors import HeadersTooLarge, RequestError
from spillcache.serve.guards import HEADER_BYTES_MAX
from spillcache.serve.http_errors import describe_error

HEAD_S = 30.0
"""How long a request's head may take, and the first one of a connection to begin."""


class TimedProtocol(H11Protocol):
    """One connection; event loop. ``timeout_s`` is set by ``timed_protocol``."""

    timeout_s = 600.0
    """How long a client may take to read what is sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Go on with a request, or begin one."""
        if self._head is None and self.conn.their_state is h11.IDLE:
            self._await_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_timer()

    def pause_writing(self) -> None:
        """The client does not read: wait for it, for a while."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()
        self._stop_reading_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        self._stop_head_timer()
        super().connection_lost(exc)
        self._stop_reading_timer()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it: an error object, as for all else."""
        trailing, _ = self.conn.trailing_data
        if len(trailing) > HEADER_BYTES_MAX:
            self._refuse(
                HeadersTooLarge(f"the request's head is larger than {HEADER_BYTES_MAX} bytes")
            )
        else:
            why = sys.exception() or msg  # the parser says more than uvicorn does
            self._refuse(RequestError(f"this is no HTTP request that is understood here ({why})"))

    def _await_head(self) -> None:
        self._head = self.loop.call_later(min(HEAD_S, self.timeout_s), self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _refuse(self, error: RequestError) -> None:
        status, content = describe_error(error)
        body = json.dumps(content).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def timed_protocol(timeout_s: float) -> type[TimedProtocol]:
    """The class for uvicorn, which makes one for each connection."""
    return type("Protocol", (TimedProtocol,), {"timeout_s": timeout_s})

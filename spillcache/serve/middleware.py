"""What every request passes through. Plain ASGI: streams flow, and disconnects are seen."""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spillcache.errors import (
    BodyTooLarge,
    BodyTooLate,
    RequestError,
    SpillcacheError,
    Unauthorized,
)
from spillcache.serve.api_keys import ApiKeys
from spillcache.serve.body_room import BodyRoom, BodyShare
from spillcache.serve.error_shapes import ErrorResponse
from spillcache.serve.http_errors import error_object, error_response
from spillcache.serve.tenant import set_tenant

PUBLIC_PATHS = frozenset({"/", "/health", "/v1/health", "/models", "/v1/models"})
"""As llama-server: these answer without a key."""

_DRAIN_S = 2.0

_log = logging.getLogger(__name__)


class ErrorGuard:
    """Turns what nobody caught into a 500 with a sentence, and the traceback into a log entry."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 500 when it fails before its answer began."""
        started = False

        async def sender(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sender)
        except asyncio.CancelledError:
            return  # the server has ended, and the connection is closed
        except Exception:
            _log.exception("request failed: %s %s", scope.get("method"), scope.get("path"))
            if started:
                raise  # the server closes the connection, so that the client sees that it broke
            message = "the server met an unexpected error; its log has the details"
            content = error_object(message, "server_error", SpillcacheError.code)
            await ErrorResponse(content, 500)(scope, receive, send)


class KeyGate:
    """Lets in who has an API key: ``Authorization: Bearer KEY``, or ``X-Api-Key: KEY``.

    ``isolate``: each key is a tenant of its own.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, *, isolate: bool) -> None:
        self._app = app
        self._keys = keys
        self._isolate = isolate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the key, or to a public path; answer 401 otherwise."""
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            given = _given_key(scope)
            key = self._keys.find(given)
            if key is None:
                problem = "the API key is wrong" if given else "an API key is needed"
                error = Unauthorized(f"{problem}; send it as Authorization: Bearer KEY")
                await error_response(error)(scope, receive, send)
                return
            if self._isolate:
                set_tenant(scope, key)
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies past a limit, by their declared length or while they are read, those that
    take longer to come than ``timeout_s``, and those for which others leave no room.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int, timeout_s: float, room_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._room = BodyRoom(room_bytes)
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, counting what is read; answer 413 past the limit, 429 where there is no room."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        # The HTTP parser has seen to it that this is a number.
        if declared and int(declared) > self._limit_bytes:
            await _drain(receive, self._limit_bytes)
            await error_response(self._error())(scope, receive, send)
            return
        with self._room.share(scope) as share:
            await self._app(scope, self._receiver(receive, share), send)

    def _receiver(self, receive: Receive, share: BodyShare) -> Receive:
        read_bytes = 0
        deadline: float | None = asyncio.get_running_loop().time() + self._timeout_s

        async def receiver() -> Message:
            nonlocal read_bytes, deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                late = f"the request's body did not come within {self._timeout_s:g} s"
                raise BodyTooLate(late) from None
            if not message.get("more_body"):
                deadline = None  # what may come yet is only that the client leaves
            read_bytes += len(message.get("body", b""))
            try:
                if read_bytes > self._limit_bytes:
                    raise self._error()
                share.take(len(message.get("body", b"")))
            except RequestError:
                if message["more_body"]:
                    await _drain(receive, self._limit_bytes)
                raise
            return message

        return receiver

    def _error(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._limit_bytes} bytes")


async def _drain(receive: Receive, limit_bytes: int) -> None:
    """Read on and forget, for a while: closing at once would lose the answer on its way back."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            while limit_bytes > 0:
                message = await receive()
                limit_bytes -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


def _given_key(scope: Scope) -> bytes:
    scheme, _, key = header(scope, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return header(scope, b"x-api-key").strip()


def header(scope: Scope, name: bytes) -> bytes:
    """The first field of that name (in lower case); b"" if there is none, or no request."""
    value: bytes
    for key, value in scope.get("headers", ()):
        if key == name:
            return value
    return b""

"""Who may ask, and how much at once. Plain ASGI: what is refused here has not been read yet."""

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from spillcache.errors import Forbidden, HeadersTooLarge, Overloaded, RequestError
from spillcache.serve.http_errors import error_response
from spillcache.serve.middleware import header
from spillcache.serve.origin import ANY, Hosts, is_own

HEADERS_MAX = 100
HEADER_BYTES_MAX = 32 << 10
"""The request line's target included."""
SINGLE = (b"origin", b"authorization", b"x-api-key", b"content-type")
"""Fields by which requests are judged, so that there may be one of each. Of Host and Content-Length
the HTTP parser sees to it.
"""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SHOWN = 100


class HostGate:
    """Refuses requests that call this server by a name that is none of its own."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 403 for a foreign name. Browsers always send one; what sends none is
        no browser.
        """
        host = header(scope, b"host").decode("latin-1")
        if scope["type"] == "http" and _has(scope, b"host") and host not in self._hosts:
            error = Forbidden(
                f"{host[:_SHOWN]!r} is no name of this server; ask for its address, or start it "
                "with --allowed-hosts and that name"
            )
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class OriginGate:
    """Refuses what other sites' pages send, but for requests that change nothing: without leave
    (CORS) they can't read the answers to those.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 403 for a foreign page."""
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            origin = header(scope, b"origin").decode("latin-1")
            if _has(scope, b"origin") and not self._may(origin, scope):
                error = Forbidden(
                    f"pages from {origin[:_SHOWN]!r} may not use this server; start it with "
                    "--allowed-origins and that origin"
                )
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _may(self, origin: str, scope: Scope) -> bool:
        own = is_own(origin, header(scope, b"host").decode("latin-1"))
        return own or ANY in self._allowed or origin in self._allowed


class HeaderLimit:
    """Refuses heads that no client needs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 431 past a limit."""
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if len(scope["headers"]) > HEADERS_MAX or size > HEADER_BYTES_MAX:
                error = HeadersTooLarge(
                    f"the request's head is larger than {HEADER_BYTES_MAX} bytes, or has more than "
                    f"{HEADERS_MAX} fields"
                )
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class HeadGate:
    """Refuses heads that mean two things: a proxy before the server may read the other one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 400 for a field that may be there once and is there twice, and for two
        ways to say how long the body is.
        """
        problem = _ambiguity(scope) if scope["type"] == "http" else ""
        if problem:
            response = error_response(RequestError(f"{problem}; send one"))
            response.headers["Connection"] = "close"  # where the next request begins is unsure
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _ambiguity(scope: Scope) -> str:
    names = [name for name, _ in scope["headers"]]
    for name in SINGLE:
        if names.count(name) > 1:
            return f"the request has the header {name.decode().title()} twice"
    if b"content-length" in names and b"transfer-encoding" in names:
        return "the request has both Content-Length and Transfer-Encoding"
    return ""


class RequestLimit:
    """Refuses requests past a number at a time, before their bodies are read into memory."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer 429 past the limit. GET is free: health must answer in any case."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            error = Overloaded(f"{self._running} requests are being served; try again later")
            await error_response(error)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


def _has(scope: Scope, name: bytes) -> bool:
    return scope["type"] == "http" and any(key == name for key, _ in scope["headers"])

"""``GET /``: for a browser the page (docs/page.md), for all others what this is, as JSON; and
``GET /openapi.json`` for tools.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from spillcache import __version__

_HEADERS = {"Vary": "Accept", "X-Content-Type-Options": "nosniff"}


def root_router(routes: Sequence[str]) -> APIRouter:
    """The route ``/``, which lists ``routes``."""
    router = APIRouter()
    about = {"name": "spillcache", "version": __version__, "routes": list(routes)}
    page, policy = _page()
    page_headers = _HEADERS | {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    @router.get("/")
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(page, headers=page_headers)
        return JSONResponse(about, headers=_HEADERS)

    return router


def openapi_router(document: Mapping[str, Any]) -> APIRouter:
    """The route ``/openapi.json``, which answers with ``document``."""
    router = APIRouter()

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(document)

    return router


def _page() -> tuple[str, str]:
    """The page in one piece, and a policy that lets it run what is in it, ask this server, and
    nothing else: whatever a model writes can't load, send or run anything.
    """
    folder = files("spillcache.serve")
    style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    page = folder.joinpath("page.html").read_text("utf-8")
    page = page.replace("<style></style>", f"<style>{style}</style>")
    page = page.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return page, policy


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def route_names(routers: Sequence[APIRouter]) -> list[str]:
    """``GET /``, and ``"GET /health"`` and so on of what the routers answer."""
    return ["GET /"] + [
        f"{method} {route.path}"
        for router in routers
        for route in router.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]

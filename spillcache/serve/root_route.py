"""What this is: ``GET /`` for whoever opens the address, ``GET /openapi.json`` for tools."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.routing import Route

from spillcache import __version__


def root_router(routes: Sequence[str]) -> APIRouter:
    """The route ``/``, which lists ``routes``."""
    router = APIRouter()
    about = {"name": "spillcache", "version": __version__, "routes": list(routes)}

    @router.get("/")
    async def root() -> Response:
        return JSONResponse(about)

    return router


def openapi_router(document: Mapping[str, Any]) -> APIRouter:
    """The route ``/openapi.json``, which answers with ``document``."""
    router = APIRouter()

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(document)

    return router


def route_names(routers: Sequence[APIRouter]) -> list[str]:
    """``GET /``, and ``"GET /health"`` and so on of what the routers answer."""
    return ["GET /"] + [
        f"{method} {route.path}"
        for router in routers
        for route in router.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]

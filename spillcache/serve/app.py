"""The ASGI application: routes, what every request passes through, and errors in one shape."""

import time
from typing import cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from spillcache.config import ServeConfig
from spillcache.errors import RequestError, SpillcacheError
from spillcache.serve.answer_events import ClientGone
from spillcache.serve.anthropic_routes import anthropic_router
from spillcache.serve.api_keys import ApiKeys
from spillcache.serve.cache_routes import cache_router
from spillcache.serve.door import Door
from spillcache.serve.embedding_routes import embedding_router
from spillcache.serve.error_shapes import ErrorResponse
from spillcache.serve.guards import HeaderLimit, HeadGate, HostGate, OriginGate, RequestLimit
from spillcache.serve.http_errors import error_object, error_response
from spillcache.serve.lacking_routes import lacking_router
from spillcache.serve.meta_routes import meta_router
from spillcache.serve.middleware import BodyLimit, ErrorGuard, KeyGate
from spillcache.serve.native_routes import native_router
from spillcache.serve.openai_routes import openai_router
from spillcache.serve.openapi import describe
from spillcache.serve.origin import Hosts
from spillcache.serve.overview_routes import overview_router
from spillcache.serve.responses_routes import responses_router
from spillcache.serve.root_route import openapi_router, root_router, route_names
from spillcache.serve.slot_routes import slot_router

_ROUTER_ERRORS = {
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
}
"""Type and code of what the router says by itself, by status."""
_TWICE = "/v1/v1"
_SHOWN = 200
_MORE_REQUESTS = 64
"""Besides those that run or wait: whose bodies come, whose prompts are tokenised, and the like."""


def create_app(service: Door) -> FastAPI:
    """The application over a service, which the caller starts and stops.

    Every error that a client sees is OpenAI's error object, or Anthropic's; none holds a traceback.
    """
    app = FastAPI(title="spillcache", openapi_url=None)
    routers = [
        openai_router(service, int(time.time())),
        responses_router(service),
        anthropic_router(service),
        native_router(service),
        embedding_router(service),
        meta_router(service),
        cache_router(service),
        slot_router(service),
        overview_router(service),
    ]
    routers.append(openapi_router(describe([r for router in routers for r in router.routes])))
    app.state.routes = route_names(routers)
    for router in [*routers, root_router(app.state.routes), lacking_router()]:
        app.include_router(router)
    app.add_exception_handler(SpillcacheError, _our_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _nobody_there)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    _guard(app, service.settings.serve, service.slots_total())
    return app


def _guard(app: FastAPI, serve: ServeConfig, slots: int) -> None:
    """What stands before the routes; the last one added is the outermost."""
    app.add_middleware(
        BodyLimit,
        limit_bytes=serve.body_limit_bytes,
        timeout_s=serve.timeout_s,
        room_bytes=serve.bodies_limit_bytes,
    )
    app.add_middleware(RequestLimit, limit=serve.queue_limit + slots + _MORE_REQUESTS)
    if serve.api_keys:
        isolate = serve.isolation == "api-key"
        app.add_middleware(KeyGate, keys=ApiKeys(serve.api_keys), isolate=isolate)
    app.add_middleware(OriginGate, allowed=serve.allowed_origins)
    if serve.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=serve.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.add_middleware(HostGate, hosts=Hosts(serve.host, serve.allowed_hosts))
    app.add_middleware(HeadGate)
    app.add_middleware(HeaderLimit)
    app.add_middleware(ErrorGuard)


async def _our_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return error_response(cast("SpillcacheError", error))


async def _http_error(request: Request, exception: Exception) -> Response:
    """What the router says by itself: no such path, or not by this method."""
    error = cast("HTTPException", exception)
    kind, code = _ROUTER_ERRORS.get(error.status_code, ("invalid_request_error", RequestError.code))
    path = request.url.path
    hint = "GET / lists the routes"
    if path.startswith(_TWICE):
        hint = "the client's base URL has /v1 already: leave one of the two out"
    message = f"{request.method} {path[:_SHOWN]}: {error.detail.lower()}; {hint}"
    content = error_object(message, kind, code)
    return ErrorResponse(content, error.status_code, error.headers)


async def _nobody_there(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The client has closed the connection: the server throws this answer away."""
    return Response(status_code=400)

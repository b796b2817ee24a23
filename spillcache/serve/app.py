"""The ASGI application: routes, what every request passes through, and errors in one shape."""

import time
from typing import cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from spillcache.errors import RequestError, SpillcacheError
from spillcache.serve.answer_events import ClientGone
from spillcache.serve.anthropic_routes import anthropic_router
from spillcache.serve.cache_routes import cache_router
from spillcache.serve.door import Door
from spillcache.serve.error_shapes import ErrorResponse
from spillcache.serve.http_errors import error_object, error_response
from spillcache.serve.meta_routes import meta_router
from spillcache.serve.middleware import BodyLimit, ErrorGuard, KeyGate
from spillcache.serve.native_routes import native_router
from spillcache.serve.openai_routes import openai_router
from spillcache.serve.responses_routes import responses_router
from spillcache.serve.root_route import root_router, route_names

_ROUTER_ERRORS = {
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
}
"""Type and code of what the router says by itself, by status."""


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
        meta_router(service),
        cache_router(service),
    ]
    app.state.routes = route_names(routers)
    for router in [*routers, root_router(app.state.routes)]:
        app.include_router(router)
    app.add_exception_handler(SpillcacheError, _our_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _nobody_there)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    # The last one added is the outermost.
    serve = service.settings.serve
    app.add_middleware(BodyLimit, limit_bytes=serve.body_limit_bytes)
    if serve.api_key is not None:
        app.add_middleware(KeyGate, key=serve.api_key)
    app.add_middleware(ErrorGuard)
    return app


async def _our_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return error_response(cast("SpillcacheError", error))


async def _http_error(request: Request, exception: Exception) -> Response:
    """What the router says by itself: no such path, or not by this method."""
    error = cast("HTTPException", exception)
    kind, code = _ROUTER_ERRORS.get(error.status_code, ("invalid_request_error", RequestError.code))
    message = f"{request.method} {request.url.path}: {error.detail.lower()}; GET / lists the routes"
    content = error_object(message, kind, code)
    return ErrorResponse(content, error.status_code, error.headers)


async def _nobody_there(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The client has closed the connection: the server throws this answer away."""
    return Response(status_code=400)

"""What can be asked of the cache itself."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.cache.spill import Flushed
from spillcache.errors import RequestError, StoreError
from spillcache.serve.door import Door
from spillcache.serve.http_errors import RETRY_AFTER_S, error_object
from spillcache.serve.text_thread import in_text_thread

_FLUSH_S = 60.0
_FLUSH_S_MAX = 600.0


def cache_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()

    @router.post("/cache/flush")
    async def flush(request: Request) -> Response:
        timeout_s = _timeout_s(request)
        return _answer(await in_text_thread(lambda: service.flush(timeout_s)))

    return router


def _timeout_s(request: Request) -> float:
    text = request.query_params.get("timeout_s", str(_FLUSH_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _FLUSH_S_MAX:
        limit = f"a number of seconds from 0 to {_FLUSH_S_MAX:.0f}"
        raise RequestError(f"timeout_s: {text!r} is not {limit}", param="timeout_s")
    return seconds


def _answer(flushed: Flushed) -> Response:
    """200: all is durable; 202: not yet, and the writing goes on; 503: the disk fails."""
    report = {
        "durable": flushed.complete and not flushed.left,
        "blocks": flushed.blocks,
        "bytes": flushed.size_bytes,
        "seconds": round(flushed.seconds, 3),
        "left": flushed.left,
    }
    if flushed.problem:
        text = f"{flushed.left} blocks are not on disk: {flushed.problem}"
        error = error_object(text, "unavailable_error", StoreError.code)
        return JSONResponse(report | error, 503, {"Retry-After": str(RETRY_AFTER_S)})
    return JSONResponse(report, 200 if report["durable"] else 202)

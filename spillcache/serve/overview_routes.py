"""``GET /cache``: what the cache holds and does, in numbers."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from spillcache import __version__
from spillcache.serve.door import Door
from spillcache.serve.openai_routes import model_name
from spillcache.serve.text_thread import in_text_thread


def overview_router(service: Door) -> APIRouter:
    """The route over ``service``."""
    router = APIRouter()

    @router.get("/cache")
    async def overview() -> Response:
        found = await in_text_thread(service.overview)
        about = {"version": __version__, "model": model_name(service.settings)}
        return JSONResponse(about | found, headers={"Cache-Control": "no-store"})

    return router

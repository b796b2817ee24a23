"""llama-server's routes that this server does not have: 501, with a sentence, rather than 404."""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import APIRouter
from fastapi.responses import Response

from spillcache.errors import NotOffered
from spillcache.serve.http_errors import error_response

LACKING: Mapping[str, tuple[str, ...]] = {
    "embeddings are at /v1/embeddings, as OpenAI has them": ("/embedding", "/embeddings"),
    "reranking is not served": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    "properties can't be changed while the server runs; start it with other flags": ("/props",),
    "sound is not served": ("/v1/audio/transcriptions",),
    "one model is served, which -m names; nothing is loaded or unloaded meanwhile": (
        "/models/load",
        "/models/unload",
    ),
}
"""Why not → the paths, all of them for POST."""


def lacking_router() -> APIRouter:
    """The routes; none of them is among those that ``GET /`` lists."""
    router = APIRouter()
    for reason, paths in LACKING.items():
        for path in paths:
            router.add_api_route(path, _answer(path, reason), methods=["POST"])
    return router


def _answer(path: str, reason: str) -> Callable[[], Awaitable[Response]]:
    async def refuse() -> Response:
        return error_response(NotOffered(f"POST {path}: {reason}"))

    return refuse

"""What is not an answer: health, metrics, properties, tokens. The paths are llama-server's."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from spillcache import __version__
from spillcache.engine.base import Engine
from spillcache.errors import Forbidden, NotReady
from spillcache.serve.adapters import Adapters
from spillcache.serve.door import Door
from spillcache.serve.http_errors import RETRY_AFTER_S, error_object, without_paths
from spillcache.serve.native_format import sampling_settings
from spillcache.serve.openai_routes import model_name
from spillcache.serve.prompt_checks import check_token_ids
from spillcache.serve.request_body import read_body
from spillcache.serve.sampling import sampling_params
from spillcache.serve.schema import DetokenizeBody, LoraBody, TokenizeBody
from spillcache.serve.text_thread import in_text_thread

_BUILD_INFO = f"spillcache {__version__}"


def meta_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()

    @router.get("/health")
    @router.get("/v1/health")
    async def health() -> Response:
        if service.state == "ready":
            return JSONResponse(service.health())
        content = error_object(_why_not_ready(service), "unavailable_error", 503)
        return JSONResponse(content, 503, {"Retry-After": str(RETRY_AFTER_S)})

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/props")
    async def props() -> Response:
        return JSONResponse(_props(service, service.engine))

    @router.get("/slots")
    async def slots(fail_on_no_slot: str = "") -> Response:
        return JSONResponse(_slots(service, fail_if_busy=bool(fail_on_no_slot)))

    @router.get("/lora-adapters")
    async def adapters() -> Response:
        return JSONResponse(service.adapters.listed())

    @router.post("/lora-adapters")
    async def set_adapters(request: Request) -> Response:
        known = _common_adapters(service)
        known.set_default((await read_body(request, LoraBody)).pairs)
        return JSONResponse({"success": True})

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, TokenizeBody)
        return JSONResponse({"tokens": await in_text_thread(lambda: _tokenize(engine, body))})

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, DetokenizeBody)
        check_token_ids(engine, body.tokens, "tokens")
        text = await in_text_thread(lambda: engine.detokenize(body.tokens, special=True))
        return JSONResponse({"content": text})

    return router


def _common_adapters(service: Door) -> Adapters:
    """Those of all requests. Raises Forbidden where clients are kept apart."""
    if service.settings.serve.isolation == "api-key":
        raise Forbidden(
            "with --cache-isolation api-key no client sets the adapters of others; name them in "
            "each request, as lora, or start the server with --lora-scaled"
        )
    return service.adapters


def _slots(service: Door, *, fail_if_busy: bool) -> list[dict[str, Any]]:
    """What is at work; ``action`` is there while a slot is saved, restored or erased."""
    size, busy = service.engine.limits.context_tokens, service.slots()
    if fail_if_busy and all(busy):
        raise NotReady("all slots are busy")
    listed: list[dict[str, Any]] = [
        {"id": index, "n_ctx": size, "speculative": False, "is_processing": works}
        for index, works in enumerate(busy)
    ]
    for slot, action in service.slot_actions().items():
        listed[slot]["action"] = action
    return listed


def _why_not_ready(service: Door) -> str:
    if service.state == "loading":
        return "Loading model"  # llama-server's words: scripts wait for them to go
    if service.failure is not None:
        return without_paths(str(service.failure))
    return "the server is stopping"


def _tokenize(engine: Engine, body: TokenizeBody) -> list[Any]:
    pieces = [body.content] if isinstance(body.content, str) else body.content
    check_token_ids(engine, [piece for piece in pieces if isinstance(piece, int)], "content")
    tokens: list[int] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, int):
            tokens.append(piece)
            continue
        special = body.add_special and index == 0
        tokens += engine.tokenize(piece, add_special=special, parse_special=body.parse_special)
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _piece(_bytes(engine, token))} for token in tokens]


def _bytes(engine: Engine, token: int) -> bytes:
    """What a token stands for; of a control token its name."""
    return engine.token_bytes(token) or engine.detokenize([token], special=True).encode()


def _piece(data: bytes) -> str | list[int]:
    """Text, or the bytes where a token is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _props(service: Door, engine: Engine) -> dict[str, Any]:
    limit = service.settings.serve.defaults.max_tokens
    params = {
        **sampling_settings(sampling_params(None, service.settings.serve.defaults)),
        "max_tokens": -1 if limit is None else limit,
        "n_predict": -1 if limit is None else limit,
        "n_keep": 0,
        "reasoning_format": "deepseek",  # llama-server's name for what is always so here
        "stream": False,
        "lora": [],
    }
    return {
        "default_generation_settings": {"params": params, "n_ctx": engine.limits.context_tokens},
        "total_slots": service.slots_total(),
        "model_alias": model_name(service.settings),
        # The name only: the path is this machine's business.
        "model_path": service.settings.engine.model.name,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": engine.info.chat_template,
        "bos_token": engine.info.bos_token,
        "eos_token": engine.info.eos_token,
        "build_info": _BUILD_INFO,
        "is_sleeping": False,
    }

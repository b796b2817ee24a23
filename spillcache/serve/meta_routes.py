"""What is not an answer: health, metrics, properties, tokens. The paths are llama-server's."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from spillcache import __version__
from spillcache.engine.base import Engine
from spillcache.serve.door import Door
from spillcache.serve.http_errors import RETRY_AFTER_S, error_object
from spillcache.serve.openai_routes import check_token_ids, model_name
from spillcache.serve.request_body import read_body
from spillcache.serve.schema import DetokenizeBody, LoraBody, TokenizeBody, sampling_params
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
    async def slots() -> Response:
        return JSONResponse(_slots(service, service.engine.limits.context_tokens))

    @router.get("/lora-adapters")
    async def adapters() -> Response:
        return JSONResponse(service.adapters.listed())

    @router.post("/lora-adapters")
    async def set_adapters(request: Request) -> Response:
        known = service.adapters
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
        text = await in_text_thread(lambda: engine.detokenize(body.tokens))
        return JSONResponse({"content": text})

    return router


def _why_not_ready(service: Door) -> str:
    if service.state == "loading":
        return "Loading model"  # llama-server's words: scripts wait for them to go
    if service.failure is not None:
        return str(service.failure)
    return "the server is stopping"


def _slots(service: Door, size: int) -> list[dict[str, Any]]:
    """What is at work; ``action`` is there while a slot is saved, restored or erased."""
    actions = service.slot_actions()
    listed: list[dict[str, Any]] = [
        {"id": index, "n_ctx": size, "speculative": False, "is_processing": busy}
        for index, busy in enumerate(service.slots())
    ]
    for slot, action in actions.items():
        listed[slot]["action"] = action
    return listed


def _tokenize(engine: Engine, body: TokenizeBody) -> list[Any]:
    tokens = engine.tokenize(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _piece(engine.token_bytes(token))} for token in tokens]


def _piece(data: bytes) -> str | list[int]:
    """Text, or the bytes where a token is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _props(service: Door, engine: Engine) -> dict[str, Any]:
    limit = service.settings.serve.defaults.max_tokens
    defaults = sampling_params(None, service.settings.serve.defaults)
    params = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repeat_penalty,
        "repeat_last_n": defaults.penalty_last_n,
        "frequency_penalty": defaults.frequency_penalty,
        "presence_penalty": defaults.presence_penalty,
        "ignore_eos": defaults.ignore_eos,
        "n_predict": -1 if limit is None else limit,
        "seed": -1 if defaults.seed is None else defaults.seed,
    }
    return {
        "default_generation_settings": {"n_ctx": engine.limits.context_tokens, "params": params},
        "total_slots": service.slots_total(),
        "model_alias": model_name(service.settings),
        # The name only: the path is this machine's business.
        "model_path": service.settings.engine.model.name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": engine.info.chat_template,
        "bos_token": engine.info.bos_token,
        "eos_token": engine.info.eos_token,
        "build_info": _BUILD_INFO,
    }

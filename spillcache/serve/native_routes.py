"""llama-server's own routes to answers and prompts: POST /completion, POST /infill,
POST /apply-template.
"""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.engine.base import Engine
from spillcache.errors import NotOffered, RequestError
from spillcache.serve.door import Door
from spillcache.serve.infill import infill_tokens
from spillcache.serve.native_format import NativeFormat
from spillcache.serve.openai_routes import (
    answer,
    check_length,
    check_token_ids,
    model_name,
    template_variables,
)
from spillcache.serve.request_body import read_body
from spillcache.serve.sampling import grammar_text
from spillcache.serve.schema import InfillBody, NativeBody, TemplateBody
from spillcache.serve.text_thread import in_text_thread


def native_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/completion")
    async def completion(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, NativeBody)
        return await native_answer(request, body, lambda: native_tokens(engine, body))

    @router.post("/infill")
    async def infill(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, InfillBody)

        def tokenize() -> list[int]:
            for text in (body.input_prefix, body.input_suffix):
                check_length(engine, text, "input_prefix")
            return infill_tokens(engine, body, native_tokens(engine, body, begins=False))

        return await native_answer(request, body, tokenize)

    async def native_answer(
        request: Request, body: NativeBody, tokenize: Callable[[], list[int]]
    ) -> Response:
        engine, defaults = service.engine, service.settings.serve.defaults
        if body.id_slot is not None and body.id_slot >= service.slots_total():
            raise RequestError(f"id_slot: there are {service.slots_total()} slots", "id_slot")
        grammar = grammar_text(body, defaults)
        form = NativeFormat(
            name,
            engine.token_bytes,
            stream=bool(body.stream),
            return_tokens=bool(body.return_tokens),
            fields=body.response_fields,
            grammar=grammar[1] if grammar else "",
            n_keep=body.n_keep or 0,
        )
        return await answer(service, request, body, form, tokenize)

    @router.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, TemplateBody)
        if body.tools:
            raise NotOffered("tools are not supported by this server", "tools")
        variables = template_variables(body.chat_template_kwargs, service.settings.serve.defaults)
        prompt = await in_text_thread(
            lambda: engine.chat_prompt(
                body.plain_messages(),
                add_generation_prompt=body.add_generation_prompt,
                variables=variables,
            )
        )
        return JSONResponse({"prompt": prompt})

    return router


def native_tokens(engine: Engine, body: NativeBody, *, begins: bool = True) -> list[int]:
    """The prompt's token ids; may take long: not on the event loop. Raises RequestError.

    A text that comes first begins with BOS, where the model wants one, if the prompt ``begins``
    with it; what follows is as it is.
    """
    pieces = body.one_prompt()
    check_length(engine, "".join(piece for piece in pieces if isinstance(piece, str)), "prompt")
    check_token_ids(engine, [piece for piece in pieces if isinstance(piece, int)], "prompt")
    tokens: list[int] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            special = begins and index == 0
            tokens += engine.tokenize(piece, add_special=special, parse_special=True)
    return tokens

"""llama-server's own routes to answers and prompts: POST /completion, POST /infill,
POST /apply-template.
"""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.engine.base import Engine
from spillcache.serve.call_texts import CallTexts
from spillcache.serve.conversation import Conversation
from spillcache.serve.door import Door
from spillcache.serve.infill import infill_tokens
from spillcache.serve.native_format import NativeFormat
from spillcache.serve.openai_routes import (
    answer,
    begin_turn,
    model_name,
    template_variables,
)
from spillcache.serve.prompt_checks import check_count, check_length, check_token_ids
from spillcache.serve.request_body import read_body
from spillcache.serve.sampling import grammar_text
from spillcache.serve.schema import InfillBody, NativeBody, TemplateBody
from spillcache.serve.tenant import tenant_salt
from spillcache.serve.text_thread import in_text_thread
from spillcache.serve.turn import Turn


def native_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/completion")
    async def completion(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, NativeBody)
        turn = begin_turn(service, request, body)
        return await native_answer(request, body, lambda: native_tokens(engine, body, turn), turn)

    @router.post("/infill")
    async def infill(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, InfillBody)

        turn = begin_turn(service, request, body)

        def tokenize() -> list[int]:
            for text in (body.input_prefix, body.input_suffix):
                check_length(engine, text, "input_prefix")
            return infill_tokens(engine, body, native_tokens(engine, body, turn, begins=False))

        return await native_answer(request, body, tokenize, turn)

    async def native_answer(
        request: Request, body: NativeBody, tokenize: Callable[[], list[int]], turn: Turn
    ) -> Response:
        engine, defaults = service.engine, service.settings.serve.defaults
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
        return await answer(service, request, body, form, tokenize, turn=turn)

    @router.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, TemplateBody)
        variables = template_variables(body.chat_template_kwargs, service.settings.serve.defaults)
        prompt = await in_text_thread(
            lambda: Conversation(
                engine,
                body.plain_messages(),
                body.tools or (),
                texts=CallTexts(
                    service.token_memory, tenant_salt(request.scope, b""), stores=False
                ),
            ).prompt(add_generation_prompt=body.add_generation_prompt, variables=variables)
        )
        return JSONResponse({"prompt": prompt})

    return router


def native_tokens(
    engine: Engine, body: NativeBody, turn: Turn, *, begins: bool = True
) -> list[int]:
    """The prompt's token ids; may take long: not on the event loop. Raises RequestError.

    A text that comes first begins with BOS, where the model wants one, if the prompt ``begins``
    with it; what follows is as it is.
    """
    pieces = body.one_prompt()
    check_count(engine, pieces, "prompt")
    check_length(engine, "".join(piece for piece in pieces if isinstance(piece, str)), "prompt")
    check_token_ids(engine, [piece for piece in pieces if isinstance(piece, int)], "prompt")
    if begins and len(pieces) == 1 and isinstance(pieces[0], str):
        return turn.tokens(pieces[0], add_special=True)
    tokens: list[int] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            special = begins and index == 0
            tokens += engine.tokenize(piece, add_special=special, parse_special=True)
    return tokens

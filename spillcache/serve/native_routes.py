"""llama-server's own routes to answers and prompts: POST /completion, POST /apply-template."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.engine.base import Engine
from spillcache.errors import RequestError
from spillcache.serve.call_texts import CallTexts
from spillcache.serve.conversation import Conversation
from spillcache.serve.door import Door
from spillcache.serve.native_format import NativeFormat
from spillcache.serve.openai_routes import (
    answer,
    begin_turn,
    check_length,
    check_token_ids,
    model_name,
)
from spillcache.serve.request_body import read_body
from spillcache.serve.schema import NativeBody, TemplateBody
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
        if body.id_slot is not None and body.id_slot >= service.slots_total():
            raise RequestError(f"id_slot: there are {service.slots_total()} slots", "id_slot")
        form = NativeFormat(name, stream=bool(body.stream), return_tokens=bool(body.return_tokens))

        turn = begin_turn(service, body)

        def tokenize() -> list[int]:
            tokens = native_tokens(engine, body, turn)
            wanted = body.to_request(tokens, service.settings.serve.defaults)
            form.about(wanted, engine.detokenize(tokens))
            return tokens

        return await answer(service, request, body, form, tokenize, turn=turn)

    @router.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        engine = service.engine
        body = await read_body(request, TemplateBody)
        prompt = await in_text_thread(
            lambda: Conversation(
                engine,
                body.plain_messages(),
                body.tools or (),
                texts=CallTexts(service.token_memory, stores=False),
            ).prompt(add_generation_prompt=body.add_generation_prompt)
        )
        return JSONResponse({"prompt": prompt})

    return router


def native_tokens(engine: Engine, body: NativeBody, turn: Turn) -> list[int]:
    """The prompt's token ids; may take long: not on the event loop. Raises RequestError.

    A text that comes first begins with BOS, where the model wants one; what follows is as it is.
    """
    pieces = body.one_prompt()
    check_length(engine, "".join(piece for piece in pieces if isinstance(piece, str)), "prompt")
    check_token_ids(engine, [piece for piece in pieces if isinstance(piece, int)], "prompt")
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return turn.tokens(pieces[0], add_special=True)
    tokens: list[int] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            tokens += engine.tokenize(piece, add_special=index == 0, parse_special=True)
    return tokens

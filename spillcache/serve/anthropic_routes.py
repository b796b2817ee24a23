"""Anthropic's API: POST /v1/messages, POST /v1/messages/count_tokens."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from spillcache.serve.anthropic_format import MessageFormat
from spillcache.serve.anthropic_schema import MessagesBody
from spillcache.serve.door import Door
from spillcache.serve.openai_routes import (
    begin_turn,
    chat_answer,
    chat_tokens,
    check_ready,
    conversation,
    model_name,
    template_variables,
)
from spillcache.serve.request_body import read_body
from spillcache.serve.text_thread import in_text_thread


def anthropic_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        check_ready(service)
        body = await read_body(request, MessagesBody)
        form = MessageFormat(
            name, stops=body.stops(), limit=body.max_tokens, thoughts=body.wants_thoughts
        )
        return await chat_answer(service, request, await in_text_thread(body.chat), form)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        check_ready(service)
        body = await read_body(request, MessagesBody)
        chat = await in_text_thread(body.chat)
        chat.check_offered()
        turn = begin_turn(service, request, chat)
        variables = template_variables(chat.chat_template_kwargs, service.settings.serve.defaults)

        def tokenize() -> list[int]:
            talk = conversation(service, request, chat)
            return chat_tokens(service.engine, talk, turn, variables)

        tokens = await in_text_thread(tokenize)
        return JSONResponse({"input_tokens": len(tokens)})

    return router

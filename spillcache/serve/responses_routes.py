"""OpenAI's Responses API: POST /v1/responses, without what needs answers to be kept."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from spillcache.errors import RequestError
from spillcache.serve.door import Door
from spillcache.serve.openai_routes import chat_answer, check_ready, model_name
from spillcache.serve.request_body import read_body
from spillcache.serve.responses_format import ResponseFormat
from spillcache.serve.responses_schema import ResponsesBody
from spillcache.serve.text_thread import in_text_thread

_NAMES = {"messages": "input", "response_format": "text.format"}
"""Fields of chats, as this API calls them."""


def responses_router(service: Door) -> APIRouter:
    """The routes over ``service``."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/v1/responses")
    @router.post("/responses")
    async def responses(request: Request) -> Response:
        check_ready(service)
        body = await read_body(request, ResponsesBody)
        form = ResponseFormat(name, body.echoed())
        try:
            chat = await in_text_thread(body.chat)
            return await chat_answer(service, request, chat, form)
        except RequestError as error:
            error.param = _NAMES.get(error.param or "", error.param)
            raise

    return router

"""OpenAI's embeddings: POST /v1/embeddings."""

import base64
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from spillcache.chain import as_tokens
from spillcache.engine.base import Embedding, Engine, Tokens
from spillcache.errors import NotOffered, RequestError, Unsupported
from spillcache.serve.answer_events import ClientGone
from spillcache.serve.door import Door
from spillcache.serve.openai_routes import check_ready, model_name
from spillcache.serve.prompt_checks import check_length, check_token_ids
from spillcache.serve.request_body import read_body
from spillcache.serve.sampling_fields import StrictBody, expected
from spillcache.serve.text_thread import in_text_thread

INPUTS_MAX = 2048
"""OpenAI's own limit."""

_Ids = Annotated[list[int], Field(fail_fast=True)]
_Input = Annotated[
    str
    | _Ids
    | Annotated[list[str], Field(max_length=INPUTS_MAX, fail_fast=True)]
    | Annotated[list[_Ids], Field(max_length=INPUTS_MAX, fail_fast=True)],
    expected(f"a text, a list of token ids, or a list of at most {INPUTS_MAX} of one of these"),
]


class EmbeddingsBody(StrictBody):
    """POST /v1/embeddings."""

    input: _Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def texts(self) -> Sequence[str | list[int]]:
        """Each of the inputs. Raises RequestError for an empty one."""
        given: Any = self.input
        several = isinstance(given, list) and not (given and isinstance(given[0], int))
        texts = given if several else [given]
        if not texts or not all(texts):
            raise RequestError("input: there is nothing in it, or in one of its items", "input")
        return list(texts)


def embedding_router(service: Door) -> APIRouter:
    """The route over ``service``."""
    router = APIRouter()
    name = model_name(service.settings)

    @router.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        check_ready(service)
        body = await read_body(request, EmbeddingsBody)
        if not service.settings.engine.embeddings:
            raise NotOffered("embeddings are not served: start the server with --embeddings")
        if body.dimensions is not None:
            what = "dimensions: a vector has as many as the model gives it; leave the field out"
            raise Unsupported(what, "dimensions")
        engine, texts = service.engine, body.texts()
        prompts = await in_text_thread(lambda: [_tokens(engine, text) for text in texts])
        data = []
        for index, tokens in enumerate(prompts):
            if await request.is_disconnected():
                raise ClientGone
            vector = await in_text_thread(partial(service.embed, tokens))
            data.append({
                "object": "embedding",
                "index": index,
                "embedding": _told(vector, body.encoding_format),
            })  # fmt: skip
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    return router


def _tokens(engine: Engine, text: str | list[int]) -> Tokens:
    """Takes long for a long text: not on the event loop."""
    if isinstance(text, list):
        check_token_ids(engine, text, "input")
        return as_tokens(text)
    check_length(engine, text, "input")
    return as_tokens(engine.tokenize(text, add_special=True, parse_special=True))


def _told(vector: Embedding, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers

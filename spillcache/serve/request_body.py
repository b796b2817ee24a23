"""A request's body: read it, parse it, and say in a sentence what is wrong with it."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spillcache.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body as ``kind``, whatever its content type says (curl -d sends a form's).

    Raises RequestError for malformed JSON, and for the first field at fault, which it names.
    """
    raw = await request.body()
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        # Neither the input nor the URL of an explanation: a body holds prompts.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _bad_body(first) from None


def _bad_body(detail: ErrorDetails) -> RequestError:
    if detail["type"] == "json_invalid":
        return RequestError(f"the body is not JSON: {detail['msg'].removeprefix('Invalid JSON: ')}")
    param = _path(detail["loc"])
    if not param:
        return RequestError("the body must be a JSON object")
    if detail["type"] == "missing":
        return RequestError(f"{param} is required", param)
    message = detail["msg"]
    return RequestError(f"{param}: {message[:1].lower()}{message[1:]}", param)


def _path(loc: tuple[int | str, ...]) -> str:
    """``("messages", 0, "role")`` → ``"messages[0].role"``."""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path

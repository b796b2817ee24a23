"""A request's body: read it, parse it, and say in a sentence what is wrong with it."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spillcache.errors import RequestError
from spillcache.serve.body_room import share_of
from spillcache.serve.body_shape import shape_of
from spillcache.serve.text_thread import in_text_thread

_SMALL_BYTES = 1 << 16
"""A body that can't hold too much of anything."""

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body as ``kind``, whatever its content type says (curl -d sends a form's).

    Raises RequestError for malformed JSON, and for the first field at fault, which it names;
    BodyTooLarge for more values than a request can be made of, Overloaded where other requests'
    bodies leave no room for them. Large ones are parsed beside the event loop.
    """
    raw = await request.body()
    if len(raw) <= _SMALL_BYTES:
        return _parsed(lambda: kind.model_validate_json(raw))
    shape = await in_text_thread(lambda: shape_of(raw))
    shape.check()
    share_of(request.scope).take(shape.parsed_bytes)
    return await in_text_thread(lambda: _parsed(lambda: kind.model_validate_json(raw)))


def body_of(fields: dict[str, Any], kind: type[Body]) -> Body:
    """A body of these fields. Raises RequestError for the first one at fault, which it names."""
    return _parsed(lambda: kind.model_validate(fields))


def _parsed(parse: Callable[[], Body]) -> Body:
    try:
        return parse()
    except ValidationError as error:
        # Neither the input nor the URL of an explanation: a body holds prompts.
        first = error.errors(include_url=False, include_input=False)[0]
        raise _bad_body(first) from None


def _bad_body(detail: ErrorDetails) -> RequestError:
    if detail["type"] == "json_invalid" and "recursion limit" in detail["msg"]:
        return RequestError(
            "the body holds lists or objects within each other, too many levels; send it flatter"
        )
    if detail["type"] == "json_invalid":
        return RequestError(f"the body is not JSON: {detail['msg'].removeprefix('Invalid JSON: ')}")
    param = _path(detail["loc"])
    if not param:
        kind = "list" if detail["type"] == "list_type" else "object"
        return RequestError(f"the body must be a JSON {kind}")
    sentence = _SENTENCES.get(detail["type"])
    if sentence is None:
        message = detail["msg"].removeprefix("Value error, ")
        colon = "" if message.startswith("must be ") else ":"  # our own words, of schema.py
        return RequestError(f"{param}{colon} {message[:1].lower()}{message[1:]}", param)
    # Of the context only the bounds that a sentence names: it may hold more, such as the input.
    return RequestError(f"{param} {sentence.format_map(detail.get('ctx', {}))}", param)


_SENTENCES = {
    "missing": "is required",
    "too_short": "is empty",
    "too_long": "may have at most {max_length} items",
    "string_too_long": "may have at most {max_length} characters",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "dict_type": "must be an object",
}
"""Pydantic's kinds of error in the words of this API."""


def _path(loc: tuple[int | str, ...]) -> str:
    """``("messages", 0, "role")`` → ``"messages[0].role"``."""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path

"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

from typing import Any

from fastapi.responses import JSONResponse

from spillcache.errors import (
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    SpillcacheError,
    Unauthorized,
)
from spillcache.serve.error_shapes import ErrorResponse

RETRY_AFTER_S = 1

_TYPES: dict[type[RequestError], str] = {
    Unauthorized: "authentication_error",
    Overloaded: "rate_limit_error",
    NotReady: "unavailable_error",
}


def error_object(
    message: str, kind: str, code: str | int | None, param: str | None = None
) -> dict[str, Any]:
    """The JSON object of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe_error(error: SpillcacheError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the JSON object of one of our errors."""
    if not isinstance(error, RequestError):
        return 500, error_object(str(error), "server_error", error.code)
    kind = _TYPES.get(type(error), "invalid_request_error")
    # OpenAI's clients look for this code of theirs to know that they should shorten the prompt.
    code = "context_length_exceeded" if isinstance(error, PromptTooLong) else error.code
    return error.status, error_object(str(error), kind, code, error.param)


def error_response(error: SpillcacheError) -> JSONResponse:
    """The answer to a request that met ``error``."""
    status, content = describe_error(error)
    headers = {}
    if isinstance(error, NotReady | Overloaded):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return ErrorResponse(content, status, headers)

"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

import re
from typing import Any

from fastapi.responses import JSONResponse

from spillcache.errors import (
    BodyTooLate,
    Forbidden,
    NotOffered,
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    SlotFileError,
    SlotFileMissing,
    SlotFileNoMemory,
    SlotFilesOff,
    SpillcacheError,
    Unauthorized,
)
from spillcache.serve.error_shapes import ErrorResponse

RETRY_AFTER_S = 1

_PATH = re.compile(r"(?<![\w.:/])(?:/[^\s/:;,'\"()]+){2,}")

_TYPES: dict[type[RequestError], str] = {
    NotOffered: "not_supported_error",
    Unauthorized: "authentication_error",
    Forbidden: "permission_error",
    BodyTooLate: "timeout_error",
    Overloaded: "rate_limit_error",
    NotReady: "unavailable_error",
    SlotFilesOff: "not_supported_error",
    SlotFileMissing: "not_found_error",
    SlotFileNoMemory: "unavailable_error",
}


def error_object(
    message: str, kind: str, code: str | int | None, param: str | None = None
) -> dict[str, Any]:
    """The JSON object of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def without_paths(text: str) -> str:
    """``text`` with no more of paths than their last names: where a server keeps its files is
    nothing to its clients. Its log has all of it.
    """
    return _PATH.sub(lambda match: "…/" + match[0].rsplit("/", 1)[1], text)


def describe_error(error: SpillcacheError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the JSON object of one of our errors."""
    if not isinstance(error, RequestError):
        return 500, error_object(without_paths(str(error)), "server_error", error.code)
    other = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(type(error), other)
    # OpenAI's clients look for this code of theirs to know that they should shorten the prompt.
    code = "context_length_exceeded" if isinstance(error, PromptTooLong) else error.code
    content = error_object(str(error), kind, code, error.param)
    if isinstance(error, SlotFileError):
        content["error"]["kind"] = error.kind
        content["error"] |= {"published": True} if error.published else {}
    return error.status, content


def error_response(error: SpillcacheError) -> JSONResponse:
    """The answer to a request that met ``error``."""
    status, content = describe_error(error)
    headers = {}
    if isinstance(error, NotReady | Overloaded | SlotFileNoMemory):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return ErrorResponse(content, status, headers)

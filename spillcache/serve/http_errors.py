"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``; and as
Anthropic's do, to whom speaks that API: ``{"type": "error", "error": {"type", "message"}}``.
"""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from spillcache.errors import (
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    SpillcacheError,
    Unauthorized,
)

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


_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {"unavailable_error": "overloaded_error", "server_error": "api_error"}
_ANTHROPIC_STATUS = {404: "not_found_error", 413: "request_too_large"}
_ANTHROPIC_KNOWN = {
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "timeout_error",
    *_ANTHROPIC_TYPES.values(),
}


class ErrorResponse(JSONResponse):
    """An error object of OpenAI's, sent in the shape that the client reads."""

    def __init__(
        self, content: dict[str, Any], status: int, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, status, headers)
        self._anthropic = JSONResponse(anthropic_error(status, content), status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if speaks_anthropic(scope):
            await self._anthropic(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is one of Anthropic's API: by its path, or by its version header."""
    if scope.get("path", "").startswith(_ANTHROPIC_PATH):
        return True
    return any(name == b"anthropic-version" for name, _ in scope.get("headers", ()))


def anthropic_error(status: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """Anthropic's error object for one of OpenAI's."""
    error = content["error"]
    kind = _ANTHROPIC_TYPES.get(error["type"], error["type"])
    message = error["message"]
    if status in _ANTHROPIC_STATUS:
        kind = _ANTHROPIC_STATUS[status]
    elif kind not in _ANTHROPIC_KNOWN:
        kind = "api_error" if status >= 500 else "invalid_request_error"
    if error["code"] == "context_length_exceeded":
        # The words by which these clients know that they should shorten the prompt.
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}

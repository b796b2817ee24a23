"""Errors in the shape that a client reads: OpenAI's, as ``http_errors`` makes them, or Anthropic's:
``{"type": "error", "error": {"type", "message"}}``.
"""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

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

"""Errors in the shape that the client reads, by what it asked."""

import asyncio

import pytest

from spillcache.errors import (
    BodyTooLarge,
    DecodeError,
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    Unauthorized,
    Unsupported,
)
from spillcache.serve.error_shapes import anthropic_error, speaks_anthropic
from spillcache.serve.http_errors import describe_error, error_object, error_response


def sent(response, scope):
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(response({"type": "http", **scope}, None, send))
    return messages[0]["status"], dict(messages[0]["headers"]), messages[1]["body"]


@pytest.mark.parametrize(
    ("scope", "speaks"),
    [
        ({"path": "/v1/messages", "headers": []}, True),
        ({"path": "/v1/messages/count_tokens", "headers": []}, True),
        ({"path": "/v1/models", "headers": [(b"anthropic-version", b"2023-06-01")]}, True),
        ({"path": "/v1/chat/completions", "headers": [(b"x-api-key", b"k")]}, False),
        ({}, False),
    ],
)
def test_who_reads_which_shape(scope, speaks):
    assert speaks_anthropic(scope) == speaks
    status, headers, body = sent(error_response(Overloaded("256 wait")), scope)
    assert (status, headers[b"retry-after"]) == (429, b"1")
    assert body.startswith(b'{"type":"error"' if speaks else b'{"error":{"message"')


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("x"), 400, "invalid_request_error"),
        (Unsupported("x"), 400, "invalid_request_error"),
        (PromptTooLong("x"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (BodyTooLarge("x"), 413, "request_too_large"),
        (Overloaded("x"), 429, "rate_limit_error"),
        (DecodeError("x"), 500, "api_error"),
        (NotReady("x"), 503, "overloaded_error"),
    ],
)
def test_types(error, status, kind):
    said, content = describe_error(error)
    assert said == status
    words = "prompt is too long: x" if isinstance(error, PromptTooLong) else "x"
    assert anthropic_error(said, content) == {
        "type": "error",
        "error": {"type": kind, "message": words},
    }


@pytest.mark.parametrize(("status", "kind"), [(501, "api_error"), (418, "invalid_request_error")])
def test_types_that_only_others_know(status, kind):
    content = error_object("x", "not_supported_error", None)
    assert anthropic_error(status, content)["error"]["type"] == kind

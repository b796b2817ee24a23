"""The routes in OpenAPI's words, for tools that make clients, or tests, from them.

Bodies are read whatever their content type says (``request_body``), so FastAPI does not see their
shapes; they are said here. Nothing in it is this server's own: no path, no model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from spillcache import __version__
from spillcache.engine.chat_template import ROLES
from spillcache.serve.anthropic_schema import MessagesBody
from spillcache.serve.embedding_routes import EmbeddingsBody
from spillcache.serve.responses_schema import ResponsesBody
from spillcache.serve.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    InfillBody,
    LoraBody,
    NativeBody,
    TemplateBody,
    TokenizeBody,
)
from spillcache.serve.slot_routes import SlotBody

BODIES: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatBody,
    "/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/completions": CompletionBody,
    "/completion": NativeBody,
    "/infill": InfillBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": MessagesBody,
    "/v1/responses": ResponsesBody,
    "/responses": ResponsesBody,
    "/v1/embeddings": EmbeddingsBody,
    "/apply-template": TemplateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/lora-adapters": LoraBody,
    "/slots/{id_slot}": SlotBody,
}
"""What each POST route takes."""

NO_BODY = frozenset({"/cache/flush"})

_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_NARROWER: Mapping[tuple[str, str], dict[str, Any]] = {
    ("Message", "role"): {"enum": list(ROLES)},
    ("Message", "content"): {
        "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]
    },
    ("CompletionBody", "prompt"): {"anyOf": [{"type": "string", "minLength": 1}, _TOKENS]},
    **{(name, "n"): {"enum": [1, None]} for name in ("ChatBody", "CompletionBody", "NativeBody")},
}
"""Fields of which more is known than their types say."""

_SCHEMAS = "#/components/schemas/"
_ERRORS = {
    "400": "what is asked for can't be meant, or is not offered",
    "401": "no API key, or a wrong one",
    "403": "a foreign Host, or a foreign page",
    "404": "no such thing",
    "408": "the body came too late",
    "413": "the body is too large",
    "429": "too many wait; ask again after Retry-After",
    "431": "the head is too large",
    "500": "the server failed; its log says why",
    "501": "not offered by this server",
    "503": "the model loads, the server stops, or the disk fails; ask again after Retry-After",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
                "kind": {"type": "string"},
            },
        }
    },
}


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document for an application's routes: JSON's types, to be kept by the caller."""
    document = get_openapi(title="spillcache", version=__version__, routes=routes)
    models = sorted(set(BODIES.values()), key=lambda model: model.__name__)
    _, shapes = models_json_schema(
        [(model, "validation") for model in models], ref_template=_SCHEMAS + "{model}"
    )
    document["components"] = {
        "schemas": {name: _offered(name, shape) for name, shape in shapes["$defs"].items()}
        | {"Error": _ERROR},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "post" and path in BODIES:
                operation["requestBody"] = _body(BODIES[path])
            operation["responses"] = _answers(operation["responses"])
    return document


def _offered(model: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that are known only to be refused: those have no type."""
    fields = {
        name: _NARROWER.get((model, name), field)
        for name, field in shape.get("properties", {}).items()
        if field.keys() & {"type", "anyOf", "$ref"}
    }
    return dict(shape) | ({"properties": fields} if fields else {})


def _body(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": _SCHEMAS + model.__name__}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answers(found: Mapping[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}Error"}}}
    known = {status: answer for status, answer in found.items() if status != "422"}
    return known | {
        status: {"description": text, "content": error} for status, text in _ERRORS.items()
    }

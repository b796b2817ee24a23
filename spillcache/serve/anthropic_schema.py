"""What Anthropic's clients may send, and the chat that it comes to."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from spillcache.errors import RequestError
from spillcache.serve.anthropic_messages import chat_messages
from spillcache.serve.request_body import body_of
from spillcache.serve.schema import ChatBody, Content, GenerationBody, Stop, shared_fields

_Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


_THINKS = {"enabled": True, "disabled": False}
"""What templates that know ``enable_thinking`` are told; else the model does as it likes."""


class TurnMessage(BaseModel):
    """One of ``messages``."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    role: str
    content: Content


class MessagesBody(GenerationBody):
    """POST /v1/messages, and /v1/messages/count_tokens. What it has in common with chats, ours and
    llama-server's fields among it, means the same.
    """

    prompt_field = "messages"

    messages: Annotated[list[TurnMessage], Field(min_length=1, fail_fast=True)]
    system: Content = None
    stop_sequences: Stop = None
    tools: _Objects | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: Any = None
    """Taken, and not needed: every prompt is cached from its beginning on."""

    @property
    def wants_thoughts(self) -> bool:
        """Whether thoughts are told. Raises RequestError for what ``thinking`` can't be."""
        return self._thinking_kind not in {None, "disabled"}

    @property
    def _thinking_kind(self) -> str | None:
        if self.thinking is None:
            return None
        kind: Any = self.thinking.get("type")
        if kind not in ("enabled", "adaptive", "disabled"):
            what = "thinking.type must be enabled, adaptive or disabled"
            raise RequestError(what, "thinking.type")
        return str(kind)

    def chat(self) -> ChatBody:
        """The chat that is asked for. Raises RequestError and Unsupported."""
        messages = [(each.role, each.content) for each in self.messages]
        fields = shared_fields(self) | {
            "messages": chat_messages(self.system, messages),
            "tools": [_tool(tool) for tool in self.tools or () if _is_ours(tool)],
            **_choice(self.tool_choice),
            **_format(self.output_config),
        }
        if self.stop_sequences is not None:
            fields["stop"] = self.stop_sequences
        thinks = _THINKS.get(self._thinking_kind or "")
        if thinks is not None:
            given = self.chat_template_kwargs or {}
            fields["chat_template_kwargs"] = {"enable_thinking": thinks, **given}
        return body_of(fields, ChatBody)

    def stops(self) -> Sequence[str]:
        """The texts that end the answer."""
        stop = self.stop_sequences or self.stop or ()
        return (stop,) if isinstance(stop, str) else stop


def _is_ours(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is described; others only Anthropic's models and servers know."""
    return tool.get("type") in (None, "custom")


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    function = {name: value for name, value in given.items() if value is not None}
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    words: Mapping[str, Any] = {
        "auto": "auto",
        "any": "required",
        "none": "none",
        "tool": {"type": "function", "function": {"name": choice.get("name")}},
    }
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in words:
        raise RequestError("tool_choice.type must be auto, any, tool or none", "tool_choice.type")
    return {
        "tool_choice": words[kind],
        "parallel_tool_calls": choice.get("disable_parallel_tool_use") is not True,
    }


def _format(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer's JSON schema, as OpenAI's chats name it."""
    asked = (config or {}).get("format")
    if asked is None:
        return {}
    if not isinstance(asked, Mapping) or asked.get("type") != "json_schema":
        what = "output_config.format must be an object of type json_schema"
        raise RequestError(what, "output_config.format")
    schema = {"name": "answer", "schema": asked.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}

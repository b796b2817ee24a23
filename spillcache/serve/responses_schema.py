"""What clients of OpenAI's Responses API may send, and the chat that it comes to."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from spillcache.errors import RequestError, Unsupported
from spillcache.serve.request_body import body_of
from spillcache.serve.responses_input import chat_messages
from spillcache.serve.schema import ChatBody, Content, GenerationBody, shared_fields

_Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
    "user",
)
"""Fields that an answer repeats."""
_DEFAULTS: Mapping[str, Any] = {
    "metadata": {},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}
_STATEFUL = {
    "background": "answers come at once or as a stream",
    "conversation": "conversations are not kept here; send all of it as input",
    "previous_response_id": "answers are not kept here; send the whole conversation as input",
    "prompt": "there are no templates of prompts here; send the input",
}
"""What needs a server that keeps answers → why there is none of it."""


class ResponsesBody(GenerationBody):
    """POST /v1/responses. What it has in common with chats means the same."""

    prompt_field = "input"

    input: Content
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    store: bool | None = None
    """Nothing is kept for later requests, whatever it says."""
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: _Objects | None = None
    truncation: str | None = None
    """A prompt that is too long is an error, whatever it says."""
    user: str | None = None

    background: Any = None
    conversation: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    top_logprobs: Any = None

    def chat(self) -> ChatBody:
        """The chat that is asked for. Raises RequestError and Unsupported."""
        self._check_stateless()
        fields = shared_fields(self) | {
            "messages": chat_messages(self.instructions, self.input),
            "tools": [_tool(tool) for tool in self.tools or () if tool.get("type") == "function"],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            **_format(self.text),
        }
        if self.max_output_tokens is not None:
            fields["max_tokens"] = self.max_output_tokens
        return body_of(fields, ChatBody)

    def _check_stateless(self) -> None:
        for name, reason in _STATEFUL.items():
            if getattr(self, name):
                raise Unsupported(f"{name} is not supported: {reason}", name)
        if self.top_logprobs:
            raise Unsupported("top_logprobs is not supported by this route", "top_logprobs")

    def echoed(self) -> dict[str, Any]:
        """What an answer repeats of it."""
        said = {name: getattr(self, name) for name in _ECHOED}
        return {
            name: _DEFAULTS.get(name) if value is None else value for name, value in said.items()
        }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    # Not ``strict``, which is nothing to the model: other APIs' clients need not send it.
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        what = "tool_choice must be none, auto, required, or name a function"
        raise RequestError(what, "tool_choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _format(text: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer's format, as chats name it: there a schema and its name are one level deeper."""
    asked = (text or {}).get("format")
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise RequestError("text.format must be an object", "text.format")
    if asked.get("type") != "json_schema":
        return {"response_format": dict(asked)}
    schema = {name: value for name, value in asked.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}

"""Tools for templates that know none: what messages say instead.

The tools are told in the system message, calls are written as Hermes models write them, and results
come from the user, in tags. So a template needs no more than the roles that all have.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spillcache.engine.call_arguments import CallArguments
from spillcache.serve.tool_call import json_text

_INTRODUCTION = """You can call functions. These are described here, one JSON object in a line:
<tools>
{tools}
</tools>
To call a function, write an object with its name and its arguments, in this form:
<tool_call>
{{"name": "the function's name", "arguments": {{"the argument's name": "its value"}}}}
</tool_call>
Several calls are written one after the other. What they return comes in <tool_response> tags."""


def generic_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with its tools in words. ``tools``: OpenAI's; may be empty."""
    told: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            _add(told, _result(message))
        elif role == "assistant" and message.get("tool_calls"):
            _add(told, _calls(message))
        else:
            _add(told, dict(message))
    if tools:
        _introduce(told, tools)
    return told


def _introduce(told: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
    lines = "\n".join(json_text(tool.get("function", tool)) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    if told and told[0].get("role") in {"system", "developer"}:
        before = _text(told[0])
        told[0]["content"] = f"{before}\n\n{text}" if before else text
    else:
        told.insert(0, {"role": "system", "content": text})


def _add(told: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Append it; what a user and tools say one after the other is one turn."""
    last = told[-1] if told else {}
    joins = message.get("role") == "user" and last.get("role") == "user"
    if joins and (message.pop("result", False) or last.get("result")):
        last["content"] = f"{_text(last)}\n{_text(message)}"
        return
    told.append(message)


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    text = f"<tool_response>\n{_text(message)}\n</tool_response>"
    return {"role": "user", "content": text, "result": True}


def _calls(message: Mapping[str, Any]) -> dict[str, Any]:
    lines = [_text(message)] if _text(message) else []
    calls = message["tool_calls"]
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            given = function.get("arguments")
            source = str(given) if isinstance(given, CallArguments | str) else json_text(given)
            name = json.dumps(function.get("name"), ensure_ascii=False)
            lines += ["<tool_call>", f'{{"name": {name}, "arguments": {source}}}', "</tool_call>"]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(lines)}


def _text(message: Mapping[str, Any]) -> str:
    """A message's content as one text; other parts than texts are found out later."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def call_schema(tools: Sequence[Mapping[str, Any]], name: str | None = None) -> dict[str, Any]:
    """The JSON schema of a call of one of these tools, or of the one of this name: an answer that
    is held to it is a call, whatever the model's own format.
    """
    functions = [tool["function"] for tool in tools]
    calls = [_one_call(each) for each in functions if name in {None, each["name"]}]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _one_call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }

"""Anthropic's messages as OpenAI's chats have them.

Equal conversations come to equal messages, so that both APIs find the same state. What a block may
hold besides (``cache_control``, ``citations``) changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spillcache.engine.chat_template import only_text
from spillcache.errors import RequestError, Unsupported
from spillcache.serve.tool_call import json_text

_Content = str | list[dict[str, Any]] | None
_BILLING = "x-anthropic-billing-header:"
"""How a block of the system prompt begins that is for Anthropic's accounts. It differs from request
to request: with it no prompt would begin as the one before.
"""


def chat_messages(system: _Content, turns: Sequence[tuple[str, _Content]]) -> list[dict[str, Any]]:
    """The messages of a chat; ``turns``: roles and contents. Neighbours of one role are one turn,
    as Anthropic has it.

    Raises RequestError for what is not as it should be, Unsupported for media.
    """
    told: list[dict[str, Any]] = []
    parts = [part for part in _texts(system, "system") if not part["text"].startswith(_BILLING)]
    if parts:
        told.append({"role": "system", "content": parts})
    for index, (role, content) in enumerate(turns):
        where = f"messages[{index}]"
        if role == "assistant":
            _add(told, _assistant(content, f"{where}.content"))
        elif role == "user":
            for message in _user(content, f"{where}.content"):
                _add(told, message)
        elif role == "system":
            told.append({"role": "system", "content": _texts(content, f"{where}.content")})
        else:
            raise RequestError(f"{where}.role must be user or assistant", f"{where}.role")
    if turns[-1][0] == "assistant":
        raise Unsupported(
            "messages: the last one is the assistant's, and to go on from the beginning of an "
            "answer is not supported; end with a user's message",
            "messages",
        )
    return told


def _add(told: list[dict[str, Any]], message: dict[str, Any]) -> None:
    last = told[-1] if told else {}
    role = message["role"]
    if role == "tool" or last.get("role") != role:
        told.append(message)
        return
    for name, value in message.items():
        if name != "role":
            last[name] = last[name] + value if name in last else value


def _blocks(content: _Content, where: str) -> list[tuple[dict[str, Any], str, str]]:
    """The blocks of a content, with their types and places."""
    if content is None:
        raise RequestError(f"{where} must be a text or a list of blocks", where)
    if isinstance(content, str):
        return [({"type": "text", "text": content}, "text", where)]
    found = []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str):
            raise RequestError(f"{place} must be an object with a type", place)
        found.append((block, kind, place))
    return found


def _texts(content: _Content, where: str) -> list[dict[str, Any]]:
    """A content of texts only, as OpenAI's parts; none at all is an empty one."""
    if content is None:
        return []
    return [_part(block, kind, place) for block, kind, place in _blocks(content, where)]


def _part(block: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    if kind != "text":
        raise only_text(where, kind)
    return {"type": "text", "text": _field(block, "text", where)}


def _field(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a text", f"{where}.{name}")
    return value


def _user(content: _Content, where: str) -> list[dict[str, Any]]:
    """What a user says, and the results of tools, in their order."""
    told: list[dict[str, Any]] = []
    for block, kind, place in _blocks(content, where):
        if kind == "tool_result":
            told.append({
                "role": "tool",
                "tool_call_id": _field(block, "tool_use_id", place),
                "content": _result(block.get("content"), f"{place}.content"),
            })  # fmt: skip
        else:
            _add(told, {"role": "user", "content": [_part(block, kind, place)]})
    return told


def _result(content: Any, where: str) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of blocks", where)
    return _texts(content, where)


def _assistant(content: _Content, where: str) -> dict[str, Any]:
    """An answer as it was given: thoughts, words and calls."""
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, kind, place in _blocks(content, where):
        if kind == "thinking":
            thoughts.append(_field(block, "thinking", place))
        elif kind == "tool_use":
            calls.append(_call(block, place))
        elif kind != "redacted_thinking":  # of another server, which alone can read it
            texts.append(_part(block, kind, place))
    message: dict[str, Any] = {"role": "assistant", "content": texts}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise RequestError(f"{where}.input must be an object", f"{where}.input")
    try:
        arguments = json_text(given)
    except RecursionError as error:
        what = f"{where}.input is nested too deeply"
        raise RequestError(what, f"{where}.input") from error
    function = {"name": _field(block, "name", where), "arguments": arguments}
    return {"id": _field(block, "id", where), "type": "function", "function": function}

"""The input of OpenAI's Responses API as chats have it: items, of which several are one message."""

from collections.abc import Mapping
from typing import Any

from spillcache.engine.chat_template import only_text
from spillcache.errors import RequestError, Unsupported

_ROLES = {"user", "assistant", "system", "developer"}


def chat_messages(
    instructions: str | None, given: str | list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """The messages of a chat. What a model said in one answer (thoughts, words, calls) is one.

    Raises RequestError for what is not as it should be, Unsupported for other kinds of items.
    """
    told: list[dict[str, Any]] = []
    if instructions:
        told.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*told, {"role": "user", "content": given}]
    if not given:
        raise RequestError("input is empty", "input")
    for index, item in enumerate(given):
        _add(told, item, f"input[{index}]")
    return told


def _add(told: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(told, item, where)
    elif kind == "reasoning":
        # An answer begins with its thoughts.
        message = _answer(told, new=len(_open_answer(told)) > 1)
        message["reasoning_content"] = _thoughts(item, where)
    elif kind == "function_call":
        _answer(told).setdefault("tool_calls", []).append(_call(item, where))
    elif kind == "function_call_output":
        call_id = _field(item, "call_id", where)
        output = _content(item.get("output"), f"{where}.output")
        told.append({"role": "tool", "tool_call_id": call_id, "content": output})
    else:
        raise Unsupported(f"{where}: this server knows no item of this type", where)


def _add_message(told: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        what = f"{where}.role must be user, assistant, system or developer"
        raise RequestError(what, f"{where}.role")
    content = _content(item.get("content"), f"{where}.content")
    if role != "assistant":
        told.append({"role": role, "content": content})
        return
    begun = _open_answer(told)
    message = _answer(told, new="content" in begun and "tool_calls" not in begun)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    message["content"] = message.get("content", []) + parts


def _open_answer(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that more may belong to."""
    return told[-1] if told and told[-1]["role"] == "assistant" else {}


def _answer(told: list[dict[str, Any]], *, new: bool = False) -> dict[str, Any]:
    """The answer that an item belongs to: the one before it, or a ``new`` one."""
    if new or not _open_answer(told):
        told.append({"role": "assistant"})
    return told[-1]


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A text, or parts that chats know by the same names."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of parts", where)
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise RequestError(f"{place} must be an object with a type", place)
        if kind not in {"input_text", "output_text", "text", "refusal"}:
            raise only_text(place, kind)
        _field(part, "refusal" if kind == "refusal" else "text", place)
    return content


def _thoughts(item: Mapping[str, Any], where: str) -> str:
    """What a model thought; nothing, where only its maker's servers can read it."""
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{where}.content must be a list of texts", f"{where}.content")
    return "".join(str(text) for text in texts)


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = ("name", "arguments")
    function = {name: _field(item, name, where) for name in names}
    return {"id": _field(item, "call_id", where), "type": "function", "function": function}


def _field(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a text", f"{where}.{name}")
    return value

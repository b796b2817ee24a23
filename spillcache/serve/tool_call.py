"""A tool call that a model wrote, and how one is read out of JSON in its many spellings."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_DEPTH_MAX = 64
_NAME = re.compile(r"[\w.\-/:]{1,128}")


class NotACall(Exception):
    """The text is no tool call, whatever it began like: it is content."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call: the tool's name and its arguments, the JSON text of an object.

    Where the model wrote JSON, ``arguments`` is its own text: whoever sends it back sends what the
    model's tokens say. ``id``: what the model called it, or none.
    """

    name: str
    arguments: str
    id: str = ""
    untyped: bool = False
    """Whether all values came as texts, so that the tool's schema must say what they are."""


def call_of(name: str, arguments: Mapping[str, Any], *, untyped: bool = False) -> ToolCall:
    """A call whose arguments were not JSON. Raises NotACall."""
    try:
        return ToolCall(_named(name), json_text(arguments), untyped=untyped)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotACall(str(error)) from error


def typed(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    """An untyped call, its values as ``schema``, the tool's parameters, has them: what it does not
    call a number, a list or the like stays a text.
    """
    properties = schema.get("properties")
    if not call.untyped or not isinstance(properties, Mapping):
        return call
    given = {
        name: _typed(value, properties.get(name))
        for name, value in json.loads(call.arguments).items()
    }
    return call_of(call.name, given)


def _typed(text: str, schema: Any) -> Any:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or "string" in kinds:
        return text
    try:
        return _value(text.strip(), 0)[0]
    except NotACall:
        return text


def json_text(value: Any) -> str:
    """JSON as templates write it: a space after commas and colons, no escapes that aren't needed.

    Raises ValueError for numbers that JSON has not.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which only an escape can tell
        return json.dumps(value, allow_nan=False)
    return text


def calls_in_json(text: str) -> list[ToolCall]:
    """The calls in a JSON text: an object, or a list of objects. Raises NotACall."""
    value, end = _value(text, 0)
    if text[end:].strip():
        raise NotACall("there is more than one value")
    if isinstance(value, list):
        starts = _item_starts(text)
        if not starts:
            raise NotACall("the list is empty")
        return [_call(text, start) for start in starts]
    return [_call(text, 0)]


def arguments_in_json(name: str, text: str) -> ToolCall:
    """A call whose name was told apart from its arguments, a JSON object. Raises NotACall."""
    value, end = _value(text, 0)
    return ToolCall(_named(name), _arguments(value, text[:end].strip()))


def _call(text: str, at: int) -> ToolCall:
    members = _members(text, at)
    inner = members.get("function")
    if inner is not None and isinstance(inner[0], dict):
        members = {**members, **_members(inner[1], 0)}
    name = next((members[key][0] for key in _NAMES if key in members), None)
    value, source = next((members[key] for key in _ARGUMENTS if key in members), ({}, "{}"))
    own = members.get("id", ("", ""))[0]
    known = isinstance(own, str) and _NAME.fullmatch(own) is not None
    return ToolCall(_named(name), _arguments(value, source), own if known else "")


def _arguments(value: Any, source: str) -> str:
    """The arguments' text: an object, or a text that holds one."""
    if isinstance(value, str):
        source = value.strip()
        value, end = _value(source, 0) if source else ({}, 0)
        source = source[:end] or "{}"
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise NotACall("the arguments are no object")
    return source if _is_strict(source) else json_text(value)


def _is_strict(text: str) -> bool:
    """Whether any JSON reader takes it: ours takes line ends in texts, as models write them."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at ``at``, after white space, and where it ends. Raises NotACall."""
    try:
        value, end = _DECODER.raw_decode(text, _skip(text, at))
    except (ValueError, RecursionError) as error:
        raise NotACall("it is not JSON") from error
    if _depth(value) > _DEPTH_MAX:
        raise NotACall("it is nested too deeply")
    return value, end


def _depth(value: Any) -> int:
    """How deeply it is nested, up to a little more than the most; without recursion."""
    depth, level = 0, [value]
    while level and depth <= _DEPTH_MAX:
        depth += 1
        level = [inner for one in level for inner in _inside(one)]
    return depth


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _members(text: str, at: int) -> dict[str, tuple[Any, str]]:
    """An object's values with their own texts; ``text`` is known to be JSON there."""
    at = _skip(text, at)
    if text[at] != "{":
        raise NotACall("it is no object")
    members: dict[str, tuple[Any, str]] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _value(text, at)
        start = _skip(text, _skip(text, at) + 1)
        value, at = _value(text, start)
        members[key] = (value, text[start:at])
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    return members


def _item_starts(text: str) -> list[int]:
    """Where each item of a list begins; ``text`` is known to be JSON."""
    starts: list[int] = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        starts.append(at)
        _, at = _value(text, at)
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    return starts


def _named(name: Any) -> str:
    """A tool's name as it may be called."""
    if not isinstance(name, str) or _NAME.fullmatch(name.strip()) is None:
        raise NotACall("a call has no name")
    return name.strip()

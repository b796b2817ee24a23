"""A tool call that a model wrote, whole or piece by piece, and the values that it is made of."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_NAME = re.compile(r"[\w.\-/:]{1,128}")
DEPTH_MAX = 64


class NotACall(Exception):
    """The text is no tool call, or no more of one: what was not told yet is content."""


class CutOff(NotACall):
    """The answer ended in the middle of a call."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins; its name is known. ``id``: what the model called it, or none."""

    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallPart:
    """More of the arguments' text. All parts of a call are the beginning of a JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over. ``whole``: whether its parts are a whole JSON object; they are not where
    the answer was cut off, or went on with something else than JSON.
    """

    whole: bool


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call: the tool's name and its arguments, the JSON text of an object, or its beginning.

    Where the model wrote JSON, ``arguments`` is its own text: whoever sends it back sends what the
    model's tokens say.
    """

    name: str
    arguments: str
    id: str = ""


def call_of(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """A call whose arguments were not JSON. Raises NotACall."""
    try:
        return ToolCall(called(name), _whole_text(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotACall(str(error)) from error


def called(name: Any) -> str:
    """A tool's name as it may be called. Raises NotACall."""
    if not isinstance(name, str) or _NAME.fullmatch(name.strip()) is None:
        raise NotACall("a call has no name")
    return name.strip()


def own_id(value: Any) -> str:
    """What the model called a call, if that will do for an id."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def typed_value(text: str, schema: Any) -> str:
    """The JSON text of a value that came as text, as ``schema`` has it: what that does not call a
    number, a list or the like, and what is no JSON, stays a text.
    """
    if not is_text(schema):
        try:
            return _whole_text(json_value(text.strip()))
        except (NotACall, ValueError):
            pass
    return _whole_text(text)


def is_text(schema: Any) -> bool:
    """Whether a value of this schema may be any text."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return not isinstance(kinds, list) or "string" in kinds


def object_text(value: Any) -> str:
    """The JSON text of arguments that came as a value: an object, or a text that holds one, or
    nothing. Raises NotACall.
    """
    if isinstance(value, str) and value.strip():
        value = json_value(value.strip())
    if value is None or value == "":
        return "{}"
    if not isinstance(value, dict):
        raise NotACall("the arguments are no object")
    try:
        return _whole_text(value)
    except ValueError as error:
        raise NotACall(str(error)) from error


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


def _whole_text(value: Any) -> str:
    """As ``json_text``, halves of characters as U+FFFD: some clients fail at them."""
    text = json_text(value)
    if "\\u" not in text:
        return text
    said = json.dumps(json.loads(text), ensure_ascii=False)
    whole = without_halves(said)
    return text if whole == said else whole


def without_halves(text: str) -> str:
    """``text``, its halves of characters (which JSON can say, and UTF-8 can't) as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def json_value(text: str) -> Any:
    """The value that a JSON text begins with. Raises NotACall."""
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise NotACall("it is not JSON") from error
    if _depth(value) > DEPTH_MAX:
        raise NotACall("it is nested too deeply")
    return value


def _depth(value: Any) -> int:
    """How deeply it is nested, up to a little more than the most; without recursion."""
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        depth += 1
        level = [inner for one in level for inner in _inside(one)]
    return depth


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()

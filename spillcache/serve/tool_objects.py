"""Calls in JSON: an object with a name and arguments in their many spellings, or a list of them.

Arguments are told while they come, as soon as the name is known.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from spillcache.serve.call_teller import CallTeller
from spillcache.serve.json_scan import JsonScan
from spillcache.serve.tool_call import (
    DEPTH_MAX,
    NotACall,
    ToolCall,
    called,
    json_value,
    object_text,
    own_id,
)
from spillcache.serve.tool_source import Source, Waiting

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_FENCES = ("```json", "```")
_JSON_HEAD = re.compile(r"\{\s*\"(name|type|function|id|parameters|arguments|tool_name)\"")
_JSON_BEGUN = re.compile(r"\{?\s*\"?[a-z_]{0,10}")


def read_json(source: Source, at: int, teller: CallTeller, *, late: bool = False) -> Waiting[int]:
    """An object or a list of objects, maybe in a fence. ``late``: a call's id may follow its
    arguments, so that it can be told only when it is over.
    """
    at = yield from source.skip_space(at)
    fence = yield from source.starts(at, _FENCES)
    at = yield from source.skip_space(at + len(fence))
    if source.text[at : at + 1] == "[":
        end = yield from _read_list(source, at + 1, teller, late=late)
    else:
        end = yield from _read_object(source, at, teller, late=late)
    if fence:
        closing = yield from source.skip_space(end)
        end = closing + len((yield from source.starts(closing, ("```",)))) or end
    return end


def read_bare_json(source: Source, at: int, teller: CallTeller) -> Waiting[int]:
    """As ``read_json``, but soon over where an object does not begin like a call."""
    while not _JSON_HEAD.match(source.text, at):
        if not _JSON_BEGUN.fullmatch(source.text, at):
            raise NotACall("it does not begin like a call")
        yield from source.more()
    return (yield from read_json(source, at, teller))


def _read_list(source: Source, at: int, teller: CallTeller, *, late: bool) -> Waiting[int]:
    while True:
        at = yield from source.skip_space(at)
        at = yield from _read_object(source, at, teller, late=late)
        at, mark = yield from _mark(source, at, ",]")
        teller.passed(at)
        if mark == "]":
            return at


@dataclass(slots=True)
class _Members:
    """What is known of a call so far."""

    name: Any = None
    id: str = ""
    arguments: Any = field(default_factory=dict)
    text: str | None = None
    """The arguments as they were written, if that was an object."""
    told: bool = False


def _read_object(source: Source, at: int, teller: CallTeller, *, late: bool) -> Waiting[int]:
    members = _Members()
    at = yield from _read_members(source, at, teller, members, late=late)
    if not members.told:
        text = object_text(members.arguments) if members.text is None else members.text
        teller.tell_all([ToolCall(called(members.name), text, members.id)], at)
    return at


def _read_members(
    source: Source, at: int, teller: CallTeller, members: _Members, *, late: bool, depth: int = 0
) -> Waiting[int]:
    if depth > DEPTH_MAX:
        raise NotACall("it is nested too deeply")
    at, _ = yield from _mark(source, at, "{")
    start = yield from source.skip_space(at)
    if source.text[start : start + 1] == "}":
        return start + 1
    while True:
        key, _, at = yield from _value(source, at)
        at, _ = yield from _mark(source, at, ":")
        at = yield from source.skip_space(at)
        is_object = source.text[at : at + 1] == "{"
        if is_object and key in _ARGUMENTS and members.name and not late and not members.told:
            at = yield from read_arguments(source, at, teller, members.name, members.id)
            members.told = True
        elif is_object and key == "function" and members.name is None:
            at = yield from _read_members(source, at, teller, members, late=late, depth=depth + 1)
        else:
            value, text, at = yield from _value(source, at)
            if not members.told:
                _note(members, key, value, text)
        at, mark = yield from _mark(source, at, ",}")
        if mark == "}":
            return at


def _note(members: _Members, key: str, value: Any, text: str) -> None:
    if key in _NAMES and members.name is None:
        members.name = called(value)
    elif key in _ARGUMENTS:
        members.arguments = value
        members.text = text if isinstance(value, dict) else None
    elif key == "id":
        members.id = own_id(value)


def read_arguments(
    source: Source, at: int, teller: CallTeller, name: Any, own: str
) -> Waiting[int]:
    """The object at ``at``, as the arguments of a call of this name; told while it comes."""
    teller.begin(name, own, at)
    end = yield from JsonScan(source, at, teller.more).value()
    teller.end(end)
    return end


def _value(source: Source, at: int) -> Waiting[tuple[Any, str, int]]:
    """The value at ``at``, its text, and where it ends."""
    at = yield from source.skip_space(at)
    told: list[str] = []
    end = yield from JsonScan(source, at, lambda text, _: told.append(text)).value()
    text = "".join(told)
    return json_value(text), text, end


def _mark(source: Source, at: int, marks: str) -> Waiting[tuple[int, str]]:
    """The one of ``marks`` that comes next, and where it ends."""
    at = yield from source.skip_space(at)
    if at == len(source.text):
        yield from source.more()
    mark = source.text[at]
    if mark not in marks:
        raise NotACall(f"one of {marks} is missing")
    return at + 1, mark

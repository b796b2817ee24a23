"""Calls that are not JSON: Python's ``f(x=1)``, and Gemma's ``call:f{x:1}``.

No recursion and no evaluation: what a model wrote is somebody else's text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from spillcache.serve.tool_call import NotACall, ToolCall, call_of

_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_DIGITS_MAX = 400
_DEPTH_MAX = 32
_CONSTANTS: Mapping[str, Any] = {
    **dict.fromkeys(("True", "true"), True),
    **dict.fromkeys(("False", "false"), False),
    **dict.fromkeys(("None", "null")),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\n|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CLOSING = {"{": "}", "[": "]", "(": ")"}


def python_calls(text: str) -> list[ToolCall]:
    """The calls in ``[f(x=1), g()]``, with or without the list. Raises NotACall."""
    reader = _Literals(text)
    listed = reader.take("[")
    calls = []
    while not reader.at_end() and not (listed and reader.sees("]")):
        name = reader.word()
        reader.need("(")
        calls.append(call_of(name, reader.arguments("=", ")")))
        if not reader.take(",") and not reader.take(";") and listed:
            break
    if listed:
        reader.need("]")
    if not calls or not reader.at_end():
        raise NotACall("it is no list of calls")
    return calls


def gemma_call(text: str, quote: str) -> ToolCall:
    """The call in ``call:f{x:1}``; ``quote`` stands around texts. Raises NotACall."""
    reader = _Literals(text, quote, bare=True)
    if reader.word() != "call":
        raise NotACall("it is no call")
    reader.need(":")
    name = reader.word()
    reader.need("{")
    call = call_of(name, reader.arguments(":", "}"))
    if not reader.at_end():
        raise NotACall("something follows the call")
    return call


class _Literals:
    """Reads literals one after the other. ``quote``: what stands around texts, beside quotes;
    ``bare``: whether texts may come without them.
    """

    def __init__(self, text: str, quote: str = "", *, bare: bool = False) -> None:
        self._text = text
        self._at = 0
        self._quote = quote
        self._bare = bare

    def sees(self, mark: str) -> bool:
        """Whether ``mark`` is next, after white space."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text.startswith(mark, self._at)

    def at_end(self) -> bool:
        """Whether only white space is left."""
        return self.sees("") and self._at == len(self._text)

    def take(self, mark: str) -> bool:
        """Step over ``mark``, if it is next."""
        seen = self.sees(mark)
        self._at += len(mark) if seen else 0
        return seen

    def need(self, mark: str) -> None:
        """Step over ``mark``."""
        if not self.take(mark):
            raise NotACall(f"{mark} is missing")

    def word(self) -> str:
        """A name."""
        self.sees("")
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise NotACall("a name is missing")
        self._at = found.end()
        return found[0]

    def arguments(self, equals: str, end: str, depth: int = 0) -> dict[str, Any]:
        """Names and values up to ``end``."""
        given: dict[str, Any] = {}
        while not self.take(end):
            key = self._text_or_none()
            key = self.word() if key is None else key
            self.need(equals)
            given[key] = self._value(depth)
            if not self.take(","):
                self.need(end)
                return given
        return given

    def _value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise NotACall("it is nested too deeply")
        text = self._text_or_none()
        if text is not None:
            return text
        if self.take("{"):
            return self.arguments(":", "}", depth + 1)
        for bracket in "[(":
            if self.take(bracket):
                return self._list(_CLOSING[bracket], depth + 1)
        return self._plain()

    def _list(self, end: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self.take(end):
            items.append(self._value(depth))
            if not self.take(","):
                self.need(end)
                return items
        return items

    def _plain(self) -> Any:
        """A number, a constant, or a text without quotes."""
        number = _NUMBER.match(self._text, self._at)
        if number is not None and (not self._bare or self._ends(number.end())):
            if len(number[0]) > _DIGITS_MAX:
                raise NotACall("a number is too long")
            self._at = number.end()
            return (
                json.loads(number[0])
                if not number[0].lstrip("-").startswith("0")
                else _zero(number[0])
            )
        found = _WORD.match(self._text, self._at)
        if found is not None and found[0] in _CONSTANTS and self._ends(found.end()):
            self._at = found.end()
            return _CONSTANTS[found[0]]
        if not self._bare:
            raise NotACall("a value is missing")
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ",}]":
            self._at += 1
        return self._text[start : self._at].strip()

    def _ends(self, at: int) -> bool:
        rest = self._text[at : at + 1]
        return not rest or rest.isspace() or rest in ",)}];"

    def _text_or_none(self) -> str | None:
        """A text in quotes, if one is next."""
        if self._quote and self.take(self._quote):
            start = self._at
            end = self._text.find(self._quote, start)
            if end < 0:
                raise NotACall("a text has no end")
            self._at = end + len(self._quote)
            return self._text[start:end]
        for quote in "\"'":
            if self.take(quote):
                return self._quoted(quote)
        return None

    def _quoted(self, quote: str) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] != quote:
            self._at += 2 if self._text[self._at] == "\\" else 1
        if self._at >= len(self._text):
            raise NotACall("a text has no end")
        self._at += 1
        return _ESCAPE.sub(_unescaped, self._text[start : self._at - 1])


def _zero(text: str) -> Any:
    """A number that begins with 0, as Python would have it."""
    return float(text) if any(c in text for c in ".eE") else int(text)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        character = chr(int(code[1:], 16))
        return character if character.isprintable() or character.isspace() else found[0]
    return _ESCAPES.get(code, code)

"""JSON that comes piece by piece, told on as soon as it is certain.

What is told is strict JSON at every moment: the beginning of a value that any reader takes. Models
write a little else, and it is put right on the way: line ends within texts, escapes that there are
not, halves of characters.
"""

import json
import re
from collections.abc import Callable
from math import isfinite

from spillcache.serve.tool_call import DEPTH_MAX, NotACall, without_halves
from spillcache.serve.tool_source import SPACE, Source, Waiting

Tell = Callable[[str, int], None]
"""Takes a piece of JSON, and where in the source it ends."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]{0,400}")
_SCALARS = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?|true|false|null")
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_HIGH = re.compile(r"[dD][89abAB]")
_LOW = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_BEGUN = re.compile(r"(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?")
_ESCAPES = '"\\/bfnrt'


class JsonScan:
    """Scans the value at ``at``, without recursion. ``value`` may be called once."""

    def __init__(self, source: Source, at: int, tell: Tell) -> None:
        self._source = source
        self._at = at
        self._told = tell
        self._closers: list[str] = []

    def value(self) -> Waiting[int]:
        """Where the value ends. Raises NotACall where it is not JSON, or ends too soon; what was
        told until then is its beginning.
        """
        done = yield from self._begin()
        while self._closers or not done:
            done = yield from (self._go_on() if done else self._begin())
        return self._at

    def _begin(self) -> Waiting[bool]:
        """Begin a value; whether it is over at once."""
        mark = yield from self._peek()
        if mark in "{[":
            return (yield from self._open("}" if mark == "{" else "]"))
        yield from (self._text() if mark == '"' else self._scalar())
        return True

    def _open(self, closer: str) -> Waiting[bool]:
        self._tell(self._source.text[self._at], 1)
        self._closers.append(closer)
        if len(self._closers) > DEPTH_MAX:
            raise NotACall("it is nested too deeply")
        if (yield from self._peek()) == closer:
            return self._close()
        if closer == "}":
            yield from self._key()
        return False

    def _close(self) -> bool:
        self._tell(self._closers.pop(), 1)
        return True

    def _go_on(self) -> Waiting[bool]:
        """After a value within another one; whether that is over now."""
        mark = yield from self._peek()
        if mark == self._closers[-1]:
            return self._close()
        if mark != ",":
            raise NotACall("a comma is missing")
        self._tell(",", 1)
        if self._closers[-1] == "}":
            yield from self._key()
        return False

    def _key(self) -> Waiting[None]:
        if (yield from self._peek()) != '"':
            raise NotACall("a name is missing")
        yield from self._text()
        if (yield from self._peek()) != ":":
            raise NotACall("a colon is missing")
        self._tell(":", 1)

    def _peek(self) -> Waiting[str]:
        """The next character that is no white space; that is told."""
        source, at = self._source, self._at
        while True:
            while at < len(source.text) and source.text[at] in SPACE:
                at += 1
            if at < len(source.text):
                self._tell(source.text[self._at : at], at - self._at)
                return source.text[at]
            yield from source.more()

    def _scalar(self) -> Waiting[None]:
        """A number or a word: only what follows says that it is over."""
        source = self._source
        while True:
            found = _SCALAR.match(source.text, self._at)
            if found is not None and found.end() < len(source.text):
                break
            yield from source.more()
        text = found[0]
        if not _SCALARS.fullmatch(text) or not (text.isalpha() or isfinite(float(text))):
            raise NotACall("a value is missing")
        self._tell(text, len(text))

    def _text(self) -> Waiting[None]:
        source = self._source
        self._tell('"', 1)
        while True:
            found = _PLAIN.match(source.text, self._at)
            if found is not None:
                self._tell(found[0], len(found[0]))
                continue
            mark = source.text[self._at : self._at + 1]
            if not mark:
                yield from source.more()
            elif mark == '"':
                self._tell(mark, 1)
                return
            elif mark == "\\":
                yield from self._escape()
            else:
                self._tell(escaped(mark), 1)

    def _escape(self) -> Waiting[None]:
        mark = (yield from self._characters(2))[1]
        if mark == "u":
            yield from self._code()
        elif mark in _ESCAPES:
            self._tell("\\" + mark, 2)
        elif mark == "'":
            self._tell(mark, 2)
        else:  # a backslash that should have been two
            self._tell("\\\\", 1)

    def _code(self) -> Waiting[None]:
        """An escaped UTF-16 unit, or two that are one character."""
        digits = _HEX
        while (found := digits.match(self._source.text, self._at + 2)) and len(found[0]) < 4:
            if found.end() < len(self._source.text):
                self._tell("\\\\", 1)
                return
            yield from self._source.more()
        unit = (yield from self._characters(6))[2:]
        if not _HIGH.match(unit):
            low = unit[0] in "dD" and unit[1] in "cdefCDEF"
            self._tell("\\ufffd" if low else "\\u" + unit, 6)
            return
        while True:
            rest = self._source.text[self._at + 6 : self._at + 12]
            if not _LOW_BEGUN.fullmatch(rest):
                break
            yield from self._source.more()
        if _LOW.fullmatch(rest):
            self._tell("\\u" + unit + rest, 12)
        else:
            self._tell("\\ufffd", 6)

    def _characters(self, count: int) -> Waiting[str]:
        """The next ``count`` characters."""
        while len(self._source.text) < self._at + count:
            yield from self._source.more()
        return self._source.text[self._at : self._at + count]

    def _tell(self, text: str, count: int) -> None:
        self._at += count
        if text:
            self._told(text, self._at)


def escaped(text: str) -> str:
    """What ``text`` is within a JSON text; halves of characters are U+FFFD."""
    return json.dumps(without_halves(text), ensure_ascii=False)[1:-1]

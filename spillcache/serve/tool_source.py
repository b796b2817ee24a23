"""Text that comes piece by piece, and what a reader of it waits for.

Readers are generators: they yield where they need more text, and return what they found. So they
read as if all of the text were there, and no character is looked at twice by much.
"""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

from spillcache.serve.tool_call import NotACall

Found = TypeVar("Found")
Waiting = Generator[None, None, Found]
"""Yields where more text is needed."""

SPACE = " \t\r\n"
_DEPTH_MAX = 128
_BRACKETS = {"}": "{", "]": "[", ")": "("}
_JSON_MARKS = re.compile(r'[\\"{}\[\]]')
_PYTHON_MARKS = re.compile(r"[\\\"'{}\[\]()]")


class Source:
    """The text so far; ``ended`` when no more comes. Waits raise NotACall when it ends too soon."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False

    def drop(self, count: int) -> str:
        """Let go of the first ``count`` characters; they are the result."""
        gone, self.text = self.text[:count], self.text[count:]
        return gone

    def more(self) -> Waiting[None]:
        """Wait for more text."""
        if self.ended:
            raise NotACall("the answer ended in the middle")
        yield

    def skip_space(self, at: int) -> Waiting[int]:
        """Where the first character from ``at`` on is that is no white space, or the end."""
        while True:
            while at < len(self.text) and self.text[at] in SPACE:
                at += 1
            if at < len(self.text) or self.ended:
                return at
            yield

    def starts(self, at: int, options: Sequence[str]) -> Waiting[str]:
        """The longest of ``options`` that stands at ``at``; empty for none."""
        while True:
            rest = self.text[at : at + max(map(len, options), default=0)]
            if self.ended or not any(o.startswith(rest) and o != rest for o in options):
                return max((o for o in options if rest.startswith(o)), key=len, default="")
            yield

    def until(self, at: int, mark: str) -> Waiting[int]:
        """Where ``mark`` begins, from ``at`` on."""
        start = at
        while (found := self.text.find(mark, start)) < 0:
            start = max(at, len(self.text) - len(mark) + 1)
            yield from self.more()
        return found

    def value(self, at: int, *, python: bool = False) -> Waiting[int]:
        """Where the bracketed value that begins at ``at`` ends: JSON, or Python's literals."""
        marks, quotes = (_PYTHON_MARKS, "\"'") if python else (_JSON_MARKS, '"')
        open_brackets: list[str] = []
        quote, start = "", at
        while True:
            found = marks.search(self.text, start)
            if found is None or (found[0] == "\\" and found.end() == len(self.text)):
                start = len(self.text) if found is None else found.start()
                yield from self.more()
                continue
            mark, start = found[0], found.end()
            if mark == "\\":
                start += 1
            elif quote:
                quote = "" if mark == quote else quote
            elif mark in quotes:
                quote = mark
            elif mark in _BRACKETS:
                if not open_brackets or open_brackets.pop() != _BRACKETS[mark]:
                    raise NotACall("brackets don't match")
            else:
                open_brackets.append(mark)
                if len(open_brackets) > _DEPTH_MAX:
                    raise NotACall("it is nested too deeply")
            if not open_brackets:
                return start

"""Text that comes piece by piece, and what a reader of it waits for.

Readers are generators: they yield where they need more text, and return what they found. So they
read as if all of the text were there, and no character is looked at twice by much.
"""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

from spillcache.serve.tool_call import CutOff, NotACall

Found = TypeVar("Found")
Waiting = Generator[None, None, Found]
"""Yields where more text is needed."""

SPACE = " \t\r\n"
HEAD_CHARACTERS_MAX = 512
"""Of a name and what belongs to it: what is longer is none."""
_DEPTH_MAX = 128
_BRACKETS = {"}": "{", "]": "[", ")": "("}
_MARKS = re.compile(r"[\\\"'{}\[\]()]")


class Source:
    """The text so far; ``ended`` when no more comes. Waits raise CutOff when it ends too soon."""

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
            raise CutOff("the answer ended in the middle")
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

    def need(self, at: int, mark: str) -> Waiting[int]:
        """Where ``mark``, which must come next but for white space, ends. Raises NotACall."""
        at = yield from self.skip_space(at)
        while not self.text.startswith(mark, at):
            if not mark.startswith(self.text[at:]):
                raise NotACall(f"{mark} is missing")
            yield from self.more()
        return at + len(mark)

    def until(self, at: int, mark: str) -> Waiting[int]:
        """Where ``mark`` begins, from ``at`` on."""
        return (yield from self.first(at, (mark,)))[0]

    def first(
        self, at: int, marks: Sequence[str], characters_max: int | None = None
    ) -> Waiting[tuple[int, str]]:
        """Where the first of ``marks`` begins, from ``at`` on, and which it is. Raises NotACall
        where none begins within ``characters_max``.
        """
        start, longest = at, max(map(len, marks))
        while True:
            found, mark = self.seen(start, marks)
            begins = len(self.text) - longest if found < 0 else found
            if characters_max is not None and begins - at > characters_max:
                raise NotACall("a name is too long")
            if found >= 0:
                return found, mark
            start = max(at, begins + 1)
            yield from self.more()

    def seen(self, at: int, marks: Sequence[str]) -> tuple[int, str]:
        """Where the first of ``marks`` begins in what has come, and which it is; −1 for none."""
        found = [(place, mark) for mark in marks if (place := self.text.find(mark, at)) >= 0]
        return min(found, default=(-1, ""))

    def brackets(self, at: int) -> Waiting[int]:
        """Where what the bracket at ``at`` opens ends, in Python's literals."""
        open_brackets: list[str] = []
        quote, start = "", at
        while True:
            found = _MARKS.search(self.text, start)
            if found is None or (found[0] == "\\" and found.end() == len(self.text)):
                start = len(self.text) if found is None else found.start()
                yield from self.more()
                continue
            mark, start = found[0], found.end()
            if mark == "\\":
                start += 1
            elif quote:
                quote = "" if mark == quote else quote
            elif mark in "\"'":
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


def begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of one of ``marks``."""
    longest = min(max(map(len, marks)) - 1, len(text))
    for count in range(longest, 0, -1):
        end = text[-count:]
        if any(mark.startswith(end) for mark in marks):
            return count
    return 0

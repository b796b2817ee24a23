"""A model's answer, read into thoughts, content and tool calls, piece by piece or in one.

What is no whole, well-formed call is content, as the model wrote it: nothing is lost and nothing
raises.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spillcache.serve.thinking import Thinking
from spillcache.serve.tool_call import NotACall, ToolCall, typed
from spillcache.serve.tool_formats import Reader, ToolFormat
from spillcache.serve.tool_source import SPACE, Source, Waiting

Tools = Mapping[str, Mapping[str, Any]]
"""The schemas of the parameters, by the tools' names."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thought before it answered."""

    text: str


Piece = str | Thought | ToolCall
"""Content, thoughts, or a call."""


class AnswerParser:
    """One answer's text in, its pieces out. For one thread.

    ``format_``: None when there are no tools. A call that nothing opens must name one of ``tools``;
    one in a format's own marks need not, so that the client can say that there is no such tool.
    White space around calls and thoughts is dropped, as templates write it themselves.
    ``thinks``: whether the prompt has opened the thoughts already.
    """

    def __init__(
        self,
        format_: ToolFormat | None,
        tools: Tools,
        thinking: Thinking | None = None,
        *,
        thinks: bool = False,
    ) -> None:
        self._format = format_
        self._tools = tools
        self._thinking = thinking
        self._thinks = thinks
        self._source = Source()
        self._pieces: list[Piece] = []
        self._run: Iterator[None] = self._answer()

    def push(self, text: str) -> list[Piece]:
        """The pieces that this text completes."""
        self._source.text += text
        return self._advance()

    def finish(self) -> list[Piece]:
        """The rest, once no more comes: a call that is not complete is content."""
        self._source.ended = True
        return self._advance()

    def _advance(self) -> list[Piece]:
        next(self._run, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _answer(self) -> Waiting[None]:
        if self._thinking is not None:
            yield from self._thoughts(self._thinking)
        if self._format is None:
            yield from self._rest()
        else:
            yield from self._content_and_calls(self._format)

    def _rest(self) -> Waiting[None]:
        source = self._source
        while True:
            self._say(source.drop(len(source.text)))
            if source.ended:
                return
            yield

    # Thoughts.

    def _thoughts(self, thinking: Thinking) -> Waiting[None]:
        """What stands before the answer, if the model thinks at all."""
        source = self._source
        if not self._thinks:
            at = yield from source.skip_space(0)
            if not (yield from source.starts(at, (thinking.opens,))):
                return
            source.drop(at + len(thinking.opens))
        source.drop((yield from source.skip_space(0)))
        while (end := source.text.find(thinking.closes)) < 0:
            if source.ended:
                self._think(source.drop(_text_end(source.text, len(source.text))))
                source.drop(len(source.text))
                return
            begun = _begun(source.text, (thinking.closes,))
            self._think(source.drop(_text_end(source.text, len(source.text) - begun)))
            yield
        self._think(source.drop(_text_end(source.text, end)))
        source.drop(source.text.index(thinking.closes) + len(thinking.closes))
        source.drop((yield from source.skip_space(0)))

    def _think(self, text: str) -> None:
        if text:
            self._pieces.append(Thought(text))

    # Content and calls.

    def _content_and_calls(self, format_: ToolFormat) -> Waiting[None]:
        opening = re.compile("|".join(map(re.escape, sorted(format_.opens, key=len)[::-1])))
        called = True
        while True:
            if called and format_.bare is not None:
                yield from self._bare(format_, format_.bare)
            found = yield from self._content(opening, tuple(format_.opens))
            if found is None:
                return
            reader = format_.opens[found[0]]
            called = yield from self._calls(reader, found.end())
            if called:
                yield from self._between(format_.closes)

    def _bare(self, format_: ToolFormat, reader: Reader) -> Waiting[None]:
        """Calls that nothing opens, one after the other."""
        while True:
            at = yield from self._source.skip_space(0)
            if not self._source.text[at : at + 1]:
                return
            if not (yield from self._calls(reader, at, known=True)):
                return
            yield from self._between(format_.closes)

    def _content(
        self, opening: re.Pattern[str], opens: Sequence[str]
    ) -> Waiting[re.Match[str] | None]:
        """Tell content up to an opening, or to the end; white space before an opening stays."""
        source = self._source
        while True:
            found = opening.search(source.text)
            if found is not None:
                self._say(source.drop(_text_end(source.text, found.start())))
                return opening.search(source.text)
            if source.ended:
                self._say(source.drop(len(source.text)))
                return None
            end = len(source.text) - _begun(source.text, opens)
            self._say(source.drop(_text_end(source.text, end)))
            yield

    def _calls(self, reader: Reader, at: int, *, known: bool = False) -> Waiting[bool]:
        """Read calls at ``at``, behind their opening; False if there are none."""
        source = self._source
        try:
            calls, end = yield from reader(source, at)
            if known and any(call.name not in self._tools for call in calls):
                raise NotACall("there is no such tool")
            calls = [typed(call, self._tools.get(call.name, {})) for call in calls]
        except NotACall:
            self._say(source.drop(at))
            return False
        source.drop(end)
        self._pieces += calls
        return True

    def _between(self, closes: tuple[str, ...]) -> Waiting[None]:
        """Drop what means nothing behind a call."""
        source = self._source
        while True:
            at = yield from source.skip_space(0)
            mark = yield from source.starts(at, closes)
            source.drop(at + len(mark))
            if not mark:
                return

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)


def parse_answer(text: str, format_: ToolFormat, tools: Tools) -> tuple[str, list[ToolCall]]:
    """The content and the calls of a whole answer."""
    parser = AnswerParser(format_, tools)
    pieces = parser.push(text) + parser.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]


def _begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of one of ``marks``."""
    longest = min(max(map(len, marks)) - 1, len(text))
    for count in range(longest, 0, -1):
        end = text[-count:]
        if any(mark.startswith(end) for mark in marks):
            return count
    return 0


def _text_end(text: str, end: int) -> int:
    """Where the white space before ``end`` begins."""
    while end and text[end - 1] in SPACE:
        end -= 1
    return end

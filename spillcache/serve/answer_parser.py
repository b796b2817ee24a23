"""A model's answer, read into thoughts, content and tool calls, piece by piece or in one.

What is no call is content, as the model wrote it: nothing is lost and nothing raises. Whatever the
pieces in which an answer comes, what is told of it comes to the same; and what was told stays so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spillcache.serve.answer_channels import Hearer, read_channels
from spillcache.serve.call_teller import CallTeller, Reader, Tools
from spillcache.serve.thinking import Thinking
from spillcache.serve.tool_call import CallBegun, CallEnd, CallPart, ToolCall
from spillcache.serve.tool_formats import ToolFormat
from spillcache.serve.tool_source import SPACE, Source, Waiting, begun


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thought before it answered."""

    text: str


Piece = str | Thought | CallBegun | CallPart | CallEnd
"""Content, thoughts, or a call, which takes several."""


class AnswerParser:
    """One answer's text in, its pieces out. For one thread.

    ``format_``: None when calls are not read. ``channels``: see ``answer_channels``. A call that
    nothing opens must name one of ``tools``; one in a format's own marks need not, so that the
    client can say that there is no such tool.
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
        channels: bool = False,
    ) -> None:
        self._channels = channels
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
        if self._channels:
            teller = None if self._format is None else self._teller
            yield from read_channels(self._source, Hearer(self._say, self._think, teller))
            return
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
            held = begun(source.text, (thinking.closes,))
            self._think(source.drop(_text_end(source.text, len(source.text) - held)))
            yield
        self._think(source.drop(_text_end(source.text, end)))
        source.drop(source.text.index(thinking.closes) + len(thinking.closes))
        source.drop((yield from source.skip_space(0)))

    def _think(self, text: str) -> None:
        if text:
            self._tell(Thought(text))

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
            end = len(source.text) - begun(source.text, opens)
            self._say(source.drop(_text_end(source.text, end)))
            yield

    def _calls(self, reader: Reader, at: int, *, known: bool = False) -> Waiting[bool]:
        """Tell of calls at ``at``, behind their opening; False if there are none."""
        called = yield from self._teller(known=known).read(self._source, at, reader)
        if not called:
            self._say(self._source.drop(at))
        return called

    def _teller(self, *, known: bool = False) -> CallTeller:
        return CallTeller(self._tell, self._tools, known=known)

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
            self._tell(text)

    def _tell(self, piece: Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(piece, CallPart) and isinstance(last, CallPart):
            self._pieces[-1] = CallPart(last.text + piece.text)
        else:
            self._pieces.append(piece)


def calls_of(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls that pieces come to."""
    calls: list[ToolCall] = []
    parts: list[str] = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            parts = []
            calls.append(ToolCall(piece.name, "", piece.id))
        elif isinstance(piece, CallPart):
            parts.append(piece.text)
        elif isinstance(piece, CallEnd):
            calls[-1] = replace(calls[-1], arguments="".join(parts))
    return calls


def words_of(pieces: Sequence[Piece]) -> str:
    """The content that pieces come to."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _text_end(text: str, end: int) -> int:
    """Where the white space before ``end`` begins."""
    while end and text[end - 1] in SPACE:
        end -= 1
    return end

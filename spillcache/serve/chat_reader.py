"""How the answer of a chat is read, whichever API tells of it."""

from collections.abc import Callable
from typing import Protocol

from spillcache.serve.answer_format import AnswerForm
from spillcache.serve.answer_parser import AnswerParser, Piece
from spillcache.serve.tool_call import ToolCall

Named = Callable[[ToolCall], ToolCall]
"""Gives a call its id."""


class ChatForm(AnswerForm, Protocol):
    """What a chat's answer looks like to a client."""

    def reads(self, parser: AnswerParser, named: Named, *, several: bool = True) -> None:
        """Read the answer with ``parser``; ``named`` gives calls their ids.

        ``several``: whether more than one call may be told (``parallel_tool_calls``).
        """


class ChatReader:
    """Reads one answer. Until ``reads`` says how, all of it is content."""

    _several = True
    _calls = 0
    _parser: AnswerParser | None = None
    _named: Named | None = None

    def reads(self, parser: AnswerParser, named: Named, *, several: bool = True) -> None:
        """See ChatForm."""
        self._parser, self._named, self._several = parser, named, several

    def _read(self, text: str, *, ended: bool) -> list[Piece]:
        """What the text completes, its calls with ids."""
        if self._parser is None:
            return [text] if text else []
        found = self._parser.push(text) + (self._parser.finish() if ended else [])
        return [piece for piece in map(self._told, found) if piece is not None]

    def _told(self, piece: Piece) -> Piece | None:
        if not isinstance(piece, ToolCall) or self._named is None:
            return piece
        self._calls += 1
        return self._named(piece) if self._several or self._calls == 1 else None

"""How the answer of a chat is read, whichever API tells of it."""

from dataclasses import replace
from typing import Protocol

from spillcache.serve.answer_format import AnswerForm
from spillcache.serve.answer_parser import AnswerParser, Piece
from spillcache.serve.tool_call import CallBegun, CallEnd, CallPart


class CallIds(Protocol):
    """Names calls, and remembers them."""

    def call_id(self, own: str) -> str:
        """An id for a call; ``own``: what the model called it, or nothing."""

    def learn_call(self, call_id: str, arguments: str) -> None:
        """A call is over: how the model wrote its arguments, a JSON object."""


class ChatForm(AnswerForm, Protocol):
    """What a chat's answer looks like to a client."""

    def reads(self, parser: AnswerParser, ids: CallIds, *, several: bool = True) -> None:
        """Read the answer with ``parser``; ``ids`` names its calls.

        ``several``: whether more than one call may be told (``parallel_tool_calls``).
        """


class ChatReader:
    """Reads one answer. Until ``reads`` says how, all of it is content."""

    _several = True
    _calls = 0
    _parser: AnswerParser | None = None
    _ids: CallIds | None = None
    _call_id = ""
    _parts: list[str]

    def reads(self, parser: AnswerParser, ids: CallIds, *, several: bool = True) -> None:
        """See ChatForm."""
        self._parser, self._ids, self._several = parser, ids, several

    def _read(self, text: str, *, ended: bool) -> list[Piece]:
        """What the text completes, its calls with ids."""
        if self._parser is None or self._ids is None:
            return [text] if text else []
        found = self._parser.push(text) + (self._parser.finish() if ended else [])
        told = [self._told(piece, self._ids) for piece in found]
        return [piece for piece in told if piece is not None]

    def _told(self, piece: Piece, ids: CallIds) -> Piece | None:
        if isinstance(piece, CallBegun):
            self._calls += 1
            self._call_id, self._parts = ids.call_id(piece.id), []
            piece = replace(piece, id=self._call_id)
        elif isinstance(piece, CallPart):
            self._parts.append(piece.text)
        elif isinstance(piece, CallEnd):
            if piece.whole and self._is_told:
                ids.learn_call(self._call_id, "".join(self._parts))
        else:
            return piece
        return piece if self._is_told else None

    @property
    def _is_told(self) -> bool:
        """Whether the client hears of the last call."""
        return self._several or self._calls == 1

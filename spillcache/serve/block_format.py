"""Answers that are told block by block: thoughts, words and calls, each begun, continued, ended.

Anthropic's messages and OpenAI's responses both are. An answer in one piece is what its stream
would have come to.
"""

from abc import ABC, abstractmethod
from typing import Any

from spillcache.engine.base import Engine
from spillcache.errors import SpillcacheError
from spillcache.serve.answer_parser import Piece, Thought
from spillcache.serve.chat_reader import ChatReader
from spillcache.serve.job import DoneEvent, GenerationRequest, TextEvent, Usage
from spillcache.serve.tool_call import CallBegun, CallEnd, CallPart

_NOTHING = Usage(0, 0, {})

Opening = str | Thought | CallBegun
"""What begins a block."""


class BlockFormat(ChatReader, ABC):
    """One answer; a ChatForm. ``thoughts``: whether what the model thought is told."""

    end = b""
    ping = b""

    def __init__(self, *, thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._begun = False
        self._block: Opening | None = None
        """The piece that began the open block."""
        self._texts: list[str] = []
        """What the open block has said."""
        self._silent = 0
        self._thought = 0
        """About how many tokens were thoughts."""

    def about(self, request: GenerationRequest, engine: Engine) -> None:
        """Nothing of it is told."""

    def answer(
        self,
        text: str,  # noqa: ARG002
        tokens: list[TextEvent],
        done: DoneEvent,
    ) -> dict[str, Any]:
        """The answer in one piece."""
        for event in tokens:
            self.pieces(event)
        self.pieces(done)
        self.tail(done)
        return self._whole(done)

    def head(self) -> list[dict[str, Any]]:
        """Nothing: what the first event tells comes first."""
        return []

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The events that tell what this one completes."""
        told = [] if self._begun else self._start(event.usage or _NOTHING)
        self._begun = True
        found = self._read(event.text, ended=isinstance(event, DoneEvent))
        self._count_thoughts(found)
        for piece in found:
            if self._thoughts or not isinstance(piece, Thought):
                told += self._tell(piece)
        return told

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """The end of the last block, and of the answer."""
        return self._close() + self._finish(done)

    @abstractmethod
    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""

    def _count_thoughts(self, found: list[Piece]) -> None:
        """A token that completes nothing belongs to what comes next."""
        if not found:
            self._silent += 1
            return
        if isinstance(found[0], Thought):
            self._thought += self._silent + 1
        self._silent = 0

    def _tell(self, piece: Piece) -> list[dict[str, Any]]:
        if isinstance(piece, CallEnd):
            return self._close(whole=piece.whole)
        told: list[dict[str, Any]] = []
        if not isinstance(piece, CallPart) and type(piece) is not type(self._block):
            told += self._close()
            self._block = piece
            told += self._open(piece)
        if self._block is None or isinstance(piece, CallBegun):
            return told
        text = piece if isinstance(piece, str) else piece.text
        self._texts.append(text)
        return told + self._delta(self._block, text)

    def _close(self, *, whole: bool = True) -> list[dict[str, Any]]:
        block, self._block = self._block, None
        text = "".join(self._texts)
        self._texts = []
        return [] if block is None else self._ended(block, text, whole=whole)

    @abstractmethod
    def _start(self, usage: Usage) -> list[dict[str, Any]]:
        """The events that begin the answer."""

    @abstractmethod
    def _open(self, block: Opening) -> list[dict[str, Any]]:
        """The events that begin a block of this kind."""

    @abstractmethod
    def _delta(self, block: Opening, text: str) -> list[dict[str, Any]]:
        """The events that continue it with ``text``; a call's text are its arguments."""

    @abstractmethod
    def _ended(self, block: Opening, text: str, *, whole: bool) -> list[dict[str, Any]]:
        """The events that end it; ``text`` is all that it said. ``whole``: see CallEnd."""

    @abstractmethod
    def _finish(self, done: DoneEvent) -> list[dict[str, Any]]:
        """The events that end the answer."""

    @abstractmethod
    def _whole(self, done: DoneEvent) -> dict[str, Any]:
        """The answer, once it has been told."""

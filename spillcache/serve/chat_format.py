"""Chat completions: answers with thoughts and tool calls, as OpenAI has them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spillcache.serve.answer_format import AnswerFormat
from spillcache.serve.answer_parser import Piece, Thought, calls_of, words_of
from spillcache.serve.chat_reader import ChatReader
from spillcache.serve.job import DoneEvent, TextEvent
from spillcache.serve.tool_call import CallBegun, CallPart, ToolCall


class ChatFormat(ChatReader, AnswerFormat):
    """One chat's JSON objects. ``reads`` says how its answer is read; until then all is content.

    In a stream a call's name comes in one chunk, and its arguments in the next ones.
    """

    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    _begun = 0
    """Calls that a stream has told of."""

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """See AnswerFormat."""
        answer = super().answer(text, tokens, done)
        answer["choices"][0]["finish_reason"] = self._reason(done)
        return answer

    def head(self) -> list[dict[str, Any]]:
        """Who speaks."""
        return [self._stream_chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """The chunks with what an event's text completes; see AnswerFormat."""
        if self._parser is None:
            return super().pieces(event)
        found = self._read(event.text, ended=isinstance(event, DoneEvent))
        chunks = super().pieces(replace(event, text=""))
        for chunk in chunks:
            chunk["choices"][0]["delta"] = {}
        deltas = [delta for piece in found for delta in self._deltas(piece)]
        return chunks + [self._stream_chunk({"delta": delta}, None) for delta in deltas]

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """See AnswerFormat."""
        chunks = super().tail(done)
        chunks[0]["choices"][0]["finish_reason"] = self._reason(done)
        return chunks

    def _reason(self, done: DoneEvent) -> str:
        return "tool_calls" if self._calls and done.reason == "stop" else done.reason

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        if isinstance(piece, str):
            return [{"content": piece}]
        if isinstance(piece, Thought):
            return [{"reasoning_content": piece.text}]
        if isinstance(piece, CallBegun):
            self._begun += 1
            call = call_object(ToolCall(piece.name, "", piece.id))
        elif isinstance(piece, CallPart):
            call = {"function": {"arguments": piece.text}}
        else:
            return []
        return [{"tool_calls": [{"index": self._begun - 1, **call}]}]

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"message": message_object(self._read(text, ended=True))}

    def _piece_choice(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _last_choice(self) -> dict[str, Any]:
        return {"delta": {}}


def message_object(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The assistant's message; its content is null if it only calls."""
    content = words_of(pieces)
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    calls = [call_object(call) for call in calls_of(pieces)]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as messages have it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}

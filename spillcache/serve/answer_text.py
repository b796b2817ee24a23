"""Tokens' bytes in, text that may be shown out: UTF-8 across tokens, stop strings across pieces.

A token may hold a part of a character, and a stop string may be spread over many tokens. So a piece
of text is held back while it could still be the beginning of a stop string, and bytes while they
are the beginning of a character.

The stop strings are searched with one Knuth-Morris-Pratt automaton each: its state is how much of
the stop string the text ends with, which is also how much must be held back. One step per character
and stop string, however the text is cut.
"""

import codecs
from collections.abc import Callable, Mapping


class AnswerText:
    """The text of one answer. Not thread-safe: one thread, the scheduler's, feeds it.

    ``token_bytes`` gives a token's bytes (``Engine.token_bytes``), for ``push_token``. ``stop``:
    strings that end the answer; empty ones are ignored. The stop string that is complete first
    wins, of several that end at the same character the longest; the text before it is emitted
    exactly, whatever the cuts between tokens. ``spelled``: bytes of tokens that have others here.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop: tuple[str, ...] = (),
        spelled: Mapping[int, bytes] | None = None,
    ) -> None:
        self.stopped: str | None = None
        """The stop string that ended the answer."""
        self._token_bytes = token_bytes
        self._spelled = spelled or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The longest first, so that of several matches at one character the longest is found first.
        self._stops = [
            _StopString(text) for text in sorted(set(stop), key=len, reverse=True) if text
        ]
        self._held = ""

    def push_token(self, token: int) -> str:
        """``push`` of the token's bytes."""
        return self.push(self._spelled.get(token) or self._token_bytes(token))

    def push(self, data: bytes) -> str:
        """The text that these bytes make safe to emit; none after a stop string."""
        if self.stopped is not None:
            return ""
        return self._advance(self._decoder.decode(data))

    def finish(self) -> str:
        """What was held back, once no more comes; bytes of an incomplete character become U+FFFD.

        Empty after a stop string, and when called again.
        """
        if self.stopped is not None:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        for stop in self._stops:
            stop.matched = 0
        return text + rest

    def _advance(self, text: str) -> str:
        if not self._stops:
            return text
        pending = self._held + text
        for at, character in enumerate(text, start=len(self._held)):
            for stop in self._stops:
                if stop.step(character):
                    self.stopped = stop.text
                    self._held = ""
                    return pending[: at + 1 - len(stop.text)]
        safe = len(pending) - max(stop.matched for stop in self._stops)
        self._held = pending[safe:]
        return pending[:safe]


class _StopString:
    """A stop string and how many of its characters the text so far ends with."""

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def step(self, character: str) -> bool:
        """Take one more character; True when it completes the stop string."""
        matched = self.matched
        while matched and self.text[matched] != character:
            matched = self._borders[matched - 1]
        if self.text[matched] == character:
            matched += 1
        self.matched = matched
        return matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For each prefix of ``text``: the length of its longest proper prefix that is a suffix too."""
    borders = [0] * len(text)
    matched = 0
    for i in range(1, len(text)):
        while matched and text[i] != text[matched]:
            matched = borders[matched - 1]
        if text[i] == text[matched]:
            matched += 1
        borders[i] = matched
    return borders

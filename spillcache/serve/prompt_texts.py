"""The last prompts' texts and tokens, so that the next turn tokenises only what is new in it.

A long prompt takes a third of a second to tokenise, and all of it but its end was tokenised a turn
ago. Up to a control token the tokens of a text don't depend on what follows it: so a prompt that
begins with a known text, and with the same control token after it, begins with the known tokens.
"""

import threading
from dataclasses import dataclass

import numpy as np

from spillcache.chain import as_tokens
from spillcache.engine.base import Tokens

_LIMIT_BYTES = 32 << 20
_TEXT_BYTES_MIN = 4096
"""Shorter ones are tokenised in no time."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptText:
    """A prompt's beginning. ``scope``: only prompts of the same one may take it."""

    scope: bytes
    text: bytes
    mark: bytes
    """The control token's text that follows."""
    ids: Tokens

    @property
    def tokens(self) -> list[int]:
        """Its tokens, a list of the caller's."""
        found: list[int] = self.ids.tolist()
        return found

    @property
    def cost(self) -> int:
        """The bytes that it takes."""
        return len(self.text) + self.ids.nbytes

    def begins(self, scope: bytes, text: bytes) -> bool:
        """Whether that text begins with this one, and the same control token after it."""
        size = len(self.text)
        return (
            self.scope == scope and text.startswith(self.mark, size) and text.startswith(self.text)
        )


class PromptTexts:
    """The most recently used ones, within ``limit_bytes``. Any thread."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._texts: list[PromptText] = []
        """The least recently used first."""
        self._lock = threading.Lock()

    def longest(self, scope: bytes, text: bytes) -> PromptText | None:
        """The longest that ``text`` begins with."""
        with self._lock:
            fitting = [each for each in self._texts if each.begins(scope, text)]
            found = max(fitting, key=lambda each: len(each.text), default=None)
            if found is not None:
                self._texts.remove(found)
                self._texts.append(found)
            return found

    def put(self, scope: bytes, text: bytes, mark: bytes, tokens: list[int]) -> None:
        """Remember a beginning, in place of those that it goes on from."""
        if len(text) < _TEXT_BYTES_MIN:
            return
        new = PromptText(scope, text, mark, as_tokens(np.asarray(tokens)))
        with self._lock:
            self._texts = [
                each
                for each in self._texts
                if each.scope != scope or not text.startswith(each.text)
            ]
            self._texts.append(new)
            while sum(each.cost for each in self._texts) > self._limit:
                del self._texts[0]

"""The tokens of answers by their text, for conversations that come back as text: see ``turn``."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spillcache.engine.base import Tokens

_MEMORY_BYTES = 16 << 20
_SPAN_BYTES = 256
"""About what a span takes besides its tokens."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of the last ``size`` bytes of a text."""

    size: int
    tokens: Tokens

    @property
    def cost(self) -> int:
        """The bytes that it takes in RAM, about."""
        return _SPAN_BYTES + self.tokens.nbytes


class Shelf(Protocol):
    """Where spans outlive the process. Any thread; raises nothing: what can't be kept is lost."""

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, Span]:
        """Those of these keys that it has; may read from disk."""

    def put(self, key: bytes, span: Span) -> None:
        """Keep it, soon; returns at once."""


class TokenMemory:
    """Spans by key, 32 bytes: the most recently used in RAM, all of them on the shelf. Any thread.

    ``limit_bytes`` bounds what is in RAM.
    """

    def __init__(self, limit_bytes: int = _MEMORY_BYTES) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._spans: OrderedDict[bytes, Span] = OrderedDict()
        self._lock = threading.Lock()
        self.shelf: Shelf | None = None
        """Set once there is one."""

    @property
    def empty(self) -> bool:
        """Whether nothing can be found."""
        return not self._spans and self.shelf is None

    @property
    def size_bytes(self) -> int:
        """What it takes in RAM, about."""
        return self._size

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Span]:
        """What is known of these keys; it counts as used. May read from disk."""
        found: dict[bytes, Span] = {}
        with self._lock:
            for key in keys:
                span = self._spans.get(key)
                if span is not None:
                    self._spans.move_to_end(key)
                    found[key] = span
        missing = [key for key in keys if key not in found]
        if self.shelf is not None and missing:
            for key, span in self.shelf.find(missing).items():
                found[key] = span
                self._keep(key, span)
        return found

    def put(self, key: bytes, span: Span) -> None:
        """Remember it in place of what was known of this key."""
        self._keep(key, span)
        if self.shelf is not None:
            self.shelf.put(key, span)

    def _keep(self, key: bytes, span: Span) -> None:
        with self._lock:
            old = self._spans.pop(key, None)
            self._size += span.cost - (0 if old is None else old.cost)
            self._spans[key] = span
            while self._size > self._limit:
                _, gone = self._spans.popitem(last=False)
                self._size -= gone.cost

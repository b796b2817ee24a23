"""What one render of a chat template may cost."""

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError

_DEPTH_MAX = 100
INT_BITS_MAX = 1 << 14
"""Python reads and writes numbers of up to 4300 digits, which are fewer."""

ITEM_BYTES = 96
"""About what an item of a collection takes."""


class Budget:
    """What one render may cost. Raises SecurityError when it is used up; for one thread.

    ``steps`` are loop rounds, calls and the like; ``characters`` is the longest text (and the
    longest that a list may be, written out); ``memory`` is the bytes of all that is made.
    """

    def __init__(self, *, steps: int, seconds: float, characters: int, memory: int) -> None:
        self._characters = characters
        self._steps = steps
        self._memory = memory
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def spend(self, steps: int = 1) -> None:
        """Count ``steps`` and look at the clock."""
        self._steps -= steps
        if self._steps < 0:
            raise SecurityError("it takes too many steps")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes longer than {self._seconds:g} s")

    def charge(self, size: int) -> None:
        """Count ``size`` bytes."""
        self._memory -= size
        if self._memory < 0:
            raise SecurityError("it uses too much memory")

    def charge_copy(self, value: Any) -> None:
        """Count the bytes of a text, or of a collection without what its items refer to."""
        size = sys.getsizeof(value)
        if isinstance(value, Collection) and not isinstance(value, str | range):
            size += ITEM_BYTES * len(value)
        self.charge(size)

    def check_size(self, size: int) -> None:
        """Refuse a text of ``size`` characters."""
        if size > self._characters:
            raise SecurityError("it makes too much text")

    def weigh(self, value: Any, *, gap: int = 0, margin: int = 0) -> None:
        """Refuse a value that is longer than a text may be, or is nested deeply.

        Around each item go ``gap`` more characters, and ``margin`` for each level.
        """
        self._weight(value, self._characters, 0, gap, margin)

    def admit(self, value: Any) -> Any:
        """A value that was made just now, weighed and charged."""
        self.weigh(value)
        self.charge_copy(value)
        return value

    def text(self, value: Any) -> str:
        """``str(value)``, admitted."""
        text: str = self.admit(str(value))
        return text

    def join(self, texts: Iterable[str], separator: str = "") -> str:
        """``separator.join(texts)``, measured before it is made."""
        texts = list(texts)
        self.spend()
        self.check_size(sum(map(len, texts)) + len(separator) * len(texts))
        text: str = self.admit(separator.join(texts))
        return text

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items; each is a step."""
        for item in items:
            self.spend()
            yield item

    def _weight(self, value: Any, limit: int, depth: int, gap: int, margin: int) -> int:
        if isinstance(value, str):
            weight = len(value)
        elif isinstance(value, int):
            weight = 5 + checked_bits(value.bit_length()) // 3
        elif isinstance(value, range) or not isinstance(value, Collection):
            weight = len(repr(value))
        else:
            self.spend(0)
            if depth == _DEPTH_MAX:
                raise SecurityError("it nests lists too deeply")
            items = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
            depth += 1
            weight = 2
            for item in items:
                weight += 2 + gap + margin * depth
                weight += self._weight(item, limit - weight, depth, gap, margin)
        if weight > limit:
            raise SecurityError("it makes too much text")
        return weight


BUDGET: ContextVar[Budget] = ContextVar("budget of the render")
"""Of the render that runs in this context."""


def checked_bits(bits: int) -> int:
    """``bits``; raises SecurityError when a number of as many is too large."""
    if bits > INT_BITS_MAX:
        raise SecurityError("it makes a number that is too large")
    return bits

"""Small facts about answers by key, so that answers that come back keep their tokens: see ``turn``
and ``call_texts``, which make the keys.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from spillcache.serve.prompt_texts import PromptTexts

_MEMORY_BYTES = 16 << 20
_RECORD_BYTES = 256
"""About what a record takes besides its value."""


class Shelf(Protocol):
    """Where records outlive the process. Any thread; raises nothing: what can't be kept is lost."""

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """The values of those of these keys that it has; may read from disk."""

    def put(self, key: bytes, value: bytes) -> None:
        """Keep it, soon; returns at once."""


class TokenMemory:
    """Values by key, 32 bytes: the most recently used in RAM, all of them on the shelf. Any thread.

    ``limit_bytes`` bounds what is in RAM. Keys are digests that nobody can guess without the text:
    they are the only names under which values are found.
    """

    def __init__(self, limit_bytes: int = _MEMORY_BYTES) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.shelf: Shelf | None = None
        """Set once there is one."""
        self.prompts = PromptTexts()

    @property
    def empty(self) -> bool:
        """Whether nothing can be found."""
        return not self._values and self.shelf is None

    @property
    def size_bytes(self) -> int:
        """What it takes in RAM, about."""
        return self._size

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """What is known of these keys; it counts as used. May read from disk."""
        found: dict[bytes, bytes] = {}
        with self._lock:
            for key in keys:
                value = self._values.get(key)
                if value is not None:
                    self._values.move_to_end(key)
                    found[key] = value
        missing = [key for key in keys if key not in found]
        if self.shelf is not None and missing:
            for key, value in self.shelf.find(missing).items():
                found[key] = value
                self._keep(key, value)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Remember it in place of what was known of this key."""
        self._keep(key, value)
        if self.shelf is not None:
            self.shelf.put(key, value)

    def _keep(self, key: bytes, value: bytes) -> None:
        with self._lock:
            old = self._values.pop(key, None)
            self._size += _cost(value) - (0 if old is None else _cost(old))
            self._values[key] = value
            while self._size > self._limit:
                _, gone = self._values.popitem(last=False)
                self._size -= _cost(gone)


def _cost(value: bytes) -> int:
    return _RECORD_BYTES + len(value)

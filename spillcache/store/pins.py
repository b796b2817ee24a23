"""Blocks that eviction must leave alone, within this process."""

import threading
from collections import Counter
from collections.abc import Iterable
from types import TracebackType

from spillcache.store.rows import Entry

BlockKey = bytes
"""Namespace id and block hash: all parts of a block are pinned together."""


def block_key(entry: Entry) -> BlockKey:
    """The block that an entry is a part of."""
    return entry.namespace_id + entry.block


class Pins:
    """Who is pinned, and how often; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[BlockKey] = Counter()

    def pin(self, entries: Iterable[Entry]) -> "Pin":
        """Protect the blocks of ``entries`` until the pin is released."""
        keys = {block_key(entry) for entry in entries}
        with self._lock:
            self._counts.update(keys)
        return Pin(self, keys)

    def unpin(self, keys: set[BlockKey]) -> None:
        """Undo one ``pin`` of these blocks."""
        with self._lock:
            for key in keys:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._counts


class Pin:
    """Protection from eviction by this process (another may still evict). A context manager."""

    __slots__ = ("_keys", "_pins")

    def __init__(self, pins: Pins, keys: set[BlockKey]) -> None:
        self._pins = pins
        self._keys = keys

    def release(self) -> None:
        """End the protection; may be called twice."""
        keys, self._keys = self._keys, set()
        self._pins.unpin(keys)

    def __enter__(self) -> "Pin":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

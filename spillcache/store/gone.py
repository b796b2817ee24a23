"""What was evicted lately, by name only: what comes back soon was worth keeping."""

from collections.abc import Hashable

MOST = 1 << 15


class Gone:
    """Remembers the last ``most`` names, and up to as many before them; about 100 bytes each.

    Two generations of hashes: a name is forgotten with its generation. Once in 2^50 looks it is
    wrong, which costs an object a place in the queue. Not locked: a race forgets a name.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._new: set[int] = set()
        self._old: set[int] = set()

    def add(self, name: Hashable) -> None:
        """It was evicted just now."""
        if len(self._new) >= self._most:
            self._old, self._new = self._new, set()
        self._new.add(hash(name))

    def __contains__(self, name: Hashable) -> bool:
        known = hash(name)
        return known in self._new or known in self._old

"""In what order blocks are evicted: the least recently used first, but what was used a second time
stays a pause and a half longer. Pure: no clock, no I/O; whoever uses it locks it.

A prompt that comes once fills a cache with blocks that nobody asks for again; the beginning that
many prompts share, and a conversation that goes on, are asked for again. So a block stands as if
its last use had been later, once it was used twice: by one and a half times the mean pause between
a block's uses, which is measured. What was evicted not long ago and is computed again counts as
used before. Where nothing is used twice this is plain LRU. ``bench/replay.py`` compares it with
others; ``bench/LOG.md`` tells what lost.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from spillcache.store.gone import Gone

PAUSES_AHEAD = 1.5
_MEMORY = 20_000
"""The mean pause is that of about so many of the last uses of blocks."""

K = TypeVar("K", bound=Hashable)


class Pause:
    """The mean time between a block's uses."""

    def __init__(self) -> None:
        self._mean_s, self._count = 0.0, 0

    def after(self, pause_s: float, blocks: int = 1) -> None:
        """So many blocks were used again after ``pause_s`` on average."""
        self._count = min(self._count + blocks, _MEMORY)
        share = min(blocks, _MEMORY) / self._count
        self._mean_s += (max(0.0, pause_s) - self._mean_s) * share

    @property
    def ahead_s(self) -> float:
        """How much later what was used twice is evicted."""
        return PAUSES_AHEAD * self._mean_s


class Order(Generic[K]):
    """Keys of blocks in the order of their eviction. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self.pause = Pause()
        self._once: OrderedDict[K, tuple[float, bool]] = OrderedDict()
        """When it was last added or used, and whether it was used already."""
        self._again: OrderedDict[K, tuple[float, bool]] = OrderedDict()
        self._gone = Gone()

    def __contains__(self, key: K) -> bool:
        return key in self._once or key in self._again

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def add(self, key: K, now: float) -> None:
        """A block is here; that is no use yet."""
        if key in self._again:
            self._again[key] = (now, True)
            self._again.move_to_end(key)
            return
        used = self._once[key][1] if key in self._once else key in self._gone
        self._once[key] = (now, used)
        self._once.move_to_end(key)

    def use(self, key: K, now: float) -> float | None:
        """Count a use of a block that is here; a chain's deepest block first. When it was used
        before, if it was.
        """
        queue = self._once if key in self._once else self._again
        before, used = queue.pop(key)
        (self._again if used else self._once)[key] = (now, True)
        return before if used else None

    def forget(self, key: K) -> None:
        """A block is not to be chosen any more: it was evicted."""
        for queue in (self._once, self._again):
            if key in queue:
                del queue[key]
                self._gone.add(key)

    def first(self, may_go: Callable[[K], bool]) -> K | None:
        """The block to evict next, of those that may go. Looks past what may not: parents stand
        behind their children, so these are few.
        """
        once = next((key for key in self._once if may_go(key)), None)
        if self._again and once is not None:
            # Nothing there is due before its first.
            oldest = next(iter(self._again.values()))[0] + self.pause.ahead_s
            if self._once[once][0] <= oldest:
                return once
        again = next((key for key in self._again if may_go(key)), None)
        if once is None or again is None:
            return again if once is None else once
        due = self._again[again][0] + self.pause.ahead_s
        return once if self._once[once][0] <= due else again

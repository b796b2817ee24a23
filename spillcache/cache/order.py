"""In what order blocks are evicted: the least recently used first, but what was used a second time
stays some pauses longer. Pure: no clock, no I/O; whoever uses it locks it.

A prompt that comes once fills a cache with blocks that nobody asks for again; the beginning that
many prompts share, and a conversation that goes on, are asked for again. So a block stands as if
its last use had been later, once it was used twice: by a few times the mean pause between a
block's uses, which is measured. What was evicted not long ago and is computed again counts as
used before. How many pauses, what comes back tells, as in ARC (Megiddo and Modha, 2003): a block
that was used twice and evicted all the same should have stayed longer; one that was used once, and
so made room for them, asks for fewer. Where nothing is used twice this is plain LRU.
``bench/replay.py`` compares it with others; ``bench/LOG.md`` tells what lost.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from spillcache.store.gone import Gone

FEWEST_AHEAD, FIRST_AHEAD, MOST_AHEAD = 0.02, 1.0, 8.0
"""How many pauses longer what was used twice stays: at least, at first, and at most."""
_STEP = 1 / 500
"""What one block that comes back adds to the logarithm of that, or takes."""
_MEMORY = 20_000
"""The mean pause is that of about so many of the last uses of blocks."""

K = TypeVar("K", bound=Hashable)


class Pause:
    """The mean time between a block's uses."""

    def __init__(self) -> None:
        self.mean_s, self._count = 0.0, 0

    def after(self, pause_s: float, blocks: int = 1) -> None:
        """So many blocks were used again after ``pause_s`` on average."""
        self._count = min(self._count + blocks, _MEMORY)
        share = min(blocks, _MEMORY) / self._count
        self.mean_s += (max(0.0, pause_s) - self.mean_s) * share


class Order(Generic[K]):
    """Keys of blocks in the order of their eviction. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self.pause = Pause()
        self._once: OrderedDict[K, tuple[float, bool]] = OrderedDict()
        """When it was last added or used, and whether it was used already."""
        self._again: OrderedDict[K, tuple[float, bool]] = OrderedDict()
        self._pauses_ahead = FIRST_AHEAD
        self._gone_once, self._gone_again = Gone(), Gone()
        self._once_left = self._again_left = 1
        """How many were evicted from each."""

    @property
    def ahead_s(self) -> float:
        """How much later what was used twice is evicted."""
        return self._pauses_ahead * self.pause.mean_s

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
        used = self._once[key][1] if key in self._once else self._is_back(key)
        self._once[key] = (now, used)
        self._once.move_to_end(key)

    def _is_back(self, key: K) -> bool:
        """Whether it was evicted not long ago; then a lesson is learnt from it, which weighs more
        the fewer were evicted of its kind.
        """
        if key in self._gone_again:
            self._learn(max(1.0, self._once_left / self._again_left))
        elif key in self._gone_once:
            self._learn(-max(1.0, self._again_left / self._once_left))
        else:
            return False
        return True

    def _learn(self, weight: float) -> None:
        pauses = self._pauses_ahead * math.exp(_STEP * weight)
        self._pauses_ahead = min(max(pauses, FEWEST_AHEAD), MOST_AHEAD)

    def use(self, key: K, now: float) -> float | None:
        """Count a use of a block that is here; a chain's deepest block first. When it was used
        before, if it was.
        """
        queue = self._once if key in self._once else self._again
        before, used = queue.pop(key)
        (self._again if used else self._once)[key] = (now, True)
        return before if used else None

    def use_chain(self, keys: Sequence[K], now: float) -> int:
        """As ``use`` of each that is here, the last first, and their mean pause.

        How many come before the new ones at the end: those that are here and were not used yet.
        """
        # Every turn uses all of a conversation, which has hundreds: no call for each.
        once, again, entry = self._once, self._again, (now, True)
        before, count, known = 0.0, 0, len(keys)
        for index in range(len(keys) - 1, -1, -1):
            key = keys[index]
            found = again.pop(key, None) or once.pop(key, None)
            if found is None:
                continue
            if found[1]:
                again[key] = entry
                before += found[0]
                count += 1
            else:
                once[key] = entry
                if index == known - 1:
                    known = index
        if count:
            self.pause.after(now - before / count, count)
        return known

    def latest(self, most: int) -> list[K]:
        """Up to ``most`` keys, those that were used last first."""
        queues = (reversed(self._once.items()), reversed(self._again.items()))
        merged = heapq.merge(*queues, key=lambda item: item[1][0], reverse=True)
        return [key for key, _ in islice(merged, most)]

    def forget(self, key: K) -> None:
        """A block is not to be chosen any more: it was evicted."""
        if key in self._once:
            del self._once[key]
            self._gone_once.add(key)
            self._once_left += 1
        elif key in self._again:
            del self._again[key]
            self._gone_again.add(key)
            self._again_left += 1

    def first(self, may_go: Callable[[K], bool]) -> K | None:
        """The block to evict next, of those that may go. Looks past what may not: parents stand
        behind their children, so these are few.
        """
        once = next((key for key in self._once if may_go(key)), None)
        if self._again and once is not None:
            # Nothing there is due before its first.
            oldest = next(iter(self._again.values()))[0] + self.ahead_s
            if self._once[once][0] <= oldest:
                return once
        again = next((key for key in self._again if may_go(key)), None)
        if once is None or again is None:
            return again if once is None else once
        due = self._again[again][0] + self.ahead_s
        return once if self._once[once][0] <= due else again

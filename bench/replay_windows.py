"""Which windows are worth their bytes? Part of ``replay.py --windows``.

On a model with a sliding window a block's window is several times its kv, and a restore reads only
the last ones of a prefix. A small model of the store: objects in the order of ``evictable``, and
``policy.restorable`` to say what can be restored.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from spillcache.cache.policy import rank, restorable
from spillcache.state import Geometry, Part

WINDOW_SIZE = 5
"""Of a block's window, in sizes of its kv: gemma3-270m's."""
Rank = Callable[[int, int, Geometry], int]
"""Of the window of a block, by its index and its prompt's blocks."""
Object = tuple[int, Part]


def chosen(index: int, blocks: int, geometry: Geometry) -> int:
    """What the tiers do."""
    return rank(Part.WINDOW, geometry, index, blocks)


RULES: dict[str, Rank] = {"first": lambda *_: 1, "alike": lambda *_: 0, "chosen": chosen}
"""All windows before any kv; windows as kv; those first that no likely restore needs."""


@dataclass
class Disk:
    """Objects of one size of kv and one of windows, within a quota."""

    quota: int
    geometry: Geometry
    rank_of: Rank
    promote: bool
    """Whether a window that was read moves to where kv stands."""
    used: int = 0
    clock: int = 0
    uses: dict[Object, int] = field(default_factory=dict)
    ranks: dict[Object, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    children: Counter[int] = field(default_factory=Counter)
    heap: list[tuple[int, int, Object]] = field(default_factory=list)

    def prompt(self, blocks: Sequence[int]) -> int:
        """One prompt: how many of its blocks could be restored. Then all of it is stored."""
        present = [{p for p in (Part.KV, Part.WINDOW) if (b, p) in self.uses} for b in blocks]
        found = restorable(present, self.geometry, len(blocks))
        w = self.geometry.window_blocks
        self._touch([(b, Part.WINDOW) for b in blocks[max(0, found - w) : found]])
        own = set(blocks)
        for part in (Part.KV, Part.WINDOW):
            for index, block in enumerate(blocks):
                place = 0 if part is Part.KV else self.rank_of(index, len(blocks), self.geometry)
                parent = blocks[index - 1] if index else -1
                # What lies before what was restored is not computed, so not stored again.
                if (block, part) not in self.uses and index >= found:
                    self._add((block, part), place, parent, own)
        self._touch([(blocks[-1], Part.KV), *((b, Part.WINDOW) for b in blocks[-w:])])
        return found

    def _touch(self, objects: Sequence[Object]) -> None:
        for each in objects:
            if each in self.uses:
                self.clock += 1
                self.uses[each] = self.clock
                if self.promote:
                    self.ranks[each] = 0
                self._offer(each)

    def _add(self, each: Object, place: int, parent: int, own: set[int]) -> None:
        block, part = each
        size = 1 if part is Part.KV else WINDOW_SIZE
        if (block, Part.KV) not in self.uses and part is Part.WINDOW:
            return  # its kv found no room
        if part is Part.KV and parent >= 0 and (parent, Part.KV) not in self.uses:
            return
        while self.used + size > self.quota:
            if not self._evict(own):
                return
        self.used += size
        self.clock += 1
        self.uses[each], self.ranks[each] = self.clock, place
        if part is Part.KV:
            self.parents[block] = parent
            self.children[parent] += 1
        self._offer(each)

    def _offer(self, each: Object) -> None:
        if each[1] is Part.WINDOW or not self.children[each[0]]:
            heapq.heappush(self.heap, (-self.ranks[each], self.uses[each], each))

    def _evict(self, own: set[int]) -> bool:
        passed = []
        done = False
        while self.heap and not done:
            item = heapq.heappop(self.heap)
            place, use, each = item
            block, part = each
            if self.uses.get(each) != use or self.ranks[each] != -place:
                continue
            if part is Part.KV and self.children[block]:
                continue
            if block in own:
                passed.append(item)
                continue
            self._forget(each)
            done = True
        for item in passed:
            heapq.heappush(self.heap, item)
        return done

    def _forget(self, each: Object) -> None:
        block, part = each
        use = self.uses.pop(each)
        self.used -= 1 if part is Part.KV else WINDOW_SIZE
        if part is Part.WINDOW:
            return
        if (block, Part.WINDOW) in self.uses:
            self._forget((block, Part.WINDOW))
        parent = self.parents.pop(block)
        self.children[parent] -= 1
        if parent >= 0 and (parent, Part.KV) in self.uses:
            heir = (parent, Part.KV)
            self.uses[heir] = max(self.uses[heir], use)
            self._offer(heir)


def window_rows(
    name: str, prompts: Sequence[list[int]], w: int, percents: Sequence[int]
) -> Iterator[dict]:
    """One row for each size: the share of blocks that can be restored in %, by rule."""
    distinct = len({block for blocks in prompts for block in blocks})
    total = sum(map(len, prompts))
    geometry = Geometry(window_blocks=w)
    for percent in percents:
        row: dict[str, object] = {"trace": name, "percent": percent}
        quota = max(1, distinct * (1 + WINDOW_SIZE) * percent // 100)
        for rule, place in RULES.items():
            disk = Disk(quota, geometry, place, promote=rule == "chosen")
            row[rule] = round(100 * sum(map(disk.prompt, prompts)) / total, 3)
        yield row

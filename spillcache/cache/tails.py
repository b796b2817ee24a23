"""Which tails a prompt goes on with: partial last blocks, of earlier turns, that are all of it so
far.

A tail is named by its parent and its tokens, so the prompt's own tokens tell. It serves only
prompts that are longer: an identical one computes its last call again, as it did the first time.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

from spillcache.cache.ram import RamBlock, RamTier
from spillcache.cache.restore import Step
from spillcache.chain import BlockHash, Chain
from spillcache.state import Part
from spillcache.store.block_store import Entry
from spillcache.store.tails import MOST_TAILS

_MOST_ENDS = 4096


class Ends:
    """Where sequences ended within a block, so that what goes on from there can take its place.

    Bounded; what is forgotten leaves a tail in the store that goes like any other. Not locked.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[BlockHash, dict[BlockHash, int]] = OrderedDict()

    def add(self, parent: BlockHash, tail: BlockHash, count: int) -> None:
        """A sequence ends, or goes on, ``count`` tokens after ``parent``."""
        ends = self._ends.setdefault(parent, {})
        ends[tail] = count
        if len(ends) > MOST_TAILS:
            del ends[next(iter(ends))]
        self._ends.move_to_end(parent)
        if len(self._ends) > _MOST_ENDS:
            self._ends.popitem(last=False)

    def take(self, chain: Chain, block: int, name: BlockHash) -> list[BlockHash]:
        """The ends from which block ``block`` of ``chain``, or its tail ``name``, goes on; they
        are forgotten.
        """
        parent = chain.parent(block)
        ends = self._ends.get(parent)
        if not ends:
            return []
        taken = [
            tail
            for tail, count in ends.items()
            if tail != name and goes_on(chain, block, tail, count)
        ]
        for tail in taken:
            del ends[tail]
        if not ends:
            del self._ends[parent]
        return taken


def in_ram(
    ram: RamTier, chain: Chain, places: Iterable[int], without: Collection[BlockHash]
) -> dict[int, RamBlock]:
    """The longest tail after each of ``places`` blocks, if any; under the lock of ``ram``."""
    found: dict[int, RamBlock] = {}
    for block in places:
        for tail in ram.tails(chain.parent(block)):
            best = found.get(block)
            if tail.hash in without or (best and best.tail_tokens >= tail.tail_tokens):
                continue
            if goes_on_from(chain, tail):
                found[block] = tail
    return found


def whole_tails(
    tails: Sequence[Sequence[Mapping[Part, Entry]]],
    chain: Chain,
    places: Sequence[int],
    parts: Collection[Part],
    without: Collection[BlockHash],
) -> dict[int, Mapping[Part, Entry]]:
    """As ``in_ram``, of what the disk was found to have after each of ``places`` blocks
    (``tails``), as far as it is whole.
    """
    found: dict[int, Mapping[Part, Entry]] = {}
    for block, known in zip(places, tails, strict=True):
        for entries in known:
            name, count = next(iter(entries.values())).block, tail_count(entries)
            if name in without or not entries.keys() >= set(parts):
                continue
            if count > tail_count(found.get(block, {})) and goes_on(chain, block, name, count):
                found[block] = entries
    return found


def tail_count(entries: Mapping[Part, Entry]) -> int:
    """How many tokens a tail on disk has; 0 for none."""
    return next((entry.token_count for entry in entries.values()), 0)


def longest(
    places: Sequence[int], ram: Mapping[int, RamBlock], disk: Mapping[int, Mapping[Part, Entry]]
) -> Step | None:
    """The tail that makes the longest prefix, after one of ``places`` blocks (ascending)."""
    for block in reversed(places):
        held, entries = ram.get(block), disk.get(block, {})
        count = tail_count(entries)
        if held is not None and held.tail_tokens >= count:
            return Step(block, held.hash, dict(held.parts), {}, held.tail_tokens)
        if count:
            name = next(iter(entries.values())).block
            return Step(block, name, {}, dict(entries), count)
    return None


def goes_on(chain: Chain, block: int, tail: BlockHash, count: int) -> bool:
    """Whether a prompt is longer than its first ``block`` blocks and these ``count`` tokens, and
    begins with them.
    """
    end = block * chain.block_tokens + count
    return end < len(chain) and chain.tail(block, count) == tail


def goes_on_from(chain: Chain, tail: RamBlock) -> bool:
    """As ``goes_on``, of a tail in RAM that follows a block of ``chain``, by its tokens: that is
    quicker than a hash.
    """
    end = tail.index * chain.block_tokens + tail.tail_tokens
    return end < len(chain) and tail.tail == _bytes_of(chain, tail.index, tail.tail_tokens)


def is_tail_of(chain: Chain, tail: RamBlock) -> bool:
    """Whether a tail in RAM that follows the last whole block of ``chain`` is its tail."""
    return tail.tail == _bytes_of(chain, chain.blocks, chain.block_tokens)


def _bytes_of(chain: Chain, block: int, count: int) -> bytes:
    """Tokens as RamBlock.tail has them."""
    return chain.tail_tokens(block, count).tobytes()


def outgrown(ram: RamTier, chain: Chain) -> list[RamBlock]:
    """Tails of earlier turns of ``chain`` that are not on disk; under the lock of ``ram``."""
    return [
        tail
        for tail in ram.unsaved_tails()
        if tail.index <= chain.blocks
        and tail.parent == chain.parent(tail.index)
        and goes_on_from(chain, tail)
    ]

"""What the tiers hold of a prompt."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spillcache.cache.ram import RamBlock
from spillcache.cache.restore import Source, Step
from spillcache.cache.worth import Verdict
from spillcache.chain import BlockHash, Chain
from spillcache.state import Part
from spillcache.store.block_store import Entry


@dataclass(slots=True)
class Match:
    """A prefix of ``blocks`` blocks, the last of which may be a tail, that the tiers hold; pinned
    until ``release``, which must be called.
    """

    chain: Chain
    steps: list[Step]
    verdict: Verdict = Verdict("miss", 0)  # noqa: RUF009 - it is frozen
    """Why it is no longer than it is."""
    _release: Callable[[], None] = field(default=lambda: None)

    @property
    def blocks(self) -> int:
        """How many blocks can be restored."""
        return len(self.steps)

    @property
    def tokens(self) -> int:
        """How many tokens that is."""
        return sum(self.tokens_by_source().values())

    @property
    def tail(self) -> BlockHash | None:
        """The last block's hash, if it is a tail."""
        return self.steps[-1].hash if self.steps and self.steps[-1].tail_tokens else None

    def tokens_by_source(self, blocks: int | None = None) -> dict[Source, int]:
        """How many tokens come from each tier, of the first ``blocks`` blocks or all of them."""
        tokens: Counter[Source] = Counter()
        for step, source in list(zip(self.steps, self.sources(), strict=True))[:blocks]:
            tokens[source] += step.tail_tokens or self.chain.block_tokens
        return dict(tokens)

    def sources(self) -> list[Source]:
        """The tier that each block comes from; one that needs no part comes with its successor."""
        found: list[Source] = []
        source: Source = "ram"
        for step in reversed(self.steps):
            if step.ram or step.disk:
                source = step.source
            found.append(source)
        return found[::-1]

    def release(self) -> None:
        """Unpin; may be called twice."""
        release, self._release = self._release, lambda: None
        release()


def step_of(
    index: int,
    block_hash: BlockHash,
    block: RamBlock | None,
    found: Mapping[Part, Entry],
    parts: Sequence[Part],
) -> Step:
    """A whole block's step: each of ``parts`` from RAM, or else from disk."""
    ram: dict[Part, memoryview] = {}
    disk: dict[Part, Entry] = {}
    for part in parts:
        if block is not None and part in block.parts:
            ram[part] = block.parts[part]
        else:
            disk[part] = found[part]
    return Step(index, block_hash, ram, disk)

"""What the scheduler does and did, for people who look from another thread: numbers only."""

from collections.abc import Sequence
from typing import Any

from spillcache.chain import BlockHash
from spillcache.serve.recent_requests import RecentRequests
from spillcache.serve.slots import Phase, Slot


class Glance:
    """A look at a scheduler from outside. Any thread; what the engine's thread changes meanwhile
    may be a step apart.
    """

    def __init__(self, slots: Sequence[Slot], recent: RecentRequests) -> None:
        self._slots = slots
        self.recent = recent

    def slots(self) -> list[dict[str, Any]]:
        """What each slot does now, for JSON."""
        return [_facts(slot) for slot in self._slots]

    def live_blocks(self) -> set[BlockHash]:
        """The blocks that slots hold; not of prompts that are still being computed."""
        found: set[BlockHash] = set()
        for slot in self._slots:
            chain = slot.chain
            if chain is not None and slot.phase in {Phase.IDLE, Phase.DECODE}:
                found.update((*chain.hashes, chain.hash_of(chain.blocks)))
        return found


def _facts(slot: Slot) -> dict[str, Any]:
    job, chain = slot.job, slot.chain
    return {
        "id": slot.index,
        "phase": slot.phase.value,
        "tokens": 0 if chain is None else len(chain),
        "prompt_tokens": 0 if job is None else len(job.request.tokens),
        "reused_tokens": 0 if job is None else sum(tuple(job.cached.values())),
        "generated_tokens": 0 if job is None else len(job.answer),
    }

"""Who has room in the context that all slots share, and who gives way; nothing is changed here.

Engine's thread.
"""

from collections.abc import Sequence

from spillcache.engine.base import Engine
from spillcache.serve.slots import Job, Phase, Slot


def fits(job: Job, slots: Sequence[Slot], engine: Engine) -> bool:
    """Whether a prompt, and a block's growth of every answer, fit beside what runs."""
    chains = [slot.chain for slot in slots if slot.job is not None and slot.chain]
    if not chains:
        return True
    growth = (len(chains) + 1) * engine.geometry.block_tokens
    held = sum(len(chain) for chain in chains)
    tokens = len(job.request.tokens) + len(job.answer)
    return held + tokens + growth <= engine.limits.context_tokens


def to_clear(slot: Slot, tokens: int, slots: Sequence[Slot], engine: Engine) -> list[Slot]:
    """The idle slots that must be emptied so that ``slot`` may hold ``tokens``, in the order in
    which they give way.
    """
    lengths = {s.index: engine.length(s.index) for s in slots if s is not slot}
    over = sum(lengths.values()) + tokens - engine.limits.context_tokens
    chosen = []
    for other in sorted(slots, key=lambda s: s.precedence):
        if over <= 0:
            break
        if other.phase is Phase.IDLE and lengths.get(other.index):
            over -= lengths[other.index]
            chosen.append(other)
    return chosen


def gives_way(slots: Sequence[Slot], engine: Engine) -> Slot | None:
    """Whose cells a full context takes next: the first idle slot's that gives way, or else the
    youngest request's; None if there is but one.
    """
    idle = [s for s in slots if s.phase is Phase.IDLE and engine.length(s.index)]
    if idle:
        return min(idle, key=lambda slot: slot.precedence)
    busy = [s for s in slots if s.job is not None]
    if len(busy) < 2:
        return None
    return max(busy, key=lambda slot: slot.job.started if slot.job else 0.0)

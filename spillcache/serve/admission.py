"""Which slot a request gets, and what it goes on from there: live, forked from another slot,
restored, or nothing, whichever saves most.
"""

from dataclasses import dataclass

from spillcache.chain import Chain
from spillcache.engine.base import Engine
from spillcache.namespace import Namespace
from spillcache.serve.adapters import Namespaces
from spillcache.serve.job import Decision, Parted
from spillcache.serve.keeper import Keeper
from spillcache.serve.read_ahead import ReadAhead
from spillcache.serve.restorer import Restorer
from spillcache.serve.slot_choice import choose, parting, take_live, usable_live
from spillcache.serve.slots import Job, Restore, Slot


@dataclass(frozen=True, slots=True)
class Start:
    """``slot``'s sequence holds ``live`` tokens of ``chain``, which were those of ``source``; or
    none, and ``restore`` has begun.
    """

    slot: Slot
    source: Slot
    chain: Chain
    live: int
    restore: Restore | None
    decision: Decision
    parted: Parted | None


class Admission:
    """Over all of the scheduler's ``slots``; engine's thread."""

    def __init__(self, engine: Engine, slots: list[Slot]) -> None:
        self._engine = engine
        self._slots = slots
        self._namespaces = Namespaces(Namespace.of({"provisional": True}), engine.adapters)
        self._restorer: Restorer | None = None
        self._keeper: Keeper | None = None
        self._ahead = ReadAhead()

    def attach(
        self, namespaces: Namespaces, restorer: Restorer | None, keeper: Keeper | None
    ) -> None:
        """The model's content is known, and what the tiers hold can be restored, if there are
        ``restorer`` and ``keeper``.
        """
        self._ahead.close()
        self._namespaces, self._restorer, self._keeper = namespaces, restorer, keeper

    def read_ahead(self, head: Job | None) -> None:
        """While ``head``, the queue's next request, waits: read what it will need from disk."""
        if self._ahead.knows(head):
            return
        if head is None or self._restorer is None or not head.reuses:
            self._ahead.close()
            return
        chain = self._chain(head)
        live = max(usable_live(slot, chain, self._engine) for slot in self._slots)
        self._ahead.begin(head, chain, live, self._restorer)

    def begin(self, job: Job) -> Start:
        """Choose a slot, of which at least one is idle, and have its sequence hold what ``job``
        goes on from.
        """
        engine, reuse, chain = self._engine, job.reuses, self._chain(job)
        choice = choose(self._slots, chain, engine, job.request, reuse=reuse)
        parted = parting(self._slots, chain, engine) if reuse else None
        restore, decision = self._ahead.restore(job, chain, choice.live, self._restorer)
        slot, live = (choice.oldest, 0) if restore is not None else (choice.slot, choice.live)
        if self._keeper is not None:
            if restore is None and choice.source is slot and live == engine.length(slot.index):
                self._keeper.goes_on(slot, job.request)
            else:
                self._keeper.settle(slot)
        if restore is not None:
            engine.clear(slot.index)
        elif not take_live(choice, engine):
            live, decision = 0, "miss"
        return Start(slot, choice.source, chain, live, restore, decision, parted)

    def _chain(self, job: Job) -> Chain:
        """What it shares with a slot's is not hashed again."""
        size = self._engine.geometry.block_tokens
        relatives = [slot.chain for slot in self._slots if slot.chain is not None]
        namespace = self._namespaces.of(job.adapters)
        return Chain(namespace, size, job.tokens, job.request.salt, relatives)

    def close(self) -> None:
        """Give up what was read ahead."""
        self._ahead.close()

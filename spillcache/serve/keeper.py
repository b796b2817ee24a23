"""What the engine has just computed, on its way into the tiers: the mirror of ``restorer``.

Nothing here may cost a request: what can't be kept is logged and computed again some day.
"""

import logging
import time
from collections.abc import Sequence

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.engine.base import Engine
from spillcache.errors import StateRejected
from spillcache.serve.adapters import Namespaces
from spillcache.serve.job import GenerationRequest
from spillcache.serve.prompt_plan import takes_boundary
from spillcache.serve.slots import Phase, Slot
from spillcache.state import Part

log = logging.getLogger("spillcache.serve")

TAIL_WAIT_S = 2.0
"""So long after a turn its tail is copied out: a next turn that comes sooner goes on from the live
sequence, and needs no copy.
"""


class Keeper:
    """Offers blocks to ``cache`` under ``namespaces``; engine's thread.

    The tail of a turn stays in the engine only, for TAIL_WAIT_S at most: ``settle`` copies it out,
    and must be called before an idle slot's sequence is changed. Not so a recurrent state, which
    the sequence can't go back to: that is copied at once.
    """

    def __init__(self, engine: Engine, cache: PrefixCache, namespaces: Namespaces) -> None:
        self._engine = engine
        self._cache = cache
        self._namespaces = namespaces

    def copies_out(self, answering: Sequence[Slot]) -> bool:
        """Whether a block is exported after the next token of one of these slots."""
        size = self._engine.geometry.block_tokens
        return any((self._engine.length(slot.index) + 1) % size == 0 for slot in answering)

    def keep_prompt(self, slot: Slot, start: int, stop: int, *, last: bool) -> None:
        """Offer what the prompt's call from ``start`` to ``stop`` completed, right after it.

        ``last``: whether it gave the prompt's logits. Else, at the prompt's end, the last token is
        computed again, and its block is kept then.
        """
        if slot.chain is None:
            return
        geometry, total = self._engine.geometry, len(slot.chain)
        done = stop if last or stop < total else stop - geometry.block_tokens
        self.keep(slot, start, done, boundary=takes_boundary(stop, total, geometry))

    def keep(self, slot: Slot, start: int, stop: int, *, boundary: bool) -> None:
        """Offer the blocks that the call from ``start`` to ``stop`` completed, right after it.

        ``boundary``: whether the recurrent state at ``stop`` is wanted, too.
        """
        size = self._engine.geometry.block_tokens
        completed = range(start // size, stop // size)
        chain, job = slot.chain, slot.job
        if not completed or chain is None or job is None:
            return
        if not job.request.stores or not self._ours(chain):
            return
        for block in completed:
            at_end = boundary and (block + 1) * size == stop
            wanted = self._cache.wants(chain, block, boundary=at_end)
            if not wanted or self._keep_block(slot, chain, block, boundary=at_end):
                # Recurrent state stands for all that precedes it.
                first = block * size if self._engine.geometry.has_kv else 0
                job.count_kept(first, (block + 1) * size)

    def adopt(self, slot: Slot, live: int, *, unkept: bool) -> None:
        """A request goes on from ``live`` tokens. Keep them, too, where the request that computed
        them was to store nothing (``unkept``): what follows would hang on nothing.
        """
        stores = slot.job is not None and slot.job.request.stores
        if unkept and live and stores:
            whole = live % self._engine.geometry.block_tokens == 0
            self.keep(slot, 0, live, boundary=whole)
        slot.unkept = not stores

    def _keep_block(self, slot: Slot, chain: Chain, block: int, *, boundary: bool) -> bool:
        """Whether RAM has it now, but maybe for the boundary."""
        try:
            state = dict(self._engine.export(slot.index, block, boundary=boundary))
        except StateRejected as error:
            log.warning("a block was not kept: %s", error)
            return not self._cache.wants(chain, block)
        if slot.phase is Phase.DECODE and Part.BOUNDARY in state and not self._on_stride(block):
            # Only the last one of an answer is worth its bytes: it is kept when the turn ends.
            slot.keep_boundary(block, state)
            del state[Part.BOUNDARY]
        return self._cache.offer(chain, block, state)

    def _on_stride(self, block: int) -> bool:
        stride = self._engine.geometry.boundary_stride
        return bool(stride) and (block + 1) % stride == 0

    def end_turn(self, slot: Slot, request: GenerationRequest | None) -> None:
        """Keep the answer's last boundary, see that the tail is kept, and count a use of the
        conversation; never raises.

        ``slot.chain`` is what the sequence holds. ``request``: the one that ends, unless it failed.
        """
        try:
            self._end_turn(slot, request)
        except Exception:  # the answer is out: what the cache can't take must not undo that
            log.exception("the end of a turn was not kept")

    def _end_turn(self, slot: Slot, request: GenerationRequest | None) -> None:
        chain, boundary, slot.boundary = slot.chain, slot.boundary, None
        if chain is None or not self._ours(chain):
            return
        if boundary is not None and boundary[0] < chain.blocks:
            self._cache.offer(chain, *boundary)
        self._cache.used(chain)
        if request is not None and request.stores and len(chain) % chain.block_tokens:
            slot.tail_due = time.monotonic() + TAIL_WAIT_S
            if self._engine.geometry.has_boundary:
                self.settle(slot)

    # The tail, the last and partial block, from which the next turn goes on.

    def wait_s(self, slots: Sequence[Slot]) -> float | None:
        """In how many seconds ``settle_due`` has something to do; None: never."""
        due = [slot.tail_due for slot in slots if slot.tail_due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def settle_due(self, slots: Sequence[Slot]) -> None:
        """Copy out the tails whose time has come."""
        for slot in slots:
            if slot.tail_due is not None and time.monotonic() >= slot.tail_due:
                self.settle(slot)

    def goes_on(self, slot: Slot, request: GenerationRequest) -> None:
        """``request`` goes on from the end of the sequence, which is no tail any more when the
        turn is over. One that stores nothing keeps no tail of its own.
        """
        if not request.stores:
            self.settle(slot)
        slot.tail_due = None

    def settle(self, slot: Slot) -> None:
        """Copy out the slot's tail, if that is not done yet; never raises."""
        due, chain, slot.tail_due = slot.tail_due, slot.chain, None
        if due is None or chain is None or not self._ours(chain):
            return
        try:
            self._keep_tail(slot, chain)
        except StateRejected as error:
            log.warning("a tail was not kept: %s", error)
        except Exception:  # nobody's request is to fail for it
            log.exception("a tail was not kept")

    def _keep_tail(self, slot: Slot, chain: Chain) -> None:
        block = chain.blocks
        if self._cache.wants(chain, block, boundary=True):
            state = self._engine.export(slot.index, block, boundary=True)
            if self._cache.offer(chain, block, state):
                self._cache.used_tail(chain)

    def _ours(self, chain: Chain) -> bool:
        """Whether the chain was begun after the tiers were attached."""
        return self._namespaces.has(chain.namespace)

"""What the engine has just computed, on its way into the tiers: the mirror of ``restorer``.

Nothing here may cost a request: what can't be kept is logged and computed again some day.
"""

import logging
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


class Keeper:
    """Offers blocks to ``cache`` under ``namespaces``; engine's thread."""

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
        chain, job = slot.chain, slot.job
        if chain is None or job is None or not self._ours(chain):
            return
        if not job.request.stores:
            return
        size = self._engine.geometry.block_tokens
        for block in range(start // size, stop // size):
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
        """Keep the answer's last boundary and the tail, and count a use of the conversation; never
        raises.

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
        if request is not None and request.cache_store and request.cache_prompt:
            self._keep_tail(slot, chain)
        self._cache.used(chain)

    def _keep_tail(self, slot: Slot, chain: Chain) -> None:
        """Offer the last, partial block, so that the next turn goes on from just here."""
        block = chain.blocks
        has_tail = len(chain) % chain.block_tokens > 0
        if not has_tail or not self._cache.wants(chain, block, boundary=True):
            return
        try:
            self._cache.offer(chain, block, self._engine.export(slot.index, block, boundary=True))
        except StateRejected as error:
            log.warning("a tail was not kept: %s", error)

    def _ours(self, chain: Chain) -> bool:
        """Whether the chain was begun after the tiers were attached."""
        return self._namespaces.has(chain.namespace)

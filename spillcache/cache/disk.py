"""The disk tier as a match sees it: what fails there is logged, counted, and a miss."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from spillcache.cache.breaker import Breaker
from spillcache.cache.restore import Step
from spillcache.cache.tails import whole_tails
from spillcache.chain import BlockHash, Chain
from spillcache.errors import CorruptBlock, ObjectMissing, SpillcacheError, StoreError
from spillcache.metrics import Metrics
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore, Entry, Pin

log = logging.getLogger("spillcache.cache")


class DiskTier:
    """What ``store`` knows of chains; without one, nothing. No payload is read here. Any thread."""

    def __init__(
        self, store: BlockStore | None, geometry: Geometry, breaker: Breaker, metrics: Metrics
    ) -> None:
        self._store = store
        self._geometry = geometry
        self._breaker = breaker
        self._metrics = metrics

    @property
    def usable(self) -> bool:
        """Whether there is a store, and it is not paused."""
        return self._store is not None and self._breaker.closed

    def find(self, chain: Chain, hashes: list[BlockHash]) -> Sequence[Mapping[Part, Entry]] | None:
        """What the disk has of these blocks; None when it fails."""
        try:
            if self._store is not None:
                return self._store.find(chain.namespace.id, hashes, self._geometry.parts)
        except StoreError as error:
            self.failed(error)
        return None

    def find_next(
        self, chain: Chain, hashes: list[BlockHash], part: Part, places: Sequence[int]
    ) -> tuple[Sequence[Mapping[Part, Entry]], dict[int, Mapping[Part, Entry]]]:
        """As ``find``, of one part, and ``find_tails`` in one lookup; nothing when it fails."""
        try:
            if self._store is not None:
                parents = [chain.parent(block) for block in places]
                found, tails = self._store.find_next(chain.namespace.id, hashes, (part,), parents)
                return found, whole_tails(tails, chain, places, self._geometry.parts, ())
        except StoreError as error:
            self.failed(error)
        return [], {}

    def find_tails(
        self, chain: Chain, places: Sequence[int], without: Collection[BlockHash]
    ) -> dict[int, Mapping[Part, Entry]]:
        """What the disk has of tails after ``places`` blocks; nothing when it fails."""
        try:
            if self._store is not None and places:
                parents = [chain.parent(block) for block in places]
                tails = self._store.tails(chain.namespace.id, parents)
                return whole_tails(tails, chain, places, self._geometry.parts, without)
        except StoreError as error:
            self.failed(error)
        return {}

    def pin(self, steps: Iterable[Step]) -> Pin | None:
        """Hold what ``steps`` take from disk, if anything. Raises StoreError."""
        entries = [entry for step in steps for entry in step.disk.values()]
        return self._store.pin(entries) if entries and self._store is not None else None

    def touch(self, chain: Chain, tails: Iterable[BlockHash], ahead_s: Mapping[int, float]) -> None:
        """Count a use of these tails, and of the first so many blocks; ``ahead_s``: by their
        number, how far ahead of now that use stands.
        """
        if self._store is None:
            return
        windows = max(1, self._geometry.window_blocks)
        try:
            for name in tails:
                self._store.touch(chain.namespace.id, name)
            for blocks, ahead in ahead_s.items():
                if blocks:
                    deepest = chain.hash_of(blocks - 1)
                    self._store.touch(chain.namespace.id, deepest, windows, ahead)
        except StoreError as error:
            self.failed(error)

    def failed(self, error: SpillcacheError) -> None:
        """Count a failure of the disk tier, which may pause it; logged, never raised."""
        self._metrics.errors.labels(error.code).inc()
        if isinstance(error, ObjectMissing):
            log.info("a block went away before it was read: %s", error)
            return
        log.warning(
            "the disk tier met %s; what it would have given is computed: %s", error.code, error
        )
        if not isinstance(error, CorruptBlock):  # quarantined: it will not fail again
            self._breaker.failed(error, "read")

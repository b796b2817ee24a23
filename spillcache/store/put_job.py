"""One batch of objects that is put, and what became of it so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.catalog import Place
from spillcache.store.objects import PutResult, StoreObject
from spillcache.store.outgoing import Outgoing


@dataclass(slots=True)
class Committed:
    """What one transaction did with a group."""

    clock: int
    written: list[Outgoing] = field(default_factory=list)
    present: int = 0
    dropped: list[Outgoing] = field(default_factory=list)
    dead: list[Place] = field(default_factory=list)


class PutJob:
    """See the module; the writer's, under its lock."""

    def __init__(self, namespace: Namespace, objects: Sequence[StoreObject]) -> None:
        self.namespace = namespace
        self._objects = objects
        self.written = self.present = self.dropped = self.written_bytes = 0
        self.no_room = False
        self.sent = False
        """Whether all of its groups were appended."""
        self._dropped_blocks: set[BlockHash] = set()
        self._without_kv: set[BlockHash] = set()
        """Blocks whose KV was dropped: what hangs on them is dropped, too."""

    @cached_property
    def spared(self) -> set[bytes]:
        """Blocks (namespace id and hash) that must not be evicted for it. Seldom asked for: while
        there is room, nothing is evicted.
        """
        own = self.namespace.id
        return {own + name for item in self._objects for name in (item.block, item.parent)}

    def drop(self, item: StoreObject) -> None:
        """It is not written."""
        self.dropped += 1
        self._dropped_blocks.add(item.block)
        if item.part is Part.KV:
            self._without_kv.add(item.block)

    def hangs_on_dropped(self, item: StoreObject) -> bool:
        """Whether it would hang on nothing."""
        if not self._without_kv:
            return False
        before = item.parent if item.part is Part.KV else item.block
        return before in self._without_kv

    def count(self, done: Committed) -> None:
        """A group of it was committed."""
        self.written += len(done.written)
        self.written_bytes += sum(record.size for record in done.written)
        self.present += done.present
        for record in done.dropped:
            self.drop(record.source)

    def result(self) -> PutResult:
        """For who put it."""
        return PutResult(
            self.written,
            self.present,
            self.dropped,
            self.written_bytes,
            frozenset(self._dropped_blocks),
        )

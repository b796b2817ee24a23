"""The most recently used blocks of a store, each with those before it: for people who look.

It costs what it returns, not what there is: ``evictable`` has the ends of chains by their last use,
and from an end the rows lead to its beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.catalog import Catalog
from spillcache.store.rows import Entry, split_evictable_key, split_object_key

_KEYS_PER_BLOCK = 4
"""So many ends are looked at, at most, for each block that is asked for: windows are no blocks."""
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block, or a tail, as the index knew it."""

    namespace_id: bytes
    block: BlockHash
    parent: BlockHash
    index: int
    """Its place in its chain: how many blocks come before it."""
    tokens: int
    stored_bytes: int
    """Of all its parts, as they lie on disk."""
    last_use: float
    """Seconds since 1970; of a block that others follow, it may be long ago."""


@dataclass(frozen=True, slots=True)
class RecentBlocks:
    """What was found, and whether that is all that there is."""

    blocks: Sequence[StoredBlock]
    complete: bool


def recent_blocks(catalog: Catalog, most: int) -> RecentBlocks:
    """Up to ``most`` blocks; nothing of namespaces that are hidden."""
    walk, ends = _Walk(catalog, most), 0
    complete = True
    for key in islice(catalog.evictable_latest(), most * _KEYS_PER_BLOCK):
        ends += 1
        complete = walk.climb(*split_object_key(split_evictable_key(key)[2]))
        if not complete:
            break
    complete = complete and ends == catalog.count("evictable")
    return RecentBlocks([walk.block(entry) for entry in walk.found.values()], complete)


class _Walk:
    """From ends of chains to their beginnings."""

    def __init__(self, catalog: Catalog, most: int) -> None:
        self._catalog, self._most = catalog, most
        self._parts: dict[bytes, list[Part]] = {}
        for namespace_id, part in catalog.usage():
            self._parts.setdefault(namespace_id, []).append(part)
        for namespace_id in catalog.hidden():
            self._parts.pop(namespace_id, None)
        self.found: dict[bytes, Entry] = {}

    def climb(self, namespace_id: bytes, block: BlockHash, part: Part) -> bool:
        """Add a block and those before it, up to one that is known; False if there is no place for
        all of them.
        """
        if namespace_id not in self._parts or part is Part.WINDOW:
            return True
        while namespace_id + block not in self.found:
            # Models without kv have boundaries here and there, and nothing between them.
            entry = self._catalog.entry(namespace_id, block, Part.KV) or self._catalog.entry(
                namespace_id, block, part
            )
            if entry is None:
                return True
            if len(self.found) == self._most:
                return False
            self.found[namespace_id + block] = entry
            if not entry.block_index:
                return True
            block = entry.parent
        return True

    def block(self, entry: Entry) -> StoredBlock:
        """Its facts, with what its other parts take."""
        size = 0
        for part in self._parts[entry.namespace_id]:
            same = part is entry.part
            known = entry if same else self._catalog.entry(entry.namespace_id, entry.block, part)
            if known is not None and known.is_present:
                size += known.stored_bytes
        return StoredBlock(
            namespace_id=entry.namespace_id,
            block=entry.block,
            parent=entry.parent,
            index=entry.block_index,
            tokens=entry.token_count,
            stored_bytes=size,
            last_use=entry.last_use / _NS_PER_S,
        )

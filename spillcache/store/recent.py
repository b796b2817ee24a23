"""The most recently used blocks of a store, each with those before it: for people who look.

It costs what it returns, not what there is: ``evictable`` has the ends of chains by their last use,
and from an end the rows lead to its beginning.
"""

from collections.abc import Mapping, Sequence
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
    parts: dict[bytes, list[Part]] = {}
    for namespace_id, part in catalog.usage():
        parts.setdefault(namespace_id, []).append(part)
    for namespace_id in catalog.hidden():
        parts.pop(namespace_id, None)
    found: dict[bytes, Entry] = {}
    complete = True
    for count, key in enumerate(islice(catalog.evictable_latest(), most * _KEYS_PER_BLOCK + 1)):
        if len(found) >= most or count == most * _KEYS_PER_BLOCK:
            complete = False
            break
        namespace_id, block, part = split_object_key(split_evictable_key(key)[2])
        if namespace_id in parts and part is not Part.WINDOW:
            complete = _climb(catalog, namespace_id, block, part, found, most) and complete
    blocks = [_block(catalog, entry, parts) for entry in found.values()]
    return RecentBlocks(blocks, complete)


def _climb(
    catalog: Catalog,
    namespace_id: bytes,
    block: BlockHash,
    part: Part,
    found: dict[bytes, Entry],
    most: int,
) -> bool:
    """Add a block and those before it, up to one that is known; False if there is no place for all
    of them.
    """
    while namespace_id + block not in found:
        # Models without kv have boundaries here and there, and nothing between them.
        entry = catalog.entry(namespace_id, block, Part.KV) or catalog.entry(
            namespace_id, block, part
        )
        if entry is None:
            return True
        if len(found) >= most:
            return False
        found[namespace_id + block] = entry
        if not entry.block_index:
            return True
        block = entry.parent
    return True


def _block(catalog: Catalog, entry: Entry, parts: Mapping[bytes, Sequence[Part]]) -> StoredBlock:
    size = 0
    for part in parts[entry.namespace_id]:
        known = (
            entry
            if part is entry.part
            else catalog.entry(entry.namespace_id, entry.block, part)
        )
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

"""The tails of a parent: partial last blocks, of which only the most recent few are kept.

A tail is an object like a block's, named by its parent and its tokens, and counts as one that
follows its parent. Its row in ``tails`` lets it be found without its tokens. Within one
transaction.
"""

from collections.abc import Iterator, Sequence

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store import rows
from spillcache.store.catalog import Catalog, Place
from spillcache.store.rows import Entry

MOST_TAILS = 4
"""Of one parent: conversations that part within a block, and turns that end within one."""


def tails_of(catalog: Catalog, namespace_id: bytes, parent: BlockHash) -> list[dict[Part, Entry]]:
    """What is there of every tail that follows ``parent``; nothing of a hidden namespace."""
    keys = _keys(catalog, rows.tail_key(namespace_id, parent))
    blocks = [rows.split_tail_key(key)[2] for key in keys]
    if not blocks:
        return []
    return [parts for parts in catalog.find(namespace_id, blocks, tuple(Part)) if parts]


def trim_tails(catalog: Catalog, namespace_id: bytes, parent: BlockHash) -> list[Place]:
    """Forget the least recently used tails of ``parent`` beyond the most that are kept; as
    ``Catalog.remove``.
    """
    found = tails_of(catalog, namespace_id, parent)
    found.sort(key=lambda tail: max(entry.last_use for entry in tail.values()))
    freed = []
    for tail in found[: max(0, len(found) - MOST_TAILS)]:
        freed += catalog.remove(next(iter(tail.values())))
    return freed


def drop_tails(
    catalog: Catalog, namespace_id: bytes, parent: BlockHash, blocks: Sequence[BlockHash]
) -> list[Place]:
    """Forget these tails of ``parent``, as far as they are there; as ``Catalog.remove``."""
    freed = []
    for parts in catalog.find(namespace_id, blocks, tuple(Part)):
        entry = next(iter(parts.values()), None)
        if entry is not None and entry.is_tail and entry.parent == parent:
            freed += catalog.remove(entry)
    return freed


def count_tails(catalog: Catalog, namespace_id: bytes) -> int:
    """How many tails a namespace has; looks at each."""
    return sum(1 for _ in _keys(catalog, namespace_id))


def _keys(catalog: Catalog, prefix: bytes) -> Iterator[bytes]:
    return (key for key, _ in catalog.within("tails", prefix))

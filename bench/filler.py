"""A store whose index holds as many objects as a benchmark wants, without writing their payloads.

The rows are written by the store's own index code, in random order as hashes are; they name a
segment that does not exist, so such a store is for lookups and writes only.
"""

import os
import sys

from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.catalog import Catalog
from spillcache.store.format import PAGE_BYTES, RecordClass
from spillcache.store.rows import Entry

_PER_COMMIT = 50_000
_NO_SEGMENT = 1 << 40


def fill_index(store: BlockStore, namespace: Namespace, count: int) -> None:
    """Add ``count`` rows of objects with random hashes to the index."""
    index = store._opened.index
    for start in range(0, count, _PER_COMMIT):
        size = min(_PER_COMMIT, count - start)

        def work(catalog: Catalog, start: int = start, size: int = size) -> None:
            for number in range(start, start + size):
                catalog.insert(_entry(namespace, number, catalog.tick()))

        index.write(work)
        print(f"\r{start + size} of {count} rows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _entry(namespace: Namespace, number: int, use: int) -> Entry:
    return Entry(
        namespace_id=namespace.id,
        block=BlockHash(os.urandom(32)),
        part=Part.KV,
        segment=_NO_SEGMENT,
        offset=PAGE_BYTES * (number + 1),
        stored_bytes=3000,
        raw_bytes=3000,
        last_use=use,
        parent=BlockHash(bytes(32)),
        block_index=0,
        token_count=64,
        tail_tokens=0,
        children=0,
        codec=0,
        rank=0,
        record_class=RecordClass.BLOCK,
    )

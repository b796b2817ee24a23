"""What does a look at the page cost the server, beside a million blocks on disk?

Puts conversations into a store and into RAM, fills the index with other objects, and times what
``GET /cache`` does at most once every few seconds: to find the most recently used blocks, to make
the tree of them, and how long the tiers' lock is held meanwhile. The last line of stdout is JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filler import fill_index

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.config import GIB, CacheConfig, StoreConfig
from spillcache.namespace import Namespace
from spillcache.serve.overview import BLOCKS, RUNS
from spillcache.serve.prefix_tree import listed, runs
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore

BAR_MS = 100.0
"""In a thread of its own, once in at least twenty times that."""
NAMESPACE = Namespace.of({"bench": "overview"})
GEOMETRY = Geometry(window_blocks=8)
CONVERSATIONS, TOKENS = 40, 8192


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        config = StoreConfig(Path(work) / "cache", quota_bytes=64 * GIB, min_free_bytes=0)
        store = BlockStore.open(config)
        fill_index(store, NAMESPACE, args.objects)
        cache = PrefixCache(CacheConfig(ram_bytes=GIB), GEOMETRY, store)
        fill(cache)
        report = measure(cache, store, args.runs)
        cache.close()
    report |= {"bench": "overview", "objects": args.objects, "runs": args.runs}
    report["ok"] = report["all_ms"] <= BAR_MS
    for name, value in report.items():
        print(f"{name:>12}  {value}")
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def fill(cache: PrefixCache) -> None:
    """Conversations that share a beginning, with two kinds of state per block."""
    state = {Part.KV: bytes(3000), Part.WINDOW: bytes(1000)}
    for number in range(CONVERSATIONS):
        tokens = [0] * (TOKENS // 4) + [number + 1] * (TOKENS - TOKENS // 4)
        chain = Chain(NAMESPACE, cache.geometry.block_tokens, tokens)
        for block in range(chain.blocks):
            cache.offer(chain, block, state)
        cache.used(chain)
    cache.flush()


def measure(cache: PrefixCache, store: BlockStore, count: int) -> dict[str, object]:
    held = cache.held(BLOCKS)

    def tree() -> None:
        listed(runs(held.blocks), RUNS, frozenset(), GEOMETRY.block_tokens, time.time())

    def everything() -> None:
        nonlocal held
        held = cache.held(BLOCKS)
        tree()

    from_ram = PrefixCache(CacheConfig(ram_bytes=GIB), GEOMETRY)
    fill(from_ram)
    report: dict[str, object] = {
        "disk_ms": median_ms(lambda: store.recent(BLOCKS), count),
        "lock_ms": median_ms(lambda: from_ram.held(BLOCKS), count),
        "tree_ms": median_ms(tree, count),
        "all_ms": median_ms(everything, count),
        "blocks": len(held.blocks),
    }
    from_ram.close()
    return report


def median_ms(work: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

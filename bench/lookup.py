"""What does looking up a long prompt cost, over the bare reads of the index?

Puts a chain of blocks, fills the index with other objects, and compares ``BlockStore.find`` (one
transaction) with nothing but LMDB's ``get`` of the same keys, in turns. The last line of stdout is
JSON.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from filler import fill_index

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.config import GIB, StoreConfig
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.rows import object_key

BARS = {10_000: 2.5, 1_000_000: 1.6}
NAMESPACE = Namespace.of({"bench": "lookup"})


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        config = StoreConfig(Path(work) / "cache", quota_bytes=64 * GIB, min_free_bytes=0)
        with BlockStore.open(config) as store:
            chain = put_chain(store, args.blocks)
            report: dict[str, object] = {"bench": "lookup"}
            ok = True
            filled = len(chain)
            print(f"{'objects':>9}  {'gets':>8}  {'find':>8}  ratio  bar")
            for objects, bar in BARS.items():
                fill_index(store, NAMESPACE, objects - filled)
                filled = objects
                bare_ms, find_ms, ratio = measure(store, chain, args.runs)
                ok &= ratio <= bar
                print(f"{objects:>9}  {bare_ms:5.2f} ms  {find_ms:5.2f} ms  {ratio:5.2f}  {bar}")
                name = "10k" if objects == 10_000 else "1m"
                report |= {
                    f"vs_bare_{name}": round(ratio, 3),
                    f"bare_ms_{name}": round(bare_ms, 3),
                    f"find_ms_{name}": round(find_ms, 3),
                }
    report |= {"blocks": args.blocks, "runs": args.runs, "ok": ok}
    if not ok:
        print("a lookup costs more than the bar allows")
    print(json.dumps(report))
    return 0 if ok else 1


def put_chain(store: BlockStore, blocks: int) -> list[BlockHash]:
    root = chain_root(NAMESPACE.digest)
    tokens = np.arange(blocks * 64, dtype=np.uint32)
    chain = chain_hashes(root, tokens, 64)
    objects = [
        StoreObject(block, Part.KV, chain[i - 1] if i else root, i, 64, b"x" * 3000)
        for i, block in enumerate(chain)
    ]
    store.put(NAMESPACE, objects)
    return chain


def measure(store: BlockStore, chain: list[BlockHash], runs: int) -> tuple[float, float, float]:
    """Medians in ms, and the ratio of the medians; the two take turns."""
    keys = [object_key(NAMESPACE.id, block, Part.KV) for block in chain]
    index = store._opened.index
    environment, objects = index._env, index._databases["objects"]

    def bare() -> int:
        with environment.begin(objects) as transaction:
            get = transaction.get
            for key in keys:
                get(key)
        return len(keys)

    def find() -> int:
        return store.find(NAMESPACE.id, chain, (Part.KV,)).has(Part.KV).count(True)

    assert bare() == find() == len(chain)
    gc.collect()
    bare_ms, find_ms = [], []
    for run in range(runs):
        # Whoever comes second finds the caches of the CPU as the other left them.
        for work, times in ((bare, bare_ms), (find, find_ms))[:: 1 if run % 2 else -1]:
            times.append(timed_ms(work))
    middle = statistics.median(bare_ms), statistics.median(find_ms)
    return *middle, middle[1] / middle[0]


def timed_ms(work: Callable[[], int]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=101)
    parser.add_argument("--directory", type=Path, help="where the store is made; default: TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Do a million small objects, and segments over 4 GiB, work, and how fast?

Puts a million objects of 100 bytes, reads a sample, opens the store again, and evicts a part of
them. Then puts 1 GiB of records around and beyond offset 4 GiB of one segment (what would lie
before is a hole, as after eviction) and reads them back. The last line of stdout is JSON.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.config import GIB, MIB, StoreConfig
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, Entry, StoreObject

NAMESPACE = Namespace.of({"bench": "big"})
CHAIN = 2048
SAMPLE = 20_000
SMALL_BYTES = 100
LARGE_BYTES = 8 * MIB
BEYOND = 4 * GIB


def main() -> int:
    args = arguments()
    report: dict[str, object] = {"bench": "big"}
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        report |= small(Path(work) / "small", args.objects)
        shutil.rmtree(Path(work) / "small")
        report |= large(Path(work) / "large", args.bytes_beyond)
    report["ok"] = report["wrong"] == 0 and report["wrong_beyond_4gib"] == 0
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def chains(count: int) -> list[list[BlockHash]]:
    tokens = np.arange(CHAIN * 4, dtype=np.uint32)
    return [chain_hashes(root(seed), tokens, 4) for seed in range(-(-count // CHAIN))]


def root(seed: int) -> BlockHash:
    return chain_root(NAMESPACE.digest, seed.to_bytes(8, "little"))


def payload(block: BlockHash) -> bytes:
    return (block * 4)[:SMALL_BYTES]


def objects_of(chain: list[BlockHash], seed: int) -> list[StoreObject]:
    return [
        StoreObject(block, Part.KV, chain[i - 1] if i else root(seed), i, 4, payload(block))
        for i, block in enumerate(chain)
    ]


def small(path: Path, count: int) -> dict[str, object]:
    """A million small objects: seconds, and how many of a sample came back wrong."""
    config = StoreConfig(path, quota_bytes=64 * GIB, min_free_bytes=0, codec="raw")
    all_chains = chains(count)
    with BlockStore.open(config) as store:
        start = time.perf_counter()
        for seed, chain in enumerate(all_chains):
            store.put(NAMESPACE, objects_of(chain, seed))
            if seed % 16 == 15:
                say(f"{(seed + 1) * CHAIN} objects, {time.perf_counter() - start:.0f} s")
        put_s = time.perf_counter() - start
        objects = store.usage().objects
        print(f"{objects} objects of {SMALL_BYTES} bytes put in {put_s:.1f} s")
        wrong, found, read_s = check(store, all_chains)
        print(f"{found} of them read in {read_s:.1f} s, {wrong} wrong")
    start = time.perf_counter()
    with BlockStore.open(config) as store:
        open_s = time.perf_counter() - start
        segments = store.usage().segments
    start = time.perf_counter()
    with BlockStore.open(StoreConfig(path, quota_bytes=3 * GIB, min_free_bytes=0)) as store:
        evict_s = time.perf_counter() - start
        left = store.usage()
        wrong_after, _, _ = check(store, all_chains)
    print(f"opened in {open_s:.2f} s; evicted {objects - left.objects} objects in {evict_s:.1f} s")
    return {
        "objects": objects,
        "put_s": round(put_s, 2),
        "puts_per_s": round(objects / put_s),
        "read_objects": found,
        "read_s": round(read_s, 2),
        "open_s": round(open_s, 3),
        "segments": segments,
        "evicted": objects - left.objects,
        "evict_s": round(evict_s, 2),
        "over_quota": left.allocated_bytes > 3 * GIB,
        "wrong": wrong + wrong_after,
    }


def check(store: BlockStore, all_chains: list[list[BlockHash]]) -> tuple[int, int, float]:
    """Read a sample of chains: how many objects are wrong, how many there were, seconds."""
    wrong, entries = 0, list[Entry]()
    for chain in random.Random(1).sample(all_chains, min(len(all_chains), SAMPLE // CHAIN)):
        found = store.find(NAMESPACE.id, chain, (Part.KV,))
        entries += [here[Part.KV] for here in found if here]
    start = time.perf_counter()
    for item in store.read(entries):
        wrong += bytes(item.view) != payload(item.entry.block)
        item.release()
    return wrong, len(entries), time.perf_counter() - start


def large(path: Path, bytes_beyond: int) -> dict[str, object]:
    """Real records at offsets beyond 4 GiB of one segment."""
    # A segment grows to a 64th of the quota, as far as the store allows.
    config = StoreConfig(path, quota_bytes=1024 * GIB, min_free_bytes=0, codec="raw")
    count = bytes_beyond // LARGE_BYTES
    made = [np.random.default_rng(n).bytes(LARGE_BYTES) for n in range(count)]
    chain = chain_hashes(root(0), np.arange((count + 1) * 4, dtype=np.uint32), 4)
    with BlockStore.open(config) as store:
        store.put(NAMESPACE, [StoreObject(chain[0], Part.KV, root(0), 0, 4, b"first")])
        appender = store._opened.writer._appender
        # As if so much had been written and evicted since: what is evicted is a hole.
        appender.keep(BEYOND - 16 * MIB)
        objects = [
            StoreObject(chain[n + 1], Part.KV, chain[n], n + 1, 4, data)
            for n, data in enumerate(made)
        ]
        start = time.perf_counter()
        store.put(NAMESPACE, objects)
        put_s = time.perf_counter() - start
    with BlockStore.open(config) as store:
        found = store.find(NAMESPACE.id, chain, (Part.KV,))
        entries = [here[Part.KV] for here in found if here]
        start = time.perf_counter()
        wrong = len(chain) - len(entries)
        for item, expected in zip(store.read(entries), (b"first", *made), strict=False):
            wrong += bytes(item.view) != expected
            item.release()
        read_s = time.perf_counter() - start
        beyond = sum(entry.offset >= BEYOND for entry in entries)
        across = sum(entry.offset < BEYOND < entry.offset + entry.record_bytes for entry in entries)
    size = max(each.stat().st_size for each in (path / "segments").iterdir())
    print(
        f"a segment of {size / GIB:.2f} GiB: {beyond} records beyond 4 GiB, {across} across, "
        f"{wrong} wrong; put {put_s:.1f} s, read {read_s:.1f} s"
    )
    return {
        "segment_bytes": size,
        "beyond_4gib": beyond,
        "across_4gib": across,
        "wrong_beyond_4gib": wrong + (beyond == 0),
        "put_beyond_s": round(put_s, 2),
        "read_beyond_s": round(read_s, 2),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument(
        "--bytes-beyond", type=int, default=GIB, help="real bytes around and beyond 4 GiB"
    )
    parser.add_argument("--directory", type=Path, help="where the stores are made; default: TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

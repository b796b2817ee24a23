"""How much of the disk's speed does the store reach?

Compares verified reads (``BlockStore.read``) and durable writes (``BlockStore.put_each``: group
after group of 64 MiB, each durable before it is reported) with the best raw direct I/O into and out
of the store's own huge-page buffers: reads of 8 MiB, four or eight in flight; writes of 8 MiB, one
or eight in flight, with ``fdatasync`` after each group of 64 MiB. Writes take turns after four
groups, each first in its turn, reads file by file; the page cache is bypassed; medians. The last
line of stdout is JSON.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from filler import fill_index

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.config import GIB, KIB, MIB, StoreConfig, format_size, parse_size
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, Entry, PutResult, StoreObject
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.files import Files

SIZES = (64 * KIB, MIB, 8 * MIB)
READ_BARS = {64 * KIB: 0.70, MIB: 0.85, 8 * MIB: 0.90}
WRITE_BARS = {64 * KIB: 0.70, MIB: 0.75, 8 * MIB: 0.80}
MILLION_BAR = 0.45
GROUP_BYTES = 64 * MIB
GROUPS_IN_TURN = 4
CHUNK_BYTES = 8 * MIB
SETTLE_S = 1.0
IN_FLIGHT = (4, 8)
RAW_READS = tuple(f"raw read {each}" for each in IN_FLIGHT)
WRITES_IN_FLIGHT = (1, 8)
RAW_WRITES = tuple(f"raw write {each}" for each in WRITES_IN_FLIGHT)
QUOTA_BYTES = 256 * GIB
NAMESPACE = Namespace.of({"bench": "store_io"})


@dataclass
class Times:
    """Seconds, by what was measured."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.by_name.setdefault(name, []).append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self.by_name[name])

    def ratio(self, baseline: str, name: str) -> float:
        return self.median(baseline) / self.median(name)


class RawFile:
    """Direct I/O on one file, without anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = Files()
        self._at = 0
        self._buffers = [AlignedBuffer(CHUNK_BYTES) for _ in range(max(IN_FLIGHT))]
        source = np.random.default_rng(0)
        for buffer in self._buffers:
            buffer.array[:] = source.integers(0, 256, buffer.size, np.uint8)
        self._pool = ThreadPoolExecutor(max(IN_FLIGHT))

    def restart(self) -> None:
        """An empty file."""
        self.path.unlink(missing_ok=True)
        os.close(self._files.create(self.path))
        self._at = 0

    def write_group(self, in_flight: int) -> float:
        """Append a group and have it on the device: seconds."""
        fd = self._files.open(self.path, write=True)
        start = time.perf_counter()
        offsets = range(self._at, self._at + GROUP_BYTES, CHUNK_BYTES)
        self._each(lambda b, at: os.pwrite(fd, b.view, at), offsets, in_flight)
        self._files.sync(fd)
        seconds = time.perf_counter() - start
        self._files.close(fd)
        self._at += GROUP_BYTES
        return seconds

    def read(self, in_flight: int) -> float:
        """The whole file: seconds."""
        start = time.perf_counter()
        fd = self._files.open(self.path)
        offsets = range(0, self._at, CHUNK_BYTES)
        self._each(lambda b, at: os.preadv(fd, [b.view], at), offsets, in_flight)
        self._files.close(fd)
        return time.perf_counter() - start

    def _each(
        self, call: Callable[[AlignedBuffer, int], int], offsets: range, in_flight: int
    ) -> None:
        lock, todo = threading.Lock(), iter(offsets)

        def work(buffer: AlignedBuffer) -> None:
            while True:
                with lock:
                    at = next(todo, None)
                if at is None:
                    return
                assert call(buffer, at) == CHUNK_BYTES

        if in_flight == 1:
            work(self._buffers[0])
        else:
            list(self._pool.map(work, self._buffers[:in_flight]))


class Objects:
    """As many objects of one size as make up so many bytes, in chains of a group each."""

    def __init__(self, object_bytes: int, total_bytes: int, payload: memoryview) -> None:
        self.object_bytes = object_bytes
        self._per_group = GROUP_BYTES // object_bytes
        self._groups = total_bytes // GROUP_BYTES
        self._payload = payload
        self._made = 0

    def groups(self) -> Iterator[list[StoreObject]]:
        """Other objects at every call."""
        for _ in range(self._groups):
            self._made += 1
            yield self._group(self._made)

    def _group(self, seed: int) -> list[StoreObject]:
        root = chain_root(NAMESPACE.digest, f"{self.object_bytes} {seed}".encode())
        chain = chain_hashes(root, np.arange(self._per_group * 4, dtype=np.uint32), 4)
        size = self.object_bytes
        return [
            StoreObject(
                block,
                Part.KV,
                chain[i - 1] if i else root,
                i,
                4,
                self._payload[i * size : (i + 1) * size],
            )
            for i, block in enumerate(chain)
        ]


def open_store(path: Path) -> BlockStore:
    config = StoreConfig(path, quota_bytes=QUOTA_BYTES, min_free_bytes=0, codec="raw")
    return BlockStore.open(config)


def timed_put(
    store: BlockStore, objects: Objects, raw: dict[str, RawFile], times: Times, name: str
) -> list[BlockHash]:
    """Time puts and raw writes, a few groups in turns; what was put.

    Disks of virtual machines are faster for a while after a rest: whole runs in turns would be
    measured at different speeds.
    """
    seconds = dict.fromkeys((name, *raw), 0.0)
    blocks: list[BlockHash] = []
    for each in raw.values():
        each.restart()
    # The filesystem gives back what was deleted with its next commits: not while we measure.
    os.sync()
    time.sleep(SETTLE_S)
    groups = list(objects.groups())

    def put(turn: list[list[StoreObject]]) -> float:
        results: list[PutResult] = []
        gc.collect()
        start = time.perf_counter()
        store.put_each(NAMESPACE, turn, results.append)
        took = time.perf_counter() - start
        assert [result.written for result in results] == [len(group) for group in turn]
        blocks.extend(item.block for group in turn for item in group)
        return took

    def write(turn: list[list[StoreObject]], each: RawFile, in_flight: int) -> float:
        return sum(each.write_group(in_flight) for _ in turn)

    ways: list[tuple[str, Callable[[list[list[StoreObject]]], float]]] = [(name, put)]
    for each, in_flight in zip(raw, WRITES_IN_FLIGHT, strict=True):
        ways.append((each, partial(write, each=raw[each], in_flight=in_flight)))
    for first in range(0, len(groups), GROUPS_IN_TURN):
        turn = groups[first : first + GROUPS_IN_TURN]
        for kind, way in ways:
            seconds[kind] += way(turn)
        # Who follows whom changes, for a disk that has just been busy may be slower for a moment.
        ways.append(ways.pop(0))
    for kind, value in seconds.items():
        times.add(kind, value)
    return blocks


def timed_read(store: BlockStore, entries: list[Entry]) -> float:
    gc.collect()
    start, count = time.perf_counter(), 0
    for payload in store.read(entries):
        count += len(payload.view)
        payload.release()
    seconds = time.perf_counter() - start
    assert count == sum(entry.raw_bytes for entry in entries)
    return seconds


def found(store: BlockStore, blocks: list[BlockHash]) -> list[Entry]:
    return [each[Part.KV] for each in store.find(NAMESPACE.id, blocks, (Part.KV,))]


def raw_files(work: Path) -> dict[str, RawFile]:
    return {name: RawFile(work / name) for name in RAW_WRITES}


def measure(work: Path, total_bytes: int, runs: int, payload: memoryview) -> Times:
    times = Times()
    raw = raw_files(work)
    objects = {size: Objects(size, total_bytes, payload) for size in SIZES}
    for run in range(runs):
        say(f"run {run + 1} of {runs}")
        for size in SIZES:
            with open_store(work / "cache") as store:
                # The store's buffers and segment are made once, as the baseline's are.
                store.put(NAMESPACE, next(objects[size].groups()))
                blocks = timed_put(store, objects[size], raw, times, f"write {size}")
                entries = found(store, blocks)
                timed_read(store, entries[: len(entries) // 8])
                for in_flight in IN_FLIGHT:
                    times.add(f"raw read {in_flight}", raw[RAW_WRITES[0]].read(in_flight))
                times.add(f"read {size}", timed_read(store, entries))
            shutil.rmtree(work / "cache")
    return times


def measure_million(
    work: Path, total_bytes: int, runs: int, payload: memoryview, count: int
) -> Times:
    """Writes of 64 KiB objects into a store whose index holds a million."""
    times = Times()
    raw = raw_files(work)
    objects = Objects(64 * KIB, total_bytes, payload)
    with open_store(work / "million") as store:
        say(f"filling the index with {count} objects")
        fill_index(store, NAMESPACE, count)
        store.put(NAMESPACE, next(objects.groups()))
        for run in range(runs):
            say(f"run {run + 1} of {runs}, {count} objects")
            timed_put(store, objects, raw, times, "million")
    return times


def best(times: Times, names: tuple[str, ...]) -> str:
    return min(names, key=times.median)


def report(times: Times, million: Times | None, total_bytes: int, runs: int) -> dict[str, object]:
    best_read, best_write = best(times, RAW_READS), best(times, RAW_WRITES)
    rows = []
    ok = True
    for name in (*RAW_READS, *RAW_WRITES):
        print(f"{name:>12} {speed(times, name, total_bytes)}")
    print("   object         read  ratio   bar        write  ratio   bar")
    for size in SIZES:
        read_ratio = times.ratio(best_read, f"read {size}")
        write_ratio = times.ratio(best_write, f"write {size}")
        ok &= read_ratio >= READ_BARS[size] and write_ratio >= WRITE_BARS[size]
        rows.append(
            {
                "object_bytes": size,
                "read_ratio": round(read_ratio, 3),
                "write_ratio": round(write_ratio, 3),
            }
        )
        print(
            f"{format_size(size):>9}  {speed(times, f'read {size}', total_bytes)}  {read_ratio:.2f}"
            f"  {READ_BARS[size]:.2f}  {speed(times, f'write {size}', total_bytes)}"
            f"   {write_ratio:.2f}  {WRITE_BARS[size]:.2f}"
        )
    result: dict[str, object] = {"bench": "store_io", "rows": rows}
    if million is not None:
        ratio = million.ratio(best(million, RAW_WRITES), "million")
        ok &= ratio >= MILLION_BAR
        result["write_ratio_64k_1m"] = round(ratio, 3)
        print(f" 64.0 KiB, a million in the index: write {ratio:.2f}  bar {MILLION_BAR}")
    return result | {
        "raw_read_gb_s": round(total_bytes / times.median(best_read) / 1e9, 3),
        "raw_write_gb_s": round(total_bytes / times.median(best_write) / 1e9, 3),
        "bytes": total_bytes,
        "runs": runs,
        "ok": ok,
    }


def speed(times: Times, name: str, total_bytes: int) -> str:
    return f"{total_bytes / times.median(name) / 1e9:6.2f} GB/s"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    total_bytes = parse_size(args.bytes, "--bytes") // GROUP_BYTES * GROUP_BYTES
    memory = AlignedBuffer(GROUP_BYTES)
    memory.array[:] = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
    million = None
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        times = measure(Path(work), total_bytes, args.runs, memory.view)
        if args.objects:
            sizes = Path(work), total_bytes, args.runs, memory.view
            million = measure_million(*sizes, args.objects)
    result = report(times, million, total_bytes, args.runs)
    if not result["ok"]:
        print("the store is slower than the bar allows")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", default="1GiB", help="of each measurement")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--objects", type=int, default=1_000_000, help="0: skip that measurement")
    parser.add_argument("--directory", type=Path, help="the filesystem to measure; default: TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

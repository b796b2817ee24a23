"""Does a flipped byte, anywhere in a store, ever give a wrong byte, a crash, or a store that stays
broken?

Fills a store, then flips one byte at a time in a fresh copy of it: in every region of the segments'
and the index's format, after a clean end and after a kill. Each copy is opened and read, gets new
objects, and is opened again. The children that do so may die of it: that is counted. The last line
of stdout is JSON.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from known_chains import namespace_of, objects_of, wrong_and_missing

from spillcache.config import MIB, StoreConfig
from spillcache.errors import SpillcacheError
from spillcache.store.block_store import BlockStore
from spillcache.store.format import PAGE_BYTES, RECORD_HEADER_BYTES
from spillcache.store.index_sum import INDEX_SUM

CHAINS = range(6)
BLOCKS, MOST_BYTES, LARGE_BYTES = 4, 12_000, 300_000
NEW = 1000
"""The seed of what is stored after a flip."""


@dataclass(frozen=True, slots=True)
class Flip:
    region: str
    file: str
    at: int
    mask: int
    killed: bool = False
    """Whether the last process is made to look killed: then no sum tells of the damage."""
    lost_index: bool = False
    """Whether the index is lost as well, so that the segments are all there is."""


@dataclass(slots=True)
class Outcome:
    wrong: int = 0
    missing: int = 0
    set_aside: bool = False
    broken: str = ""
    """Why the store does not serve again; empty if it does."""


def most_bytes(seed: int) -> int:
    return LARGE_BYTES if seed == CHAINS[-1] else MOST_BYTES


def fill(path: Path) -> None:
    """A store with both codecs, all parts, holes, free pages in the index, and several sessions."""
    for codec in ("raw", "zstd"):
        config = StoreConfig(path, quota_bytes=64 * MIB, min_free_bytes=0, codec=codec)
        with BlockStore.open(config) as store:
            for seed in range(500, 560):
                store.put(namespace_of(seed), objects_of(seed, 2, 4000))
            for seed in CHAINS:
                if (codec == "raw") == (seed % 4 < 2):
                    store.put(namespace_of(seed), objects_of(seed, BLOCKS, most_bytes(seed)))
            store.set_note("speed", b"x" * 9000)
    with BlockStore.open(StoreConfig(path, min_free_bytes=0)) as store:
        for seed in range(500, 560):
            drop(store, seed)


def drop(store: BlockStore, seed: int) -> None:
    """Evict a chain, so that segments have holes and the index has free pages."""
    index, segments = store._opened.index, store._opened.segments

    def work(catalog):
        places = []
        for item in reversed(objects_of(seed, 2, 4000)):
            entry = catalog.entry(namespace_of(seed).id, item.block, item.part)
            places += catalog.remove(entry) if entry is not None else []
        return places

    segments.free(index.write(work))


# What is flipped.


def segment_flips(path: Path, chance: random.Random) -> Iterator[Flip]:
    with BlockStore.open(StoreConfig(path, min_free_bytes=0)) as store:
        with store._opened.index.read() as catalog:
            rows = dict(catalog.segments())
            entries = {segment: catalog.entries_in(segment) for segment in rows}
        names = {s: str(store._opened.segments.path(s).relative_to(path)) for s in rows}
    for segment, row in rows.items():
        name = names[segment]
        yield from regions(chance, name, "segment header", range(64), 1)
        yield from regions(chance, name, "segment header page", range(64, PAGE_BYTES), 400)
        covered = {PAGE_BYTES * n for n in range(1, row.committed_end // PAGE_BYTES)}
        for entry in entries[segment]:
            start, end = entry.offset, entry.offset + entry.record_bytes
            covered -= set(range(start, end, PAGE_BYTES))
            header = range(start, start + RECORD_HEADER_BYTES)
            payload = range(header.stop, header.stop + entry.stored_bytes)
            yield from regions(chance, name, "record header", header, 6)
            yield from regions(chance, name, "payload", payload, max(1, len(payload) // 6))
            yield from regions(chance, name, "payload's ends", payload[:8], 3)
            yield from regions(chance, name, "payload's ends", payload[-8:], 3)
            yield from regions(chance, name, "padding", range(payload.stop, end), 1500)
        for page in sorted(covered):
            header = range(page, page + RECORD_HEADER_BYTES)
            yield from regions(chance, name, "holes and namespaces", header, 60)
            rest = range(header.stop, page + PAGE_BYTES)
            yield from regions(chance, name, "holes and namespaces", rest, 2000)


def index_flips(path: Path, chance: random.Random) -> Iterator[Flip]:
    size = (path / "index" / "data.mdb").stat().st_size
    name = "index/data.mdb"
    for page in range(0, size, PAGE_BYTES):
        if page < 2 * PAGE_BYTES:
            yield from regions(chance, name, "meta page", range(page, page + 152), 1)
        else:
            yield from regions(chance, name, "page header", range(page, page + 16), 3)
            pointers = range(page + 16, page + 96)
            yield from regions(chance, name, "pointers", pointers, 12)
        yield from regions(chance, name, "rows", range(page + 152, page + PAGE_BYTES), 250)
    lock = (path / "index" / "lock.mdb").stat().st_size
    yield from regions(chance, "index/lock.mdb", "lock file", range(lock), max(1, lock // 60))
    yield from regions(chance, INDEX_SUM, "sum", range(65), 4)


def regions(
    chance: random.Random, file: str, region: str, where: range, step: int
) -> Iterator[Flip]:
    for at in range(where.start, where.stop, step):
        place = min(at + chance.randrange(step), where.stop - 1)
        mask = chance.choice((1 << chance.randrange(8), chance.randrange(1, 256)))
        yield Flip(region, file, place, mask)


def plan(path: Path, count: int, seed: int) -> list[Flip]:
    """About ``count`` flips, evenly over all regions; a third of them for the index."""
    chance = random.Random(seed)
    segments = [
        replace(flip, lost_index=not n % 5)
        for n, flip in enumerate(spread(list(segment_flips(path, chance)), count * 2 // 3, chance))
    ]
    index = [
        replace(flip, killed=bool(n % 2) and flip.file != INDEX_SUM)
        for n, flip in enumerate(spread(list(index_flips(path, chance)), count // 3, chance))
    ]
    flips = segments + index
    chance.shuffle(flips)
    return flips


def spread(flips: list[Flip], count: int, chance: random.Random) -> list[Flip]:
    """``count`` of them, none of a region left out."""
    regions_of = sorted({flip.region for flip in flips})
    chosen = []
    for region in regions_of:
        ours = [flip for flip in flips if flip.region == region]
        share = max(3, count * len(ours) // len(flips))
        chosen += chance.sample(ours, min(share, len(ours)))
    left = sorted(set(flips) - set(chosen), key=lambda flip: (flip.file, flip.at, flip.mask))
    chosen += chance.sample(left, min(len(left), max(0, count - len(chosen))))
    return chosen


# One flip, in a child.


def try_flip(master: Path, work: Path, flip: Flip) -> Outcome:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(master, work)
    if flip.killed:
        (work / INDEX_SUM).unlink()
    with open(work / flip.file, "r+b", buffering=0) as file:
        file.seek(flip.at)
        old = file.read(1)[0]
        file.seek(flip.at)
        file.write(bytes((old ^ flip.mask,)))
    if flip.lost_index:
        shutil.rmtree(work / "index")
    outcome = Outcome()
    try:
        serve(work, outcome)
    except (SpillcacheError, OSError) as error:
        outcome.broken = repr(error)
    outcome.set_aside = (work / "index.damaged").exists()
    return outcome


def serve(path: Path, outcome: Outcome) -> None:
    config = StoreConfig(path, min_free_bytes=0)
    new = objects_of(NEW, BLOCKS, MOST_BYTES)
    with BlockStore.open(config) as store:
        for seed in CHAINS:
            wrong, missing = wrong_and_missing(store, seed, BLOCKS, most_bytes(seed))
            outcome.wrong += wrong
            outcome.missing += len(missing)
        store.put(namespace_of(NEW), new)
        outcome.wrong += wrong_and_missing(store, NEW, BLOCKS, MOST_BYTES)[0]
    with BlockStore.open(config) as store:
        again = 0
        for seed in CHAINS:
            wrong, missing = wrong_and_missing(store, seed, BLOCKS, most_bytes(seed))
            outcome.wrong += wrong
            again += len(missing)
        wrong, missing = wrong_and_missing(store, NEW, BLOCKS, MOST_BYTES)
        outcome.wrong += wrong
        if missing or again > outcome.missing:
            outcome.broken = f"{len(missing)} new and {again - outcome.missing} old objects went"


def work_through(master: Path, work: Path) -> None:
    """A child: flips come in as lines, outcomes go out as lines."""
    for line in sys.stdin:
        outcome = try_flip(master, work, Flip(**json.loads(line)))
        print(json.dumps(asdict(outcome)), flush=True)


# The parent.


class Worker:
    """A child that tries flips, and is replaced when it dies of one."""

    def __init__(self, master: Path, work: Path) -> None:
        self._command = [sys.executable, __file__, "--worker", str(master), str(work)]
        self._child: subprocess.Popen | None = None

    def run(self, flip: Flip) -> tuple[Flip, Outcome | None]:
        """None: the child died."""
        if self._child is None:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        try:
            self._child.stdin.write(json.dumps(asdict(flip)) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._child.stdout.readline()
        if line:
            return flip, Outcome(**json.loads(line))
        self.close()
        return flip, None

    def close(self) -> None:
        if self._child is not None:
            self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait()
            self._child = None


def run(master: Path, flips: list[Flip], workers: int, scratch: Path) -> list:
    def share(number: int) -> list:
        worker = Worker(master, scratch / f"work-{number}")
        try:
            return [worker.run(flip) for flip in flips[number::workers]]
        finally:
            worker.close()

    with ThreadPoolExecutor(workers) as pool:
        return [each for shared in pool.map(share, range(workers)) for each in shared]


def summary(results: list) -> dict:
    in_segments = [(f, o) for f, o in results if f.file.startswith("segments/")]
    in_index = [(f, o) for f, o in results if not f.file.startswith("segments/")]
    alive = [o for _, o in results if o is not None]
    return {
        "bench": "flip",
        "flips": len(results),
        "wrong_bytes": sum(o.wrong for o in alive),
        "segment_crashes": sum(o is None for _, o in in_segments),
        "unrecovered": sum(o is None or bool(o.broken) for _, o in results),
        "segment_flips": len(in_segments),
        "index_flips": len(in_index),
        "index_crashes": sum(o is None for _, o in in_index),
        "indexes_set_aside": sum(o is not None and o.set_aside for _, o in in_index),
        "flips_that_cost_objects": sum(o.missing > 0 for o in alive),
        "index_flips_that_cost_objects": sum(o is not None and o.missing > 0 for _, o in in_index),
    }


def table(results: list) -> None:
    print(f"{'region':24}{'flips':>7}{'crash':>7}{'wrong':>7}{'broken':>8}{'aside':>7}{'cost':>7}")
    for region in sorted({flip.region for flip, _ in results}):
        ours = [o for f, o in results if f.region == region]
        alive = [o for o in ours if o is not None]
        crashed = len(ours) - len(alive)
        wrong, broken = sum(o.wrong > 0 for o in alive), sum(bool(o.broken) for o in alive)
        aside, cost = sum(o.set_aside for o in alive), sum(o.missing > 0 for o in alive)
        print(f"{region:24}{len(ours):7}{crashed:7}{wrong:7}{broken:8}{aside:7}{cost:7}")
    for flip, outcome in results:
        if outcome is None or outcome.broken or outcome.wrong:
            print(flip, outcome)
    reasons = Counter(o.broken for _, o in results if o is not None and o.broken)
    for reason, count in reasons.most_common(5):
        print(f"{count} x {reason}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=2400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("MASTER", "WORK"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.worker:
        work_through(Path(args.worker[0]), Path(args.worker[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="spillcache-flip-") as scratch:
        master = Path(scratch) / "master"
        fill(master)
        flips = plan(master, args.flips, args.seed)
        began = time.monotonic()
        results = run(master, flips, args.workers, Path(scratch))
        seconds = time.monotonic() - began
    table(results)
    found = summary(results) | {"seconds": round(seconds, 1), "seed": args.seed}
    bad = found["wrong_bytes"] + found["segment_crashes"] + found["unrecovered"]
    print("every flip was met" if not bad else "NOT EVERY FLIP WAS MET: see the list above")
    print(json.dumps(found))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

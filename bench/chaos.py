"""Is anything wrong or lost when processes that use a store are killed at any instant?

Children write, read, evict, collect, verify, repair and reopen one directory together, and are
killed with SIGKILL one after another at random moments; sometimes the index is removed in between,
so that its rebuild is killed as well. After each scene a fresh process opens the store and reads
all of it. The last line of stdout is JSON.

What counts: every child appends to a journal of its own, outside the store. ``put`` follows when a
put has returned with nothing dropped. ``gone`` precedes, within the index's transaction, every
object that is evicted. ``wrong_bytes``: objects that were read, by anybody at any time, with other
bytes than were put. ``lost_durable``: objects of a ``put`` line that the fresh process can't read,
though no ``gone`` line names them. In roomy rounds (every other one) the quota is never reached and
nobody collects, so there nothing may be missing at all. ``failed_opens``: fresh processes that
could not open the store, crashed, or took longer than ``--open-s``. SIGKILL leaves the page cache
alone: this says nothing about power cuts.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from known_chains import found_of, namespace_of, objects_of, read_each, wrong_and_missing

from spillcache.config import GIB, MIB, StoreConfig
from spillcache.errors import StoreFullError, StoreIndexError
from spillcache.store.block_store import BlockStore, PutResult
from spillcache.store.catalog import Catalog
from spillcache.store.opened import OpenStore
from spillcache.store.rows import object_key
from spillcache.store.segments import Segments

BLOCKS = 4
MOST_BATCHES = 5
MOST_BYTES = {"roomy": 20_000, "tight": 400_000}
QUOTA = {"roomy": 4 * GIB, "tight": 64 * MIB}
SCENES_PER_ROUND = 5
MODES = {
    "roomy": ("write", "write", "read", "verify", "repair", "reopen"),
    "tight": ("write", "write", "write", "collect", "read", "verify", "repair", "reopen"),
}
_CHECK_S = 120.0


class Journal:
    """A child's own file, appended to without a buffer: what is written survives its killing."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._why = "gone"
        self._watch()

    def write(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def _watch(self) -> None:
        """Write down what leaves the index, before it does, and why."""
        forget = Catalog._forget

        def watched(catalog, entry):
            self.write(self._why, object_key(entry.namespace_id, entry.block, entry.part).hex())
            return forget(catalog, entry)

        Catalog._forget = watched
        for owner, name in ((OpenStore, "condemn"), (Segments, "lose"), (Segments, "_lose")):
            setattr(owner, name, self._because(name.strip("_"), getattr(owner, name)))

    def _because(self, why: str, method):
        def wrapped(*args):
            before, self._why = self._why, why
            try:
                return method(*args)
            finally:
                self._why = before

        return wrapped


# What children do, until they are killed.


@dataclass(slots=True)
class Child:
    path: Path
    kind: str
    source: random.Random
    journal: Journal
    journals: Path
    seeds: Iterator[int]

    def open(self) -> BlockStore:
        config = StoreConfig(self.path, quota_bytes=QUOTA[self.kind], min_free_bytes=0)
        return BlockStore.open(config)

    def put(self, store: BlockStore) -> None:
        """A few batches, of which one is written while another is made durable."""
        drawn = list(islice(self.seeds, self.source.randint(1, MOST_BATCHES)))
        namespace = namespace_of(drawn[0])
        seeds = deque(seed for seed in drawn if namespace_of(seed) == namespace)
        batches = [objects_of(seed, BLOCKS, MOST_BYTES[self.kind]) for seed in seeds]

        def done(result: PutResult) -> None:
            seed = seeds.popleft()
            if not result.dropped:
                self.journal.write("put", seed)

        with suppress(StoreFullError):
            store.put_each(namespace, batches, done)

    def write(self) -> None:
        with self.open() as store:
            while True:
                self.put(store)

    def read(self) -> None:
        with self.open() as store:
            while True:
                seeds = list(put_seeds(self.journals))
                for seed in self.source.sample(seeds, min(5, len(seeds))):
                    self.check(store, seed)
                self.put(store)

    def check(self, store: BlockStore, seed: int) -> None:
        wanted = objects_of(seed, BLOCKS, MOST_BYTES[self.kind])
        right = {(item.block, item.part): item.payload for item in wanted}
        for entry, data in read_each(store, found_of(store, seed, wanted)):
            if data is not None and data != right[entry.block, entry.part]:
                self.journal.write("wrong", seed)

    def collect(self) -> None:
        with self.open() as store:
            while True:
                store.gc(target_bytes=self.source.randrange(16, 60) * MIB)
                self.put(store)

    def verify(self) -> None:
        with self.open() as store:
            while True:
                store.verify(fix=True)
                self.put(store)

    def repair(self) -> None:
        while True:
            try:
                BlockStore.repair(self.path, anew=self.source.random() < 0.5)
            except StoreIndexError:
                time.sleep(0.01)  # others have it open

    def reopen(self) -> None:
        while True:
            with self.open() as store:
                self.put(store)


def live(args: argparse.Namespace) -> None:
    """A child's life."""
    path, kind, mode, journals, number = args.child
    journal = Journal(Path(journals) / f"{number}.journal")
    seeds = iter(range(int(number) << 14, (int(number) + 1) << 14))
    child = Child(Path(path), kind, random.Random(int(number)), journal, Path(journals), seeds)
    try:
        getattr(child, mode)()
    except Exception as error:  # whatever it is, the parent counts it
        journal.write("failed", mode, repr(error))
        traceback.print_exc()


# What the fresh process finds.


def lines_of(journals: Path) -> Iterator[list[str]]:
    for each in journals.iterdir():
        for line in each.read_text().splitlines(keepends=True):
            # A line that the kill cut short was not acted upon yet.
            if line.endswith("\n"):
                yield line.split()


def put_seeds(journals: Path) -> Iterator[int]:
    return (int(words[1]) for words in lines_of(journals) if words[0] == "put")


@dataclass(slots=True)
class Check:
    open_ms: float
    chains: int = 0
    wrong: int = 0
    lost: int = 0
    excused: int = 0
    """Objects that are missing and were evicted."""
    findings: list[str] = field(default_factory=list)


def check(args: argparse.Namespace) -> None:
    """Open it as the next server would, and read everything that was put."""
    path, kind, journals, number = args.check
    journal = Journal(Path(journals) / f"{number}.journal")
    config = StoreConfig(Path(path), quota_bytes=QUOTA[kind], min_free_bytes=0)
    began = time.monotonic()
    with BlockStore.open(config) as store:
        found = Check((time.monotonic() - began) * 1e3)
        lines = list(lines_of(Path(journals)))
        gone = {words[1] for words in lines if words[0] == "gone"}
        found.wrong = sum(words[0] == "wrong" for words in lines)
        for seed in (int(words[1]) for words in lines if words[0] == "put"):
            found.chains += 1
            wrong, missing = wrong_and_missing(store, seed, BLOCKS, MOST_BYTES[kind])
            found.wrong += wrong
            keys = {object_key(namespace_of(seed).id, *each).hex() for each in missing}
            lost = keys - gone if kind == "tight" else keys
            found.lost += len(lost)
            found.excused += len(keys - lost)
        report = store.verify()
        found.findings = [*report.index, *report.segments, *map(str, report.findings)][:5]
        if kind == "roomy" and gone:
            found.findings.append(f"{len(gone)} objects were evicted from a roomy store")
    journal.write("checked")
    print(json.dumps(asdict(found)))


# The parent.


@dataclass(slots=True)
class Totals:
    kills: int = 0
    modes: Counter = field(default_factory=Counter)
    failures: Counter = field(default_factory=Counter)
    checks: list[Check] = field(default_factory=list)
    failed_opens: list[str] = field(default_factory=list)
    indexes_removed: int = 0


class Chaos:
    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self._args = args
        self._scratch = scratch
        self._chance = random.Random(args.seed)
        self._number = 0
        self.totals = Totals()

    def run(self) -> None:
        scene = 0
        while self.totals.kills < self._args.kills:
            if not scene % SCENES_PER_ROUND:
                kind = ("roomy", "tight")[scene // SCENES_PER_ROUND % 2]
                root = self._scratch / f"round-{scene // SCENES_PER_ROUND}"
                (root / "journals").mkdir(parents=True)
                self._judge(root, kind)  # makes the store
            self._scene(root, kind)
            self._judge(root, kind)
            scene += 1
            if not scene % SCENES_PER_ROUND:
                self._note_failures(root)
                shutil.rmtree(root)
        if root.exists():
            self._note_failures(root)

    def _scene(self, root: Path, kind: str) -> None:
        """Some children, killed one by one; then perhaps a rebuild, killed too."""
        most = self._args.kills - self.totals.kills
        children = [
            self._start(root, kind, self._chance.choice(MODES[kind]))
            for _ in range(min(self._chance.randint(2, 4), most))
        ]
        time.sleep(self._args.start_s * self._chance.uniform(0.8, 1.2))
        while children:
            time.sleep(self._chance.expovariate(1 / 0.12))
            self._kill(children.pop(self._chance.randrange(len(children))))
        index = root / "store" / "index"
        if self.totals.kills < self._args.kills and index.exists() and self._chance.random() < 0.4:
            shutil.rmtree(index)
            self.totals.indexes_removed += 1
            child = self._start(root, kind, self._chance.choice(("write", "repair")))
            time.sleep(self._args.start_s * self._chance.uniform(0.4, 1.2))
            self._kill(child)

    def _start(self, root: Path, kind: str, mode: str) -> subprocess.Popen:
        self._number += 1
        self.totals.modes[mode] += 1
        command = [sys.executable, __file__, "--child", str(root / "store"), kind, mode]
        with open(root / "stderr", "ab") as stderr:
            return subprocess.Popen(
                [*command, str(root / "journals"), str(self._number)], stderr=stderr
            )

    def _kill(self, child: subprocess.Popen) -> None:
        child.send_signal(signal.SIGKILL)
        child.wait()
        self.totals.kills += 1

    def _judge(self, root: Path, kind: str) -> None:
        self._number += 1
        command = [sys.executable, __file__, "--check", str(root / "store"), kind]
        command += [str(root / "journals"), str(self._number)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_CHECK_S, check=False
            )
        except subprocess.TimeoutExpired:
            self.totals.failed_opens.append("it hung")
            return
        if done.returncode:
            self.totals.failed_opens.append(done.stderr[-2000:] or f"signal {-done.returncode}")
            return
        found = Check(**json.loads(done.stdout.splitlines()[-1]))
        self.totals.checks.append(found)
        if found.open_ms > self._args.open_s * 1e3:
            self.totals.failed_opens.append(f"it took {found.open_ms:.0f} ms")
        if found.wrong or found.lost or found.findings:
            print(f"after {self.totals.kills} kills, {kind}: {found}")
            if self._args.keep:
                shutil.copytree(root, self._args.keep / f"{self.totals.kills}", dirs_exist_ok=True)

    def _note_failures(self, root: Path) -> None:
        for words in lines_of(root / "journals"):
            if words[0] == "failed":
                self.totals.failures[" ".join(words[1:])[:200]] += 1


def summary(totals: Totals) -> dict:
    checks = totals.checks
    return {
        "bench": "chaos",
        "kills": totals.kills,
        "wrong_bytes": sum(each.wrong for each in checks),
        "lost_durable": sum(each.lost for each in checks),
        "failed_opens": len(totals.failed_opens),
        "contradictions": sum(bool(each.findings) for each in checks),
        "child_failures": sum(totals.failures.values()),
        "opens": len(checks),
        "open_ms_median": round(statistics.median([each.open_ms for each in checks] or [0])),
        "open_ms_max": round(max([each.open_ms for each in checks] or [0])),
        "chains_checked": sum(each.chains for each in checks),
        "evicted_objects": sum(each.excused for each in checks),
        "indexes_removed": totals.indexes_removed,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--start-s", type=float, default=0.6, help="until children are at work")
    parser.add_argument(
        "--open-s", type=float, default=10.0, help="an open that takes longer fails"
    )
    parser.add_argument("--keep", type=Path, help="copy stores that were found wrong to here")
    hidden = argparse.SUPPRESS
    parser.add_argument("--child", nargs=5, help=hidden)
    parser.add_argument("--check", nargs=4, help=hidden)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.child or args.check:
        live(args) if args.child else check(args)
        return 0
    args.seed = random.randrange(1 << 30) if args.seed is None else args.seed
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spillcache-chaos-") as scratch:
        chaos = Chaos(args, Path(scratch))
        chaos.run()
    found = summary(chaos.totals)
    print(f"children: {dict(chaos.totals.modes)}")
    for text, count in chaos.totals.failures.most_common(5):
        print(f"a child failed, {count} x: {text}")
    for text in chaos.totals.failed_opens[:5]:
        print(f"an open failed: {text}")
    bad = sum(found[key] for key in ("wrong_bytes", "lost_durable", "failed_opens"))
    bad += found["contradictions"] + found["child_failures"]
    print("nothing was wrong or lost" if not bad else "SOMETHING WAS WRONG OR LOST: see above")
    print(json.dumps(found | {"seconds": round(time.monotonic() - began, 1), "seed": args.seed}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

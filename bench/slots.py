"""How fast are slots saved and restored, and who waits for it?

A conversation of ``--tokens`` of a real model, and one of ``--size`` of a synthetic model with as
much KV per token as an 8B model, are saved to a slot file and restored from it, in turns with raw
direct writes and reads of as many bytes: one buffer of 16 MiB, one or four calls in flight, the
better of both, ``fdatasync`` after the writes. Memory is used once before, for that of a virtual
machine is slow the first time, which is no matter of ours. Then another slot answers, quiet and
beside saves and restores in turn: the longest pause in a hundred (p99) between two of its tokens.
Times are those of the action, without HTTP; the page cache is bypassed; medians. The bar is for a
restore into an empty slot, as after a restart. What one over a conversation takes, which is read
twice, is told as well (``restore_over_ratio``), and so is the very first restore, before the server
had used any memory for one (``first_restore_ratio``); they have no bar.
The last line is JSON.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from interference import Runs, _alternate, _any
from pace_rig import Rig, p99_ratio
from wide_model import Conversation, Conversations, random_tokens, write_wide_model

from spillcache.cache.memory import available_bytes
from spillcache.cli.model_path import find_model
from spillcache.config import GIB, KIB, MIB, CacheConfig, EngineConfig, parse_size
from spillcache.errors import SpillcacheError
from spillcache.processors import give_way
from spillcache.serve.slot_actions import SlotDone
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.files import Files
from spillcache.store.slot_folder import SlotFolder, open_slot_folder

BARS = {"save_ratio": 0.6, "restore_ratio": 0.6, "p99_ratio": 1.5}
IN_FLIGHT = (1, 4)
KEEPER = "spillcache-slot-keep"
"""The thread that has RAM keep what was restored."""
NAME = "bench.slot"
PIECE_BYTES = 16 * MIB
SLOT = 0


@dataclass
class Times:
    """Seconds of each run, by what was done."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.by_name.setdefault(name, []).append(seconds)

    def best(self, what: str) -> float:
        """The median of the better raw way to ``what``."""
        return min(statistics.median(self.by_name[f"{what} {n}"]) for n in IN_FLIGHT)

    def ratio(self, raw: str, name: str) -> float:
        return self.best(raw) / statistics.median(self.by_name[name])


class Raw:
    """Direct I/O of one file, without anything else."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size = size_bytes
        self._files = Files()
        self._buffers = [AlignedBuffer(PIECE_BYTES) for _ in range(max(IN_FLIGHT))]
        for buffer in self._buffers:
            buffer.array[:] = np.random.default_rng(0).integers(0, 256, buffer.size, np.uint8)
        self._pool = ThreadPoolExecutor(max(IN_FLIGHT))

    def write(self, in_flight: int) -> float:
        self._path.unlink(missing_ok=True)
        os.sync()
        began = time.perf_counter()
        fd = self._files.create(self._path)
        self._each(in_flight, lambda view, at: os.pwrite(fd, view, at))
        self._files.sync(fd)
        self._files.close(fd)
        return time.perf_counter() - began

    def read(self, in_flight: int) -> float:
        began = time.perf_counter()
        fd = self._files.open(self._path)
        self._each(in_flight, lambda view, at: os.preadv(fd, [view], at))
        self._files.close(fd)
        return time.perf_counter() - began

    def _each(self, in_flight: int, call) -> None:  # type: ignore[no-untyped-def]
        def work(first: int) -> None:
            view = self._buffers[first].view
            for at in range(first * PIECE_BYTES, self._size, in_flight * PIECE_BYTES):
                count = min(PIECE_BYTES, self._size - at)
                assert call(view[:count], at) == count

        list(self._pool.map(work, range(in_flight)))


def measure(rig: Rig, folder: SlotFolder, args: argparse.Namespace) -> dict[str, float]:
    """One row."""
    first = save(rig, folder)
    raw = Raw(folder.path / "raw", first.size_bytes)
    times = Times()
    times.add("1st restore", restore(rig, folder, empty=True).seconds)
    for _ in range(args.warm_ups):
        restore(rig, folder, empty=True)
    for _ in range(args.runs):
        for n in IN_FLIGHT:
            times.add(f"write {n}", raw.write(n))
        os.sync()
        times.add("save", save(rig, folder).seconds)
        for n in IN_FLIGHT:
            times.add(f"read {n}", raw.read(n))
        times.add("restore", restore(rig, folder, empty=True).seconds)
        times.add("restore over", restore(rig, folder, empty=False).seconds)
    for name, runs in times.by_name.items():
        speed = first.size_bytes / statistics.median(runs) / 1e9
        print(f"{name:>12} {speed:6.2f} GB/s", flush=True)
    runs = beside(rig, folder, args)
    print("ms between two tokens: quiet p50, p99; busy p50, p99; p99's ratio; the other's work")
    print(runs.row("save+load"), flush=True)
    return {
        "bytes": first.size_bytes,
        "save_ratio": round(times.ratio("write", "save"), 3),
        "restore_ratio": round(times.ratio("read", "restore"), 3),
        "restore_over_ratio": round(times.ratio("read", "restore over"), 3),
        "first_restore_ratio": round(times.ratio("read", "1st restore"), 3),
        "p99_ratio": round(p99_ratio(runs.quiet, runs.busy), 3),
    }


def save(rig: Rig, folder: SlotFolder) -> SlotDone:
    return in_background(lambda: rig.scheduler.actions.save(SLOT, folder, NAME))


def restore(rig: Rig, folder: SlotFolder, *, empty: bool) -> SlotDone:
    """Into an empty slot, or over the conversation that it holds; and wait until what was restored
    is in RAM, too.
    """
    if empty:
        rig.scheduler.actions.erase(SLOT)
    done = in_background(lambda: rig.scheduler.actions.restore(SLOT, folder, NAME))
    while any(thread.name == KEEPER for thread in threading.enumerate()):
        time.sleep(0.005)
    return done


def in_background(action: Callable[[], SlotDone]) -> SlotDone:
    """As the server does it: on a thread that comes after those that compute."""

    def run() -> SlotDone:
        give_way()
        return action()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def beside(rig: Rig, folder: SlotFolder, args: argparse.Namespace) -> Runs:
    def both() -> None:
        save(rig, folder)
        restore(rig, folder, empty=True)

    counts = argparse.Namespace(tokens=args.pauses, answer_tokens=args.answer_tokens)
    return _alternate(rig, counts, both, lambda: None, _any)


def real_row(args: argparse.Namespace, folder: SlotFolder) -> dict[str, float]:
    config = EngineConfig(find_model(args.model), args.tokens + 2048, threads=args.threads, slots=2)
    with Rig(config, None, CacheConfig()) as rig:
        rig.scheduler.start()
        rig.submit(random_tokens(args.tokens, 1), 1).wait()
        return measure(rig, folder, args)


def wide_row(args: argparse.Namespace, folder: SlotFolder, work: Path) -> dict[str, float]:
    path = work / "wide.gguf"
    write_wide_model(path, quick=args.quick)
    cells = args.size // (4 * KIB if args.quick else 128 * KIB) + 4096
    config = EngineConfig(path, cells, threads=args.threads, slots=2)
    with Rig(config, None, CacheConfig(ram_bytes=2 * args.size + 256 * MIB)) as rig:
        conversation = Conversations(rig.engine, rig.namespace).make(args.size, 1)
        rig.scheduler.start()
        rig.scheduler._errands.do(lambda: _hold(rig, conversation))
        return measure(rig, folder, args)


def _hold(rig: Rig, conversation: Conversation) -> None:
    """Have a slot hold it, as after a request; on the engine's thread."""
    slot, chain = rig.scheduler._slots[SLOT], conversation.chain
    for block in range(chain.blocks):
        rig.engine.import_(SLOT, block, {Part.KV: conversation.payload(block)})
    chain.truncate(rig.engine.length(SLOT))
    slot.chain, slot.last_use = chain, time.monotonic()


def touch(size_bytes: int) -> None:
    """Use so much memory, and give it back to the system."""
    began, memory = time.perf_counter(), AlignedBuffer(size_bytes)
    memory.array[::4096] = 1
    speed = size_bytes / (time.perf_counter() - began) / 1e9
    print(f"memory, used for the first time: {speed:.2f} GB/s", flush=True)


def main() -> int:
    args = arguments()
    rows = []
    if args.touch:
        touch(min(args.touch, (available_bytes() or 0) // 2))
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        folder = open_slot_folder(Path(work) / "slots", 0)
        if "real" in args.parts:
            rows.append(real_row(args, folder))
        if "wide" in args.parts:
            rows.append(wide_row(args, folder, Path(work)))
    ok = all(
        row[name] <= bar if name == "p99_ratio" else row[name] >= bar
        for row in rows
        for name, bar in BARS.items()
    )
    if not ok:
        print("a bar is missed")
    print(json.dumps({"bench": "slots", "rows": rows, "threads": args.threads, "ok": ok}))
    return 0 if ok else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--tokens", type=int, default=8192, help="of the real model's conversation")
    parser.add_argument("--size", type=lambda text: parse_size(text, "--size"), default=GIB)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7, help="of each kind, for the speeds")
    parser.add_argument("--warm-ups", type=int, default=3, help="restores before these")
    parser.add_argument(
        "--touch",
        type=lambda text: parse_size(text, "--touch"),
        default=6 * GIB,
        help="memory that is used once before: a virtual machine's is slow the first time",
    )
    parser.add_argument("--pauses", type=int, default=600, help="beside the work")
    parser.add_argument("--answer-tokens", type=int, default=150, help="per run of these")
    parser.add_argument(
        "--parts",
        type=lambda text: set(text.split(",")),
        default={"real", "wide"},
        metavar="PART,…",
        help="of real, wide",
    )
    parser.add_argument("--quick", action="store_true", help="a smaller model, for a small --size")
    parser.add_argument("--directory", type=Path, help="the filesystem to measure")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/slots.py: error: {error}")

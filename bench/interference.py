"""Does the cache get in the way of answers?

Four questions. How many tokens per second does an answer get with the tiers on, against none? How
long is the longest pause in a hundred (p99) between two tokens of an answer while another
conversation's gigabyte is restored, again and again; while one is spilled; and while another prompt
is prefilled, which has nothing to do with the cache? Quiet and busy runs take turns.

Times are taken where the scheduler hands tokens out, so neither HTTP nor the client is in them. A
pause in which the engine also computed tokens of the other conversation is left out where that is
restored: a gigabyte costs its own tokens that much attention, from whatever tier it came. The last
line of stdout is JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import plot
from pace_rig import Answer, Gap, Rig, median, median_p99, p99_ratio
from wide_model import Conversation, Conversations, random_tokens, write_wide_model

from spillcache.cli.model_path import find_model
from spillcache.config import KIB, MIB, CacheConfig, EngineConfig, StoreConfig, parse_size
from spillcache.errors import SpillcacheError
from spillcache.state import Part
from spillcache.store.block_store import StoreObject

BARS = {"decode_ratio": 0.97, "p99_ratio_restore": 1.5, "p99_ratio_spill": 1.5}
PARTS = ("decode", "restore", "spill", "prefill")
Span = tuple[float, float]
_PROMPT_TOKENS = 128
_SOON_S = 1.0
"""How soon the rig with tiers spills, so that it does so during its own runs."""


@dataclass
class Runs:
    """Pauses between tokens in milliseconds, by run."""

    quiet: list[list[float]] = field(default_factory=list)
    busy: list[list[float]] = field(default_factory=list)
    times: int = 0
    """How often the other thing was done."""
    seconds: float = 0.0
    """How long that took, in all."""

    def row(self, name: str) -> str:
        ratio = p99_ratio(self.quiet, self.busy)
        return (
            f"{name:<9} {median(self.quiet):7.1f} {median_p99(self.quiet):7.1f} "
            f"{median(self.busy):7.1f} {median_p99(self.busy):7.1f}   {ratio:5.2f}"
            f"   {self.times:>3} × {1e3 * self.seconds / max(1, self.times):,.0f} ms"
        )


# With tiers and without.


def decode_ratio(args: argparse.Namespace, work: Path) -> tuple[float, list[float], list[float]]:
    """Tokens per second with the tiers over without, and all rates of both; two processes take
    turns.
    """
    children = {kind: _child(args, kind, work) for kind in ("off", "on")}
    rates: dict[str, list[float]] = {"off": [], "on": []}
    try:
        for number in range(-1, args.rate_runs):
            # Neither is always the second of a pair.
            for kind in ("off", "on") if number % 2 else ("on", "off"):
                rate = _ask(children[kind], number + 2, args.rate_tokens)
                if number >= 0:  # the first warms up
                    rates[kind].append(rate)
    finally:
        for child in children.values():
            child.communicate()
    pairs = zip(rates["on"], rates["off"], strict=True)
    return statistics.median(on / off for on, off in pairs), rates["off"], rates["on"]


def _child(args: argparse.Namespace, kind: str, work: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--child", kind, "--model", str(args.model)]
    command += ["--directory", str(work), "--threads", str(args.threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(child: "subprocess.Popen[str]", seed: int, tokens: int) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{seed} {tokens}\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"a child ended with code {child.wait()}")
    return float(line)


def child(args: argparse.Namespace) -> None:
    """Answer prompts, one per line of stdin, and print the rate of each."""
    engine = EngineConfig(model=find_model(args.model), threads=args.threads, context_tokens=4096)
    store = StoreConfig(args.directory / "child", min_free_bytes=0) if args.child == "on" else None
    cache = CacheConfig(min_tokens=0, dirty_spill_s=_SOON_S) if store is not None else None
    with Rig(engine, store, cache) as rig:
        rig.scheduler.start()
        for line in sys.stdin:
            seed, tokens = map(int, line.split())
            answer = rig.submit(random_tokens(_PROMPT_TOKENS, seed), tokens)
            answer.wait()
            if rig.cache is not None:
                rig.cache.flush()  # nothing is left to be done in the other's turn
            print(answer.tokens_per_s, flush=True)


# Beside a restore, a spill, a prefill.


def beside_restores(rig: Rig, args: argparse.Namespace, big: list[Conversation]) -> Runs:
    """Two large conversations take turns in the other slot, so that each comes from disk."""
    turn = iter(range(1 << 30))

    def restore() -> None:
        conversation = big[next(turn) % len(big)]
        done = rig.submit(conversation.chain.tokens, 1).wait()
        reused = sum(done.usage.cached.values())
        if done.usage.cached.get("disk", 0) < reused or not reused:
            raise SystemExit(f"not restored from disk: {done.usage.cached}")

    return _alternate(rig, args, restore, lambda: None, _not_shared)


def beside_spills(rig: Rig, args: argparse.Namespace, conversations: Conversations) -> Runs:
    """A new large conversation lies in RAM each time, and is flushed."""
    assert rig.cache is not None
    cache, seeds = rig.cache, iter(range(1000, 1 << 30))

    def prepare() -> None:
        new = conversations.make(args.size, next(seeds))
        for block in range(new.chain.blocks):
            cache.offer(new.chain, block, {Part.KV: new.payload(block)})

    return _alternate(rig, args, cache.flush, prepare, _not_shared)


def beside_prefills(rig: Rig, args: argparse.Namespace) -> Runs:
    """Another prompt that no tier knows."""
    seeds = iter(range(5000, 1 << 30))

    def prefill() -> None:
        rig.submit(random_tokens(args.prefill_tokens, next(seeds)), 1, cached=False).wait()

    return _alternate(rig, args, prefill, lambda: None, _any)


def _any(gap: Gap) -> bool:  # noqa: ARG001 - as _not_shared
    return True


def _not_shared(gap: Gap) -> bool:
    return not gap.shared


def _alternate(
    rig: Rig,
    args: argparse.Namespace,
    work: Callable[[], None],
    prepare: Callable[[], None],
    counts: Callable[[Gap], bool],
) -> Runs:
    """Quiet and busy answers in turn, until both have enough pauses; each answer is a run.

    Of a busy answer the pauses count that overlap ``work``, but not ``prepare``.
    """
    runs, seed = Runs(), iter(range(1 << 20, 1 << 30))
    while sum(map(len, runs.busy)) < args.tokens or len(runs.busy) < 2:
        quiet = rig.submit(random_tokens(_PROMPT_TOKENS, next(seed)), args.answer_tokens)
        quiet.wait()
        runs.quiet.append([gap.ms for gap in rig.gaps(quiet)])
        prepare()
        busy = rig.submit(random_tokens(_PROMPT_TOKENS, next(seed)), args.answer_tokens)
        spans, others = _work_during(busy, work, prepare)
        gaps = [
            gap
            for gap in rig.gaps(busy)
            if _overlaps(gap, spans) and not _overlaps(gap, others) and counts(gap)
        ]
        runs.busy.append([gap.ms for gap in gaps])
        runs.times += len(spans)
        runs.seconds += sum(end - start for start, end in spans)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return runs


def _work_during(
    answer: Answer, work: Callable[[], None], prepare: Callable[[], None]
) -> tuple[list[Span], list[Span]]:
    """Do ``work`` again and again until the answer is complete: when that was, and ``prepare``."""
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (answer.wait(), ended.set()))
    waiter.start()
    while len(answer.times) < 2 and not ended.is_set():
        time.sleep(0.002)
    spans, others = [], []
    while not ended.is_set():
        spans.append(_span(work))
        if not ended.is_set():
            others.append(_span(prepare))
    waiter.join()
    return spans, others


def _span(work: Callable[[], None]) -> Span:
    start = time.perf_counter()
    work()
    return start, time.perf_counter()


def _overlaps(gap: Gap, spans: list[Span]) -> bool:
    return any(start < gap.end and gap.start < end for start, end in spans)


# The whole.


def measure(args: argparse.Namespace, work: Path) -> dict[str, float]:
    report: dict[str, float] = {}
    if "decode" in args.parts:
        ratio, off, on = decode_ratio(args, work)
        report["decode_ratio"] = round(ratio, 4)
        print(
            f"decode: {statistics.median(off):.1f} tokens/s without tiers, "
            f"{statistics.median(on):.1f} with: {ratio:.3f}",
            flush=True,
        )
    beside = _beside_tiers(args, work) | _beside_prefills(args)
    if beside:
        print("ms between two tokens: quiet p50, p99; busy p50, p99; p99's ratio; the other's work")
    for name, runs in beside.items():
        print(runs.row(name))
        report[f"p99_ratio_{name}"] = round(p99_ratio(runs.quiet, runs.busy), 3)
    if args.plot is not None and beside:
        draw(args.plot, beside)
    return report


def _beside_tiers(args: argparse.Namespace, work: Path) -> dict[str, Runs]:
    runs: dict[str, Runs] = {}
    if not {"restore", "spill"} & args.parts:
        return runs
    path = work / "wide.gguf"
    write_wide_model(path, quick=args.quick)
    # Two conversations lie on disk, those to be spilled in RAM.
    store = StoreConfig(work / "cache", quota_bytes=4 * args.size + 512 * MIB, min_free_bytes=0)
    cache = CacheConfig(ram_bytes=2 * args.size + 256 * MIB, min_tokens=0)
    cells = args.size // (4 * KIB if args.quick else 128 * KIB) + 4096
    engine = EngineConfig(model=path, threads=args.threads, slots=2, context_tokens=cells)
    with Rig(engine, store, cache) as rig:
        conversations = Conversations(rig.engine, rig.namespace)
        if "restore" in args.parts:
            big = [conversations.make(args.size, seed) for seed in (1, 2)]
            _put(rig, big)
        rig.scheduler.start()
        if "restore" in args.parts:
            runs["restore"] = beside_restores(rig, args, big)
        if "spill" in args.parts:
            runs["spill"] = beside_spills(rig, args, conversations)
    return runs


def _beside_prefills(args: argparse.Namespace) -> dict[str, Runs]:
    if "prefill" not in args.parts:
        return {}
    cells = args.prefill_tokens + 2048
    engine = EngineConfig(find_model(args.model), cells, threads=args.threads, slots=2)
    with Rig(engine, None, CacheConfig()) as rig:
        rig.scheduler.start()
        return {"prefill": beside_prefills(rig, args)}


def _put(rig: Rig, conversations: list[Conversation]) -> None:
    assert rig.store is not None
    for conversation in conversations:
        for group in _groups(conversation.objects()):
            rig.store.put(rig.namespace, group)


def _groups(objects: Iterator[StoreObject]) -> Iterator[list[StoreObject]]:
    group: list[StoreObject] = []
    for each in objects:
        group.append(each)
        if sum(len(item.payload) for item in group) >= 64 * MIB:
            yield group
            group = []
    if group:
        yield group


def draw(path: Path, kinds: dict[str, Runs]) -> None:
    series = {
        "quiet, median": [median(runs.quiet) for runs in kinds.values()],
        "quiet, p99": [median_p99(runs.quiet) for runs in kinds.values()],
        "busy, median": [median(runs.busy) for runs in kinds.values()],
        "busy, p99": [median_p99(runs.busy) for runs in kinds.values()],
    }
    title = "Pauses between two tokens while another conversation is restored, spilled, prefilled"
    plot.bars(path, title, "ms (log scale)", list(kinds), series)


def main() -> int:
    args = arguments()
    if args.child:
        child(args)
        return 0
    plot.check(args.plot)
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        report = measure(args, Path(work))
    ok = all(
        value >= BARS[name] if name == "decode_ratio" else value <= BARS[name]
        for name, value in report.items()
        if name in BARS
    )
    facts = {"size_bytes": args.size, "threads": args.threads, "tokens": args.tokens, "ok": ok}
    if not ok:
        print("THE CACHE IS IN THE WAY: a bar is missed")
    print(json.dumps({"bench": "interference", **report, **facts}))
    return 0 if ok else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m", help="for decode and prefill")
    parser.add_argument("--size", type=lambda text: parse_size(text, "--size"), default=1024 * MIB)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1000, help="pauses counted beside each work")
    parser.add_argument("--answer-tokens", type=int, default=250, help="per run of these")
    parser.add_argument("--prefill-tokens", type=int, default=2048)
    parser.add_argument("--rate-runs", type=int, default=16, help="of each kind, for the rates")
    parser.add_argument("--rate-tokens", type=int, default=65)
    parser.add_argument(
        "--parts",
        type=lambda text: set(text.split(",")),
        default=set(PARTS),
        metavar="PART,…",
        help=f"of {', '.join(PARTS)}",
    )
    parser.add_argument("--quick", action="store_true", help="a smaller model, for a small --size")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    parser.add_argument("--directory", type=Path, help="the filesystem to measure")
    parser.add_argument("--child", choices=["on", "off"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/interference.py: error: {error}")

"""Which blocks should go first when the cache is full?

Replays a trace of prompts, each a list of block ids (Mooncake's form: a JSON object a line with
``timestamp`` in ms and ``hash_ids``), through orders of eviction at several sizes. A block hits if
it and all before it are there. ``chosen`` is the code that the tiers use (``cache/order.py``);
``bound`` is a clairvoyant: what is used again last, or never, goes first. All but ``lru`` evict
children before parents. Without ``--trace`` a small trace is made. ``--windows`` asks instead which
windows to keep on models that have them. The last line of stdout is JSON.
"""

import argparse
import heapq
import json
import math
import random
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import plot
from replay_windows import RULES, window_rows

from spillcache.cache.order import Order

PERCENTS = (5, 10, 30, 100)
HALF_LIFE_S = 120.0
TEXT_BLOCK = 256
BLOCK_TOKENS = 512
"""Of a block in a trace; only the cost-aware order asks."""
LOOK_TOKENS = 16_384
"""To look at so many tokens before it costs a token as much again as all else does."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: when it came, and its blocks from the root on."""

    second: float
    blocks: list[int]


class Use(NamedTuple):
    """A block is used: how deep it lies, by which request, and when."""

    block: int
    depth: int
    request: int
    second: float


class Ranking(Protocol):
    """An order of eviction; told of every block that is added, used and evicted."""

    def use(self, uses: Sequence[Use]) -> None:
        """A prompt came; its blocks are here, but for those at its end that found no room."""

    def victim(self, may_go: Callable[[int], bool]) -> int | None:
        """What to evict next."""

    def evicted(self, block: int) -> None:
        """It is gone."""


class Lru:
    """Each block for itself, a chain's root first: what a cache does that knows no chains."""

    deepest_first = False

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def use(self, uses: Sequence[Use]) -> None:
        for use in reversed(uses) if self.deepest_first else uses:
            self._order[use.block] = None
            self._order.move_to_end(use.block)

    def victim(self, may_go: Callable[[int], bool]) -> int | None:
        return next((block for block in self._order if may_go(block)), None)

    def evicted(self, block: int) -> None:
        del self._order[block]


class ChainLru(Lru):
    """Least recently used, children before parents."""

    deepest_first = True


class Chosen:
    """What the tiers do."""

    def __init__(self) -> None:
        self._order: Order[int] = Order()

    def use(self, uses: Sequence[Use]) -> None:
        for use in reversed(uses):
            if use.block not in self._order:
                self._order.add(use.block, use.second)
        if uses:
            self._order.use_chain([use.block for use in uses], uses[0].second)

    def victim(self, may_go: Callable[[int], bool]) -> int | None:
        return self._order.first(may_go)

    def evicted(self, block: int) -> None:
        self._order.forget(block)


class Scored(ABC):
    """The block with the least score goes first, of those that may go; scores change with use."""

    def __init__(self) -> None:
        self._score: dict[int, float] = {}
        self._parents: dict[int, tuple[int | None, int]] = {}
        self._heap: list[tuple[float, int, int]] = []

    @abstractmethod
    def score(self, use: Use) -> float:
        """What the block is worth after a use."""

    def use(self, uses: Sequence[Use]) -> None:
        before: int | None = None
        for use in uses:
            self._parents[use.block], before = (before, use.depth), use.block
            self._score[use.block] = self.score(use)
            heapq.heappush(self._heap, (self._score[use.block], -use.depth, use.block))

    def victim(self, may_go: Callable[[int], bool]) -> int | None:
        while self._heap:
            score, _, block = heapq.heappop(self._heap)
            # One that was used since has another score; one that may not go comes again when it is
            # used, or when what follows it is gone.
            if self._score.get(block) == score and may_go(block):
                return block
        return None

    def evicted(self, block: int) -> None:
        del self._score[block]
        parent, depth = self._parents.pop(block)
        if parent in self._score:
            heapq.heappush(self._heap, (self._score[parent], 1 - depth, parent))


class Frequency(Scored):
    """Uses, each worth half after two minutes."""

    def score(self, use: Use) -> float:
        grown, before = use.second / HALF_LIFE_S, self._score.get(use.block, -math.inf)
        top = max(grown, before)
        return top + math.log2(2 ** (grown - top) + 2 ** (before - top))


class CostAware(Scored):
    """GreedyDual-Size-Frequency: uses times what computing it again costs, over its size, beside
    the score of what went last. Later blocks cost more, for they look at all before them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[int] = Counter()
        self._floor = 0.0

    def score(self, use: Use) -> float:
        self._uses[use.block] += 1
        return self._floor + self._uses[use.block] * (1 + use.depth * BLOCK_TOKENS / LOOK_TOKENS)

    def evicted(self, block: int) -> None:
        self._floor = max(self._floor, self._score[block])
        del self._uses[block]
        super().evicted(block)


class Bound(Scored):
    """Knows the future."""

    def __init__(self, trace: Sequence[Request]) -> None:
        super().__init__()
        self._uses: dict[int, list[int]] = {}
        for index in range(len(trace) - 1, -1, -1):
            for block in trace[index].blocks:
                self._uses.setdefault(block, []).append(index)

    def score(self, use: Use) -> float:
        later = self._uses[use.block]
        while later and later[-1] <= use.request:
            later.pop()
        return -later[-1] if later else -math.inf


def hit_rate(trace: Sequence[Request], capacity: int, ranking: Ranking, *, chains: bool) -> float:
    """The share of the trace's blocks that hit, in %, with room for so many blocks.

    ``chains``: children go before parents. A prompt that is too long keeps its beginning.
    """
    here: set[int] = set()
    parents: dict[int, int] = {}
    children: Counter[int] = Counter()
    hit = total = 0
    for index, request in enumerate(trace):
        blocks = request.blocks
        own = set(blocks)
        hits = next((i for i, b in enumerate(blocks) if b not in here), len(blocks))
        hit, total = hit + hits, total + len(blocks)

        def may_go(block: int, own: set[int] = own) -> bool:
            return block not in own and not (chains and children[block])

        kept = blocks
        for depth, block in enumerate(blocks):
            if block in here:
                continue
            if len(here) >= capacity:
                victim = ranking.victim(may_go)
                if victim is None:
                    kept = [b for b in blocks if b in here]
                    break
                here.remove(victim)
                children[parents.pop(victim, -1)] -= 1
                ranking.evicted(victim)
            here.add(block)
            if depth:
                parents[block] = blocks[depth - 1]
                children[blocks[depth - 1]] += 1
        ranking.use([Use(b, depth, index, request.second) for depth, b in enumerate(kept)])
    return 100 * hit / total


def rows_of(name: str, trace: Sequence[Request], percents: Sequence[int]) -> Iterator[dict]:
    """One row for each size: hit rates in %."""
    distinct = len({block for request in trace for block in request.blocks})
    for percent in percents:
        rankings: dict[str, Ranking] = {
            "lru": Lru(),
            "chain_lru": ChainLru(),
            "frequency": Frequency(),
            "cost": CostAware(),
            "chosen": Chosen(),
            "bound": Bound(trace),
        }
        row: dict[str, object] = {"trace": name, "percent": percent}
        for kind, ranking in rankings.items():
            rate = hit_rate(trace, max(1, distinct * percent // 100), ranking, chains=kind != "lru")
            row[kind] = round(rate, 3)
        yield row


def read_trace(path: Path) -> list[Request]:
    """A trace in Mooncake's form, or of agents: ``input`` is a prompt's text."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if lines and "input" in lines[0]:
        return [Request(line["timestamp"] / 1000, cut(line["input"])) for line in lines]
    return [Request(line["timestamp"] / 1000, line["hash_ids"]) for line in lines]


def cut(text: str) -> list[int]:
    """Whole blocks of 64 pseudo-tokens of 4 characters, each named by all that it ends."""
    return [hash(text[:end]) for end in range(TEXT_BLOCK, len(text) + 1, TEXT_BLOCK)]


def made_trace(requests: int, seed: int = 0) -> list[Request]:
    """Conversations of a few turns that begin with one of a few system prompts, and prompts that
    come once.
    """
    source, ids = random.Random(seed), iter(range(10**9))
    systems = [[next(ids) for _ in range(source.randint(2, 12))] for _ in range(8)]
    going: list[tuple[float, list[int]]] = []
    out: list[Request] = []
    for index in range(requests):
        now = float(index)
        if going and going[0][0] <= now:
            blocks = heapq.heappop(going)[1]
        elif source.random() < 0.6:
            blocks = []  # nobody asks for it again
        else:
            blocks = source.choice(systems)
        blocks = [*blocks, *(next(ids) for _ in range(source.randint(1, 16)))]
        if len(blocks) < 60 and source.random() < 0.4:
            heapq.heappush(going, (now + source.lognormvariate(4, 1), blocks))
        out.append(Request(now, blocks))
    return out


def main() -> int:
    args = arguments()
    plot.check(args.plot)
    traces = {path.stem: read_trace(path) for path in args.trace}
    traces = traces or {"made": made_trace(args.requests)}
    if args.windows:
        return windows(traces, args)
    rows, fine = [], True
    kinds = ("lru", "chain_lru", "frequency", "cost", "chosen", "bound")
    print(f"{'trace':<24}{'size':>6}" + "".join(f"{kind:>11}" for kind in kinds) + "  of bound")
    for name, trace in traces.items():
        for row in rows_of(name, trace, args.percents):
            rows.append(row)
            fine &= row["chosen"] >= row["chain_lru"]
            rates = "".join(f"{row[kind]:>10.2f}%" for kind in kinds)
            share = 100 * row["chosen"] / row["bound"] if row["bound"] else 100.0
            print(f"{name:<24}{row['percent']:>5}%{rates}  {share:7.1f}%", flush=True)
    if args.plot is not None:
        draw(rows, args.plot)
    print(json.dumps({"bench": "replay", "rows": rows, "ok": fine}))
    return 0 if fine else 1


def windows(traces: dict[str, list[Request]], args: argparse.Namespace) -> int:
    """The section on windows."""
    rows = []
    print(f"{'trace':<24}{'size':>6}" + "".join(f"{rule:>11}" for rule in RULES))
    for name, trace in traces.items():
        prompts = [request.blocks for request in trace if request.blocks]
        for row in window_rows(name, prompts, args.window_blocks, args.percents):
            rows.append(row)
            rates = "".join(f"{row[rule]:>10.2f}%" for rule in RULES)
            print(f"{name:<24}{row['percent']:>5}%{rates}", flush=True)
    fine = all(row["chosen"] >= row["first"] for row in rows)
    print(json.dumps({"bench": "replay", "windows": rows, "ok": fine}))
    return 0 if fine else 1


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Hit rates over sizes."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for kind in ("chain_lru", "chosen", "bound"):
            points = series.setdefault(f"{row['trace']}: {kind}", [])
            points.append((row["percent"], row[kind]))
    plot.lines(path, "Which blocks go first", "blocks that hit, %", series, "size, % of all blocks")


def percents(text: str) -> tuple[int, ...]:
    """Sizes, as typed."""
    return tuple(int(word) for word in text.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--percents", type=percents, default=PERCENTS)
    parser.add_argument("--requests", type=int, default=2000, help="of the trace that is made")
    parser.add_argument(
        "--windows", action="store_true", help="which windows are worth their bytes"
    )
    parser.add_argument("--window-blocks", type=int, default=1, help="w, with --windows")
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""What do the small steps cost that every request takes?

pytest-benchmark measures chain hashing, matches in RAM and on disk, the codecs, export and import
of a block, and the cache's work on a request of a conversation that lives in its slot. There the
clock runs only while the engine's thread is in the cache's code (see WATCHED), in the real
scheduler over the real engine, tiers and store, between decode calls that leave the processor's
caches cold. What the engine takes to export a new block is shown beside it. A turn's tail is copied
out later, if no next turn comes: that is measured by itself. The last line of stdout is JSON.
"""

import argparse
import itertools
import json
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.cli.model_path import find_model
from spillcache.config import GIB, CacheConfig, EngineConfig, StoreConfig
from spillcache.engine.base import Chunk, SamplingParams
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import SpillcacheError
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.serve import admission
from spillcache.serve.job import DoneEvent, ErrorEvent, Event, GenerationRequest, TextEvent
from spillcache.serve.keeper import Keeper
from spillcache.serve.restorer import Restorer
from spillcache.serve.scheduler import Scheduler
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore
from spillcache.store.codec import FixedCodec, decode_into, encode

BAR_MS = 1.0
BLOCK = 64
NAMESPACE = Namespace.of({"bench": "micro"})
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
ANSWER_TOKENS = 16
TURN_TOKENS = 48
"""New tokens of a turn: with its answer a block, so that each turn exports and offers one."""
SMALL_STATE = {Part.KV: bytes(1000), Part.WINDOW: bytes(1000)}
"""A match reads no payload, so that its size does not matter."""
EXPORT = "export"
"""The line that is the engine's work."""
WATCHED: tuple[tuple[Any, str, str], ...] = (
    (admission, "Chain", "chain"),
    (Chain, "extend", "chain"),
    (Chain, "truncate", "chain"),
    (admission, "choose", "choose"),
    (Restorer, "begin", "match"),
    (Keeper, "keep", "keep"),
    (Keeper, "end_turn", "end of turn"),
    (Keeper, "goes_on", "tail"),
    (Keeper, "settle", "tail"),
    (LlamaEngine, "export", EXPORT),
)
"""Owner, name, and the line under which its time is counted."""


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    model: Path
    tokens: int
    rounds: int
    directory: Path


class Plugin:
    """Hands the options to the measurements, which pytest imports as another module."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash_options = self._options  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def options(pytestconfig: pytest.Config) -> Options:
    return pytestconfig.stash_options  # type: ignore[attr-defined,no-any-return]


class CacheClock:
    """Advances while the code under watch runs; nested calls count for the innermost."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    def __call__(self) -> float:
        return sum(seconds for line, seconds in self.seconds.items() if line != EXPORT)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, line in WATCHED:
                timed = self._timed(getattr(owner, name), line)
                stack.enter_context(patch.object(owner, name, timed))
            yield

    def _timed(self, function: Callable[..., Any], line: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._open.append(line)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return timed

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


CLOCK = CacheClock()


def clock() -> float:
    """For pytest-benchmark, which wants a function with a name."""
    return CLOCK()


class Server:
    """Engine, tiers, store and scheduler in this process, as ``spillcache serve`` puts them."""

    def __init__(self, options: Options) -> None:
        turns = 2 * options.rounds * (TURN_TOKENS + ANSWER_TOKENS)
        config = EngineConfig(options.model, context_tokens=options.tokens + turns + BLOCK, slots=2)
        self.engine = LlamaEngine(config)
        self.metrics = Metrics()
        self.store = open_store(options.directory / "server")
        self.cache = PrefixCache(CacheConfig(), self.engine.geometry, self.store, self.metrics)
        self.scheduler = Scheduler(self.engine, self.metrics, queue_limit=8)
        self.scheduler.attach(Namespace.of(dict(self.engine.identity)), self.cache)
        self.scheduler.start()

    def answer(self, tokens: list[int]) -> tuple[list[int], int]:
        """The answer's tokens, and how many of the prompt were in the slot."""
        events: queue.Queue[Event] = queue.Queue()
        request = GenerationRequest(np.array(tokens, np.uint32), ANSWER_TOKENS, GREEDY)
        self.scheduler.submit(request, events.put)
        answer: list[int] = []
        while True:
            event = events.get(timeout=600)
            if isinstance(event, TextEvent):
                answer.append(event.token)
            elif isinstance(event, ErrorEvent):
                raise event.error
            elif isinstance(event, DoneEvent):
                while self.scheduler.busy():  # the end of the turn comes after its last event
                    time.sleep(0.0005)
                return answer, event.usage.cached.get("live", 0)

    def close(self) -> None:
        self.scheduler.stop(drain_s=0)
        self.cache.close()
        self.engine.close()


def open_store(path: Path) -> BlockStore:
    return BlockStore.open(StoreConfig(path, quota_bytes=32 * GIB, min_free_bytes=0))


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(5, 500, count)]


# Chains and matches.


def test_chain(benchmark: Any, options: Options) -> None:
    tokens = np.array(some_tokens(options.tokens), np.uint32)
    assert benchmark(lambda: Chain(NAMESPACE, BLOCK, tokens)).blocks == options.tokens // BLOCK


def filled(cache: PrefixCache, chain: Chain) -> None:
    for block in range(chain.blocks):
        cache.offer(chain, block, SMALL_STATE)


def matched(cache: PrefixCache, chain: Chain) -> int:
    match = cache.match(chain)
    match.release()
    return match.blocks


@pytest.fixture
def chain(options: Options) -> Chain:
    return Chain(NAMESPACE, BLOCK, some_tokens(options.tokens + 1))


GEOMETRY = Geometry(BLOCK, window_blocks=8)
"""gemma3-270m's."""


def test_match_ram(benchmark: Any, options: Options, chain: Chain) -> None:
    cache = PrefixCache(CacheConfig(), GEOMETRY)
    filled(cache, chain)
    assert benchmark(matched, cache, chain) == options.tokens // BLOCK
    cache.close()


def test_match_disk(benchmark: Any, options: Options, chain: Chain) -> None:
    before = PrefixCache(CacheConfig(), GEOMETRY, open_store(options.directory / "match"))
    filled(before, chain)
    before.close()
    cache = PrefixCache(CacheConfig(), GEOMETRY, open_store(options.directory / "match"))
    assert benchmark(matched, cache, chain) == options.tokens // BLOCK
    cache.close()


# One block of the model.


@pytest.fixture(scope="module")
def engine(options: Options) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(EngineConfig(options.model, context_tokens=1024))
    engine.decode([Chunk(0, np.array(some_tokens(BLOCK), np.uint32))])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def state(engine: LlamaEngine) -> dict[Part, bytes]:
    return {part: bytes(view) for part, view in engine.export(0, 0, boundary=True).items()}


def test_export(benchmark: Any, engine: LlamaEngine, state: dict[Part, bytes]) -> None:
    assert benchmark(engine.export, 0, 0, boundary=True).keys() == state.keys()


def test_import(benchmark: Any, engine: LlamaEngine, state: dict[Part, bytes]) -> None:
    benchmark.pedantic(
        lambda: engine.import_(0, 0, state), setup=lambda: engine.clear(0), rounds=200
    )
    assert engine.restored(0)


@pytest.mark.parametrize("codec", ["raw", "zstd", "byteplane"])
def test_encode(benchmark: Any, state: dict[Part, bytes], codec: FixedCodec) -> None:
    payload = b"".join(state.values())
    benchmark(encode, codec, payload)


@pytest.mark.parametrize("codec", ["raw", "zstd", "byteplane"])
def test_decode(benchmark: Any, state: dict[Part, bytes], codec: FixedCodec) -> None:
    payload = b"".join(state.values())
    kind, stored = encode(codec, payload)
    target = memoryview(bytearray(len(payload)))
    benchmark(decode_into, kind, stored, target)
    assert target == payload


# A conversation that lives in its slot.


@pytest.fixture(scope="module")
def server(options: Options) -> Iterator[Server]:
    running = Server(options)
    yield running
    running.close()


@pytest.fixture(scope="module")
def conversation(server: Server, options: Options) -> list[int]:
    tokens = some_tokens(options.tokens)
    server.answer(tokens)
    # A turn ends a moment after its answer; when the next is answered, all of the first was kept.
    server.answer(tokens)
    return tokens


def lines_ms(rounds: int) -> dict[str, float]:
    return {line: round(1000 * s / rounds, 4) for line, s in CLOCK.seconds.items()}


@pytest.mark.benchmark(timer=clock)
def test_resident_repeat(
    benchmark: Any, server: Server, conversation: list[int], options: Options
) -> None:
    """The same prompt again: nothing is new."""

    def again() -> None:
        _, live = server.answer(conversation)
        assert live >= len(conversation) - BLOCK

    CLOCK.seconds.clear()
    with CLOCK.watching():
        benchmark.pedantic(again, rounds=options.rounds)
    benchmark.extra_info["lines_ms"] = lines_ms(options.rounds)


@pytest.mark.benchmark(timer=clock)
def test_resident_turn(
    benchmark: Any, server: Server, conversation: list[int], options: Options
) -> None:
    """The next turn of a conversation: a block is new."""
    tokens, turns = list(conversation), itertools.count(1)

    def turn() -> None:
        said = len(tokens)
        tokens.extend(some_tokens(TURN_TOKENS, next(turns)))
        answer, live = server.answer(tokens)
        assert live >= said - BLOCK
        tokens.extend(answer)

    CLOCK.seconds.clear()
    with CLOCK.watching():
        benchmark.pedantic(turn, rounds=options.rounds)
    benchmark.extra_info["lines_ms"] = lines_ms(options.rounds)


@pytest.mark.benchmark(timer=clock)
def test_resident_rest(
    benchmark: Any, server: Server, conversation: list[int], options: Options
) -> None:
    """No next turn comes, or not soon: the tail is copied out."""
    tokens, turns = list(conversation), itertools.count(1000)

    def turn() -> None:
        tokens.extend(some_tokens(TURN_TOKENS, next(turns)))
        answer, _ = server.answer(tokens)
        tokens.extend(answer)

    def rest() -> None:
        before = server.cache.status()["blocks"]
        server.scheduler.settle(timeout_s=10)
        assert server.cache.status()["blocks"] != before

    with CLOCK.watching():
        benchmark.pedantic(rest, setup=turn, rounds=options.rounds)


# The report.


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        options = Options(find_model(args.model), args.tokens, args.rounds, Path(work))
        found = Path(work) / "benchmark.json"
        flags = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "timeout=1800",
            "-o",
            "addopts=",
            "-o",
            "filterwarnings=default",
        ]
        flags += ["--benchmark-disable-gc", "--benchmark-warmup=on", f"--benchmark-json={found}"]
        flags += [
            "--benchmark-columns=min,median,max,rounds",
            f"--benchmark-max-time={args.seconds}",
        ]
        if args.only:
            flags += ["-k", args.only]
        code = pytest.main([__file__, *flags], plugins=[Plugin(options)])
        if code != 0:
            return int(code)
        report = summary(json.loads(found.read_text())["benchmarks"], args)
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def summary(found: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians in ms by name; ``resident_ms`` is that of a next turn."""
    report: dict[str, Any] = {"bench": "micro", "tokens": args.tokens, "model": args.model}
    for one in found:
        name = one["name"].removeprefix("test_").replace("[", "_").rstrip("]")
        report[f"{name}_ms"] = round(1000 * one["stats"]["median"], 4)
        if "lines_ms" in one["extra_info"]:
            lines = report[f"{name}_lines_ms"] = one["extra_info"]["lines_ms"]
            print(f"{name}, means in ms: " + ", ".join(f"{k} {v:.3f}" for k, v in lines.items()))
    if "resident_turn_ms" in report:
        report["resident_ms"] = report.pop("resident_turn_ms")
    report["ok"] = report.get("resident_ms", 0.0) < BAR_MS
    if not report["ok"]:
        print(f"a resident conversation's request costs more than {BAR_MS:.0f} ms of cache work")
    return report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--tokens", type=int, default=8192, help="a multiple of 64")
    parser.add_argument("--rounds", type=int, default=30, help="requests of each kind")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each of the small steps")
    parser.add_argument("--only", help="measurements whose names match, as for pytest -k")
    parser.add_argument("--directory", type=Path, help="where stores are made; default: TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/micro.py: error: {error}")

"""Engine, store, tiers and scheduler in one process, and answers whose tokens are timed as the
scheduler hands them out.
"""

import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.config import CacheConfig, EngineConfig, StoreConfig
from spillcache.engine.base import Chunk, SamplingParams, Tokens
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.serve.job import DoneEvent, ErrorEvent, Event, GenerationRequest, TextEvent, Ticket
from spillcache.serve.scheduler import Scheduler
from spillcache.store.block_store import BlockStore

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Call:
    """One decode call of the engine: when it began, and for which sequences."""

    at: float
    sequences: tuple[int, ...]


class WatchedEngine(LlamaEngine):
    """Notes its decode calls."""

    def __init__(self, config: EngineConfig) -> None:
        self.calls: list[Call] = []
        super().__init__(config)

    def decode(self, chunks: Sequence[Chunk]) -> None:
        self.calls.append(Call(time.perf_counter(), tuple(chunk.sequence for chunk in chunks)))
        super().decode(chunks)


@dataclass
class Answer:
    """An answer in the making; the times are set on the scheduler's thread."""

    tokens: int
    times: list[float] = field(default_factory=list)
    ended: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    first_call: int = 0
    """How many decode calls there were when its first token came."""
    ticket: Ticket | None = None

    def wait(self) -> DoneEvent:
        """Its end; raises what went wrong."""
        event = self.ended.get(timeout=_WAIT_S)
        if isinstance(event, ErrorEvent):
            raise event.error
        assert isinstance(event, DoneEvent)
        return event

    @property
    def tokens_per_s(self) -> float:
        """From the first token to the last."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


class Rig:
    """All of a server but HTTP. ``cache``: None for an engine without tiers."""

    def __init__(
        self, engine: EngineConfig, store: StoreConfig | None, cache: CacheConfig | None
    ) -> None:
        self.engine = WatchedEngine(engine)
        metrics = Metrics()
        self.namespace = Namespace.of(dict(self.engine.identity))
        self.scheduler = Scheduler(self.engine, metrics, queue_limit=16)
        self.store = BlockStore.open(store, metrics) if store is not None else None
        self.cache: PrefixCache | None = None
        if cache is not None:
            self.cache = PrefixCache(cache, self.engine.geometry, self.store, metrics)
            self.scheduler.attach(self.namespace, self.cache)

    def __enter__(self) -> "Rig":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.scheduler.stop(drain_s=0)
        if self.cache is not None:
            self.cache.close()
        self.engine.close()

    def submit(self, prompt: Tokens, tokens: int, *, cached: bool = True) -> Answer:
        """Ask for ``tokens`` tokens."""
        answer = Answer(tokens)

        def listen(event: Event) -> None:
            if isinstance(event, TextEvent):
                answer.times.append(time.perf_counter())
                answer.first_call = answer.first_call or len(self.engine.calls)
            else:
                answer.ended.put(event)

        request = GenerationRequest(prompt, tokens, GREEDY, cache_prompt=cached)
        answer.ticket = self.scheduler.submit(request, listen)
        return answer

    def gaps(self, answer: Answer) -> "list[Gap]":
        """The pauses between its tokens."""
        calls = self.engine.calls
        own = calls[answer.first_call - 1].sequences[0]  # the end of its own prompt
        foreign = [call.at for call in calls if any(each != own for each in call.sequences)]
        return [
            Gap(start, end, any(start <= at < end for at in foreign))
            for start, end in zip(answer.times, answer.times[1:], strict=False)
        ]


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two tokens; ``shared``: meanwhile the engine computed tokens of another answer."""

    start: float
    end: float
    shared: bool

    @property
    def ms(self) -> float:
        return 1e3 * (self.end - self.start)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def p99_ratio(quiet: Sequence[Sequence[float]], busy: Sequence[Sequence[float]]) -> float:
    """The median of the busy runs' p99 over that of the quiet runs'."""
    return median_p99(busy) / median_p99(quiet)


def median(runs: Sequence[Sequence[float]]) -> float:
    """Of all of them."""
    return statistics.median(value for run in runs for value in run)


def median_p99(runs: Sequence[Sequence[float]]) -> float:
    return statistics.median(percentile(run, 0.99) for run in runs)

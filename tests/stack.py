"""The whole path in one process: engine, store, tiers and scheduler, with every row of logits
recorded.
"""

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.config import MIB, CacheConfig, EngineConfig, RestoreWhen, StoreConfig
from spillcache.engine.base import Chunk, Logits, SamplingParams
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.serve.job import DoneEvent, ErrorEvent, Event, GenerationRequest, TextEvent
from spillcache.serve.scheduler import Scheduler
from spillcache.store.block_store import BlockStore

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class RecordingEngine(LlamaEngine):
    """Keeps the logits of every call that asked for them, by sequence."""

    def __init__(self, config: EngineConfig) -> None:
        self.rows: list[tuple[int, Logits]] = []
        super().__init__(config)

    def decode(self, chunks: Sequence[Chunk]) -> None:
        super().decode(chunks)
        self.rows += [(c.sequence, self.logits(c.sequence)) for c in chunks if c.logits]


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logits: NDArray[np.float32] | None = None
    text: str = ""
    done: DoneEvent | None = None

    @property
    def cached(self) -> dict[str, int]:
        assert self.done is not None
        return dict(self.done.usage.cached)


class Stack:
    """A running engine; ``disk``: the store's directory, or None for no store; ``cache``: changes
    to the tiers' settings. Close it to "restart".
    """

    def __init__(
        self,
        model: Path,
        disk: Path | None,
        *,
        ram: bool = True,
        cache: Mapping[str, Any] | None = None,
        restore: RestoreWhen = "always",
        throttle_bytes_s: float | None = None,
        **engine: Any,
    ) -> None:
        config = EngineConfig(model=model, **{"context_tokens": 4096, "threads": 2} | engine)
        # On a thread that ends: each thread that computes has OpenMP workers of its own, and where
        # there are more of them than processors they sleep between the steps of a call.
        with ThreadPoolExecutor(1) as opening:
            self.engine = opening.submit(RecordingEngine, config).result()
        self.metrics = Metrics()
        self.scheduler = Scheduler(self.engine, self.metrics, queue_limit=64)
        self.cache: PrefixCache | None = None
        self.store: BlockStore | None = None
        if disk is not None or ram:
            if disk is not None:
                store_config = StoreConfig(
                    disk,
                    quota_bytes=2048 * MIB,
                    min_free_bytes=0,
                    throttle_bytes_s=throttle_bytes_s,
                )
                self.store = BlockStore.open(store_config, self.metrics)
            self.cache = PrefixCache(
                replace(
                    CacheConfig(
                        ram_bytes=512 * MIB, min_tokens=0, shutdown_spill_s=60, restore=restore
                    ),
                    **cache or {},
                ),
                self.engine.geometry,
                self.store,
                self.metrics,
            )
            self.scheduler.attach(Namespace.of(dict(self.engine.identity)), self.cache)
        self.scheduler.start()

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, tokens: Sequence[int], steps: int, **request: Any) -> "queue.Queue[Event]":
        events: queue.Queue[Event] = queue.Queue()
        self.scheduler.submit(
            GenerationRequest(
                tokens=np.asarray(tokens, np.uint32),
                max_tokens=steps,
                **{"sampling": GREEDY} | request,
            ),
            events.put,
        )
        return events

    def answer(self, tokens: Sequence[int], steps: int = 8, **request: Any) -> Answer:
        """Submit one request and wait for its end; its rows of logits are [steps, vocabulary]."""
        self.engine.rows.clear()
        answer = collect(self.submit(tokens, steps, **request))
        answer.logits = np.stack([row for _, row in self.engine.rows])
        return answer

    def close(self) -> None:
        self.scheduler.stop(drain_s=0)
        if self.cache is not None:
            self.cache.close()
        self.engine.close()


def collect(events: "queue.Queue[Event]") -> Answer:
    answer = Answer()
    while True:
        event = events.get(timeout=120)
        if isinstance(event, TextEvent):
            answer.tokens.append(event.token)
            answer.text += event.text
        elif isinstance(event, DoneEvent):
            answer.done = event
            answer.text += event.text
            return answer
        elif isinstance(event, ErrorEvent):
            raise event.error


def prompt(count: int, seed: int = 1, vocabulary: int = 500) -> list[int]:
    """``count`` random token ids, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [2, *(int(t) for t in rng.integers(3, vocabulary, count - 1))]

"""What the cache holds and does now, in numbers: for ``GET /cache`` and the page that shows it.

Cheap while others answer: figures are read as they are, and the tree is made of the most recently
used blocks only, at most once every few seconds, however many people look.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Gauge

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.engine.base import Engine
from spillcache.metrics import Metrics
from spillcache.serve.prefix_tree import listed, runs
from spillcache.serve.slot_facts import Glance

BLOCKS = 2048
"""So many of RAM's blocks, and as many of the disk's, are looked at for the tree."""
RUNS = 200
TREE_S = 3.0
"""A tree is shown for so long before it is made again; and for as long as twenty times what making
it took.
"""
_REST = 20
_SOURCES = ("live", "ram", "disk", "computed")


class Overview:
    """Made when the model is loaded. Any thread; one at a time makes the tree."""

    def __init__(
        self,
        engine: Engine,
        glance: Glance,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._glance = glance
        self._metrics = metrics
        self._clock = clock
        self._started = time.time()
        self._lock = threading.Lock()
        self._tree: dict[str, Any] = _no_tree()
        self._fresh_until = float("-inf")

    def take(self, cache: PrefixCache | None, tiers: dict[str, Any]) -> dict[str, Any]:
        """All of it, for JSON; reads the store's index, so not on the event loop. ``tiers``: as
        ``/health`` has them.
        """
        prompt = _by_label(self._metrics.prompt_tokens)
        slots = self._glance.slots()
        tiers["disk"]["bytes"] = int(_value(self._metrics.disk_bytes))
        tiers["live"] = {
            "tokens": sum(each["tokens"] for each in slots),
            "context_tokens": self._engine.limits.context_tokens,
        }
        return {
            "now": round(time.time(), 3),
            "started": round(self._started, 3),
            "tiers": tiers,
            "prompt_tokens": {source: int(prompt.get(source, 0)) for source in _SOURCES},
            "generated_tokens": int(_value(self._metrics.generated_tokens)),
            "requests": {
                "waiting": int(_value(self._metrics.queued)),
                "ended": {k: int(v) for k, v in _by_label(self._metrics.requests).items()},
            },
            "slots": slots,
            "recent": self._glance.recent.listed(),
            "tree": self._tree_of(cache),
        }

    def _tree_of(self, cache: PrefixCache | None) -> dict[str, Any]:
        if cache is None:
            return _no_tree()
        if self._lock.acquire(blocking=False):  # else another makes it, and this is the last one
            try:
                began = self._clock()
                if began >= self._fresh_until:
                    self._tree = self._made(cache)
                    took = self._clock() - began
                    self._fresh_until = self._clock() + max(TREE_S, _REST * took)
            finally:
                self._lock.release()
        return self._tree

    def _made(self, cache: PrefixCache) -> dict[str, Any]:
        held = cache.facts(BLOCKS)
        rows, shown = listed(
            runs(held.blocks),
            RUNS,
            self._glance.live_blocks(),
            cache.geometry.block_tokens,
            time.time(),
        )
        return {"runs": rows, "blocks": len(held.blocks), "complete": held.complete and shown}


def _no_tree() -> dict[str, Any]:
    return {"runs": [], "blocks": 0, "complete": True}


def _by_label(counter: Counter) -> dict[str, float]:
    """A counter's values by its only label."""
    return {
        next(iter(sample.labels.values())): sample.value
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def _value(metric: Counter | Gauge) -> float:
    (family,) = metric.collect()
    return family.samples[0].value

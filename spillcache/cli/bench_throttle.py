"""``spillcache bench restart --throttle``: what a slow disk does to a prompt that it holds.

The server reads no faster than it is told to (``--cache-disk-throttle``). Once it has seen that
speed, a prompt should cost about what the better of computing and restoring it costs.
"""

import statistics
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_plan import ANSWER_TOKENS, Plan, server_flags
from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_report import tell
from spillcache.cli.bench_server import BenchServer, drop_page_cache
from spillcache.errors import ConfigError

MB = 1_000_000
_LONGEST_S = 30.0
"""A restore that would take longer is not waited for: what it takes follows from its bytes."""
_WARM_TOKENS = 512


@dataclass(slots=True)
class Throttled:
    """One prompt at one speed."""

    prompt_tokens: int
    mb_s: float
    full_ms: float
    """All of it restored, whatever it costs."""
    full_is: str
    """measured, or computed."""
    first: Answer
    """The first request at this speed, which finds out about it."""
    cached: list[Answer] = field(default_factory=list)
    cold: list[Answer] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The JSON row: medians in milliseconds. ``ratio``: cached over the better of the two."""
        cold, cached = _median(self.cold), _median(self.cached)
        return {
            "prompt_tokens": self.prompt_tokens,
            "mb_s": self.mb_s,
            "cold_ttft_ms": round(cold, 2),
            "full_restore_ms": round(self.full_ms, 2),
            "full_restore_is": self.full_is,
            "first_ttft_ms": round(self.first.ttft_ms, 2),
            "first_decision": self.first.decision,
            "cached_ttft_ms": round(cached, 2),
            "decisions": sorted({answer.decision for answer in self.cached}),
            "ratio": round(cached / min(cold, self.full_ms), 3),
            "same_tokens": all(
                answer.tokens == self.cold[0].tokens for answer in (self.first, *self.cached)
            ),
        }


def speeds(text: str) -> tuple[float, ...]:
    """``"5,0.5"`` → megabytes per second. Raises ConfigError."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.01 <= each <= 1e6 for each in found):
        raise ConfigError(f"--throttle: {text!r}; write megabytes per second, for example 5,0.5")
    return found


def measure_throttled(plan: Plan, length: int, mb_s: Sequence[float]) -> list[Throttled]:
    """One prompt at all speeds. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=plan.cache_disk) as work:
        bench = _Bench(plan, length, Path(work))
        size, quick_ms = bench.store()
        out = []
        for speed in mb_s:
            first = bench.ask(speed)  # it is to find out by itself
            full_ms, full_is = bench.full(speed, size, quick_ms)
            found = Throttled(length, speed, full_ms, full_is, first)
            for _ in range(plan.repeat):
                cached, cold = bench.compare(speed)
                found.cached.append(cached)
                found.cold.append(cold)
            out.append(found)
        return out


class _Bench:
    """One prompt in one directory; each method is a server's life."""

    def __init__(self, plan: Plan, length: int, work: Path) -> None:
        self._length = length
        self._directory, self._log = work / "cache", work / "server.log"
        self._flags = server_flags(plan, length, self._directory, f"bench-{uuid.uuid4()}")
        self._prompt: list[int] = []

    def store(self) -> tuple[int, float]:
        """Compute the prompt and keep it, then restore it at the disk's own speed: how many bytes
        that is, and in how many milliseconds the first token came.
        """
        with self._server() as server:
            maker = self._warm_up(server)
            self._prompt = maker.prompt(self._length)
            server.client.complete(self._prompt, ANSWER_TOKENS)
            server.stop()
        with self._server("--cache-restore", "always") as server:
            self._warm_up(server)
            answer = server.client.complete(self._prompt, ANSWER_TOKENS)
            server.stop()
        return answer.restored_bytes, answer.ttft_ms

    def full(self, mb_s: float, size: int, quick_ms: float) -> tuple[float, str]:
        """Milliseconds to the first token when all of it is restored at that speed, and whether
        they were measured.
        """
        restore_s = size / (mb_s * MB)
        if restore_s > _LONGEST_S:
            return 1000 * restore_s + quick_ms, "computed"
        answer = self.ask(mb_s, "--cache-restore", "always")
        return answer.ttft_ms, "measured"

    def ask(self, mb_s: float, *flags: str) -> Answer:
        """The prompt, after a restart."""
        with self._server(*_throttle(mb_s), *flags) as server:
            self._warm_up(server)
            answer = server.client.complete(self._prompt, ANSWER_TOKENS)
            server.stop()
        self._tell(f"{mb_s:g} MB/s{', restored at any cost' if flags else ''}", answer)
        return answer

    def compare(self, mb_s: float) -> tuple[Answer, Answer]:
        """The prompt with the cache, and without, in one life."""
        with self._server(*_throttle(mb_s)) as server:
            self._warm_up(server)
            cached = server.client.complete(self._prompt, ANSWER_TOKENS)
            cold = server.client.complete(self._prompt, ANSWER_TOKENS, cache_prompt=False)
            server.stop()
        self._tell(f"{mb_s:g} MB/s", cached)
        self._tell("cold", cold)
        return cached, cold

    def _server(self, *flags: str) -> BenchServer:
        drop_page_cache(self._directory / "segments")
        return BenchServer([*self._flags, *flags], self._log)

    def _warm_up(self, server: BenchServer) -> PromptMaker:
        """An unrelated prompt, so that no answer pays for the model's page faults."""
        maker = PromptMaker(server.client.tokenize)
        server.client.complete(maker.prompt(_WARM_TOKENS), 2, cache_prompt=False)
        return maker

    def _tell(self, what: str, answer: Answer) -> None:
        tell(f"{self._length} tokens, {what}: {answer.ttft_ms:.1f} ms, {answer.decision}")


def _throttle(mb_s: float) -> tuple[str, str]:
    return "--cache-disk-throttle", str(round(mb_s * MB))


def _median(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.ttft_ms for answer in answers)

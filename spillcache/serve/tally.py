"""Where prompts came from, and a warning when much is restored for nothing."""

import logging
import time
from collections.abc import Callable, Mapping

from spillcache.metrics import Metrics
from spillcache.serve.job import Tier
from spillcache.serve.recent_requests import RecentRequests
from spillcache.serve.slots import Job

log = logging.getLogger("spillcache.serve")

LOOK_TOKENS = 16_384
"""Every so many restored tokens it is asked how many of them were of use."""
USEFUL_SHARE = 0.5
WARN_EVERY_S = 600.0


_SLOWEST_FIRST: tuple[Tier, ...] = ("disk", "ram", "live")


def slowest(tokens: Mapping[Tier, int]) -> Tier | None:
    """The slowest tier that gave any of them; None if none did."""
    return next((tier for tier in _SLOWEST_FIRST if tokens.get(tier)), None)


class Tally:
    """Counts jobs; engine's thread."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._restored = self._reused = 0
        self._warned = float("-inf")
        self.recent = RecentRequests()

    def prompt(self, job: Job) -> None:
        """A prompt is done: count its tokens by where their state came from."""
        self._metrics.decisions.labels(job.decision).inc()
        for tier, count in job.cached.items():
            self._metrics.prompt_tokens.labels(tier).inc(count)
        computed = len(job.request.tokens) - sum(job.cached.values())
        self._metrics.prompt_tokens.labels("computed").inc(computed)

    def token(self, job: Job) -> None:
        """Another token of an answer is chosen: note when."""
        now = self._clock()
        if job.last_token:
            self._metrics.inter_token_seconds.observe(now - job.last_token)
        else:
            tier = slowest(job.cached) or "computed"
            self._metrics.ttft_seconds.labels(tier).observe(now - job.submitted)
        job.last_token = now

    def restored(self, tokens: Mapping[Tier, int], seconds: float) -> None:
        """A restore is over that a prompt goes on from; nothing if it came to nothing."""
        if tier := slowest(tokens):
            self._metrics.restore_seconds.labels(tier).observe(seconds)

    def end(self, job: Job) -> None:
        """A request is over, one way or another: see what became of what was restored for it."""
        self.recent.add(job)
        self._restored += sum(job.restored.values())
        if job.prompt_done:
            self._reused += sum(job.cached.get(tier, 0) for tier in job.restored)
        if self._restored < LOOK_TOKENS:
            return
        if self._reused < USEFUL_SHARE * self._restored:
            self._warn()
        self._restored = self._reused = 0

    def _warn(self) -> None:
        now = self._clock()
        if now - self._warned < WARN_EVERY_S:
            return
        self._warned = now
        log.warning(
            "of the last %d tokens that were restored, answers went on from %d only; "
            "spillcache_refused_tokens_total in /metrics says why",
            self._restored,
            self._reused,
        )

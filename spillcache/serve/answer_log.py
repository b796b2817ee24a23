"""A line of log for each request that ends; none holds a word of prompt or answer."""

import logging
from typing import Any

from spillcache.errors import RequestError, SpillcacheError
from spillcache.serve.job import DoneEvent

log = logging.getLogger("spillcache.serve")


def log_done(done: DoneEvent) -> None:
    """Where the prompt came from, how soon the answer began, and how fast it was."""
    usage, timings = done.usage, done.timings
    sources = [f"{usage.cached[tier]:,} {tier}" for tier in usage.cached if usage.cached[tier]]
    sources.append(f"{usage.prompt - usage.cached_total:,} computed")
    if timings.parted is not None:
        at, lost = timings.parted.at, timings.parted.lost
        sources.append(f"parts from what a slot held at token {at:,}, {lost:,} lost")
    pace = 1e3 * usage.generated / timings.predicted_ms if timings.predicted_ms > 0 else 0.0
    log.info(
        "answered: %s prompt tokens (%s), first token after %.2f s, %s generated (%s), %.1f per s",
        f"{usage.prompt:,}",
        ", ".join(sources),
        (timings.queue_ms + timings.prompt_ms) / 1e3,
        f"{usage.generated:,}",
        done.reason,
        pace,
        extra={"event": "answered", "fields": _fields(done)},
    )


def _fields(done: DoneEvent) -> dict[str, Any]:
    """The same, for machines."""
    usage, timings = done.usage, done.timings
    return {
        "prompt_tokens": usage.prompt,
        "cached_tokens": dict(usage.cached),
        "generated_tokens": usage.generated,
        "finish_reason": done.reason,
        "cache_decision": timings.decision,
        "queue_ms": round(timings.queue_ms, 3),
        "restore_ms": round(timings.restore_ms, 3),
        "prompt_ms": round(timings.prompt_ms, 3),
        "predicted_ms": round(timings.predicted_ms, 3),
        "slot": done.slot,
    }


def log_failed(error: SpillcacheError) -> None:
    """What the client was told instead of an answer."""
    level = logging.INFO if isinstance(error, RequestError) else logging.WARNING
    said = {"event": "not_answered", "fields": {"code": error.code}}
    log.log(level, "not answered: %s (%s)", error, error.code, extra=said)


def log_left() -> None:
    """The client closed the connection."""
    log.info("not answered: the client left", extra={"event": "client_left"})


def log_waiting(seconds: float) -> None:
    """A request is still without a slot."""
    log.warning(
        "a request has waited %.0f s for a slot; --parallel gives more of them",
        seconds,
        extra={"event": "waiting", "fields": {"seconds": seconds}},
    )

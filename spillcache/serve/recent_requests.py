"""The last requests, for the page: when, how long, and where their tokens came from. No text."""

import time
from collections import deque
from typing import Any

from spillcache.serve.slots import Job

MOST = 50


class RecentRequests:
    """The last ``MOST`` that ended. ``add``: engine's thread; ``listed``: any."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._count = 0

    def add(self, job: Job) -> None:
        """Note a request that is over, one way or another."""
        self._count += 1
        now, prompt = time.monotonic(), len(job.request.tokens)
        answered = bool(job.prompt_done)
        self._rows.append({
            "number": self._count,
            "outcome": job.outcome,
            "ended": round(time.time(), 3),
            "prompt_tokens": prompt,
            "live": job.cached.get("live", 0) if answered else 0,
            "ram": job.cached.get("ram", 0) if answered else 0,
            "disk": job.cached.get("disk", 0) if answered else 0,
            "computed": prompt - sum(job.cached.values()) if answered else 0,
            "generated_tokens": len(job.answer),
            "first_token_ms": _ms(job.prompt_done - job.submitted) if answered else None,
            "total_ms": _ms(now - job.submitted),
            "decision": job.decision if answered else None,
        })  # fmt: skip

    def listed(self) -> list[dict[str, Any]]:
        """For JSON, the last one first."""
        return list(self._rows)[::-1]


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)

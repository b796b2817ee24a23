"""What ``spillcache bench restart`` is to measure, and the server that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_TOKENS = 32
_ROOM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    model: Path
    lengths: tuple[int, ...]
    repeat: int
    cache_disk: Path | None
    serve_flags: tuple[str, ...]


def server_flags(plan: Plan, length: int, directory: Path, tag: str) -> list[str]:
    """Those of a server for prompts of ``length`` tokens, which keeps them in ``directory``."""
    flags = ["--model", str(plan.model), "--cache-disk", str(directory)]
    # Room for the prompt of a warm-up, which may be longer.
    flags += ["--ctx-size", str(max(length, 512) + ANSWER_TOKENS + _ROOM_TOKENS)]
    return [*flags, "--cache-namespace", tag, *plan.serve_flags]


def break_even(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The shortest prompt for which disk beats computing, between the measured lengths.

    ``tokens``: interpolated; or the shortest that was measured, if disk already wins there ("at
    most"); None if it never wins. ``rows``: those of ``Measured.row``.
    """
    gains = sorted((r["prompt_tokens"], r["cold_ttft_ms"] - r["disk_ttft_ms"]) for r in rows)
    won = next((i for i, (_, gain) in enumerate(gains) if gain > 0), None)
    if won is None:
        return {"tokens": None, "is": "more than the longest"}
    if won == 0:
        return {"tokens": gains[0][0], "is": "at most"}
    (below, loss), (above, gain) = gains[won - 1], gains[won]
    return {"tokens": round(below + (above - below) * -loss / (gain - loss)), "is": "interpolated"}

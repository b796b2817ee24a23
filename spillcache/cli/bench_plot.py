"""The picture of ``spillcache bench restart``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BARS = (
    ("cold_ttft_ms", "cold", "#8c8c8c"),
    ("disk_ttft_ms", "disk, after a restart", "#1f77b4"),
    ("ram_ttft_ms", "RAM", "#2ca02c"),
    ("live_ttft_ms", "live slot", "#98df8a"),
)


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 — with the rest, only when asked

    return find_spec("matplotlib") is not None


def plot_restart(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Write a PNG to ``path``: time to first token, log scale, one group of bars per prompt length.

    Raises OSError when the file can't be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 — half a second, and optional

    mpl.use("Agg")
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(max(6.4, 2.2 * len(rows) + 2), 4.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(_BARS)
    for number, (field, label, colour) in enumerate(_BARS):
        at = [index + (number - (len(_BARS) - 1) / 2) * width for index in range(len(rows))]
        values = [row[field] for row in rows]
        bars = axes.bar(at, values, width * 0.92, label=label, color=colour)
        axes.bar_label(bars, [_milliseconds(value) for value in values], padding=2, fontsize=8)
    axes.set_yscale("log")
    axes.set_ylim(top=2.5 * max(row["cold_ttft_ms"] for row in rows))
    axes.set_xticks(
        range(len(rows)),
        [f"{row['prompt_tokens']:,} tokens\n{row['disk_speedup']:.0f}× from disk" for row in rows],
    )
    axes.set_ylabel("time to first token (ms, log scale)")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=len(_BARS), loc="upper center")
    figure.savefig(path, format="png")


def _milliseconds(value: float) -> str:
    return f"{value / 1e3:.1f} s" if value >= 1e3 else f"{value:.0f} ms"

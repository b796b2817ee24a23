"""The picture of ``spillcache bench restart``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spillcache.cli.bench_report import format_speedup

_BARS = (
    ("cold_ttft_ms", "cold", "#8c8c8c"),
    ("live_ttft_ms", "live slot", "#98df8a"),
    ("ram_ttft_ms", "RAM", "#2ca02c"),
    ("disk_ttft_ms", "disk, after a restart", "#1f77b4"),
)


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 — with the rest, only when asked

    return find_spec("matplotlib") is not None


def plot_restart(rows: Sequence[dict[str, Any]], model: str, small_print: str, path: Path) -> None:
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
        values = [row[field] / 1e3 for row in rows]
        bars = axes.bar(at, values, width * 0.92, label=label, color=colour)
        axes.bar_label(bars, [_seconds(value) for value in values], padding=2, fontsize=8)
    _seconds_axis(axes, rows)
    axes.set_xticks(
        range(len(rows)),
        [
            f"{row['prompt_tokens']:,} tokens\n{format_speedup(row['disk_speedup'])} from disk"
            for row in rows
        ],
    )
    axes.set_title(f"Time to first token, {model}, after a restart: from disk", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=len(_BARS), loc="upper center")
    figure.supxlabel(small_print, fontsize=6.5, color="#666666")
    figure.savefig(path, format="png")


def _seconds_axis(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    """A log scale with plain numbers at 1, 2 and 5, and room for the legend above."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    times = [row[field] / 1e3 for row in rows for field, _, _ in _BARS]
    axes.set_yscale("log")
    axes.set_ylim(min(times) / 2, 3 * max(times))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=8)
    axes.set_ylabel("seconds (log scale)", fontsize=9)


def _seconds(value: float) -> str:
    return (
        f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{value:.3f} s"
    )

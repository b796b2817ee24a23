"""Pictures of benches, for those that are asked for one (--plot)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spillcache.cli.bench_plot import can_plot
from spillcache.errors import ConfigError

_COLOURS = ("#1f77b4", "#8c8c8c", "#2ca02c", "#98df8a", "#d62728")


def check(path: Path | None) -> None:
    """Raise ConfigError if a picture is wanted and can't be drawn, before minutes are spent."""
    if path is not None and not can_plot():
        raise ConfigError("--plot needs matplotlib; run: pip install 'spillcache[demo]'")


def bars(
    path: Path, title: str, axis: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]
) -> None:
    """A PNG with a bar for each series in each group, on a log scale."""
    figure, axes = _figure(title, axis, max(6.4, 1.5 * len(groups) + 2))
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        at = [index + (number - (len(series) - 1) / 2) * width for index in range(len(groups))]
        drawn = axes.bar(at, values, width * 0.92, label=label, color=_COLOURS[number])
        axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=2, fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.margins(y=0.2)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    figure.savefig(path, format="png")


def lines(
    path: Path,
    title: str,
    axis: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    across: str = "seconds",
) -> None:
    """A PNG with a line of (``across``, value) for each series."""
    figure, axes = _figure(title, axis, 7.2)
    for number, (label, points) in enumerate(series.items()):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, label=label, color=_COLOURS[number % len(_COLOURS)], linewidth=1)
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def _figure(title: str, axis: str, width: float) -> tuple[Any, Any]:
    import matplotlib as mpl  # noqa: PLC0415 — half a second, and optional

    mpl.use("Agg")
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.set_ylabel(axis, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes

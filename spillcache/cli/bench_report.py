"""What ``spillcache bench restart`` shows people: the table, its legend, and the small print."""

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spillcache import __version__
from spillcache.config import format_size

PHASES = ("cold", "live", "ram", "disk")
_LEGEND = """\
cold    nothing was kept: all tokens are computed; measured once
live    the same prompt again at once, while its slot still holds it
RAM     again, after another prompt took the slot
disk    again, after a restart of the server (--cache-restore always); page cache: {page_cache}
reused  prompt tokens that were not computed after the restart; read: bytes of state for them
answer  same: after each of these, all {answer_tokens} tokens are those of the cold answer
Times are medians of {repeat}, but for cold."""


def print_table(
    rows: Sequence[dict[str, Any]],
    *,
    model: str,
    repeat: int,
    answer_tokens: int,
    page_cache: str,
    even: dict[str, Any],
) -> None:
    """The rows of ``Measured.row`` and what the columns mean, to stdout."""
    from rich.console import Console  # noqa: PLC0415 — only when there is something to print
    from rich.table import Table  # noqa: PLC0415

    title = f"Time to the first token, {model} (median of {repeat})"
    table = Table(title=title, title_justify="left")
    for column in ("prompt", "cold", "live", "RAM", "disk", "disk is", "reused", "read", "answer"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['prompt_tokens']:,}",
            *(format_ms(row[f"{name}_ttft_ms"]) for name in PHASES),
            format_speedup(row["disk_speedup"]),
            f"{row['reused_tokens']:,}",
            format_size(row["restored_bytes"]),
            "same" if row["same_tokens"] else "DIFFERENT",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(_LEGEND.format(page_cache=page_cache, repeat=repeat, answer_tokens=answer_tokens))
    if even["tokens"] is None:
        print("Disk is quicker than computing at none of these lengths.")
    else:
        about = "at most" if even["is"] == "at most" else "about"
        print(f"Disk is quicker than computing from {about} {even['tokens']:,} tokens on.")


_THROTTLED = """\
cold     computed without the cache
restored all of it read at that speed, whatever it costs; * computed from its bytes
first    with the cache, by a server that does not know the speed yet
cached   with the cache, by one that has seen it, after a restart; what it did
ratio    cached over the better of cold and restored
Cold and cached are medians of {repeat}, taken in turn."""


def print_throttled(rows: Sequence[dict[str, Any]], *, model: str, repeat: int) -> None:
    """The rows of ``Throttled.row`` and what the columns mean, to stdout."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"Time to the first token on a slow disk, {model}", title_justify="left")
    columns = ("prompt", "disk", "cold", "restored", "first", "cached", "", "ratio", "answer")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['prompt_tokens']:,}",
            f"{row['mb_s']:g} MB/s",
            format_ms(row["cold_ttft_ms"]),
            format_ms(row["full_restore_ms"]) + "*" * (row["full_restore_is"] == "computed"),
            format_ms(row["first_ttft_ms"]),
            format_ms(row["cached_ttft_ms"]),
            ", ".join(row["decisions"]),
            f"{row['ratio']:.2f}",
            "same" if row["same_tokens"] else "DIFFERENT",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(_THROTTLED.format(repeat=repeat))


def tell(line: str) -> None:
    """A line of progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def format_ms(ms: float) -> str:
    """``"138.4 ms"``, and seconds from one second on: ``"23.66 s"``."""
    return f"{ms / 1e3:.2f} s" if ms >= 999.95 else f"{ms:.1f} ms"


def format_speedup(ratio: float) -> str:
    """``"3.3× faster"``, or ``"1.4× slower"``."""
    return f"{ratio:.1f}× faster" if ratio >= 1 else f"{1 / ratio:.1f}× slower"


def machine_facts() -> dict[str, Any]:
    """Where and when: for the report and the picture's small print."""
    return {
        "version": __version__,
        "machine": platform.machine(),
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cpus": _cpus(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def small_print(facts: dict[str, Any], repeat: int) -> str:
    """One line of them."""
    cpu = " ".join(str(facts["cpu"]).split())
    return (
        f"{cpu}, {facts['cpus']} CPUs · {facts['date']} · spillcache {facts['version']} · "
        f"median of {repeat}, cold once"
    )


def _cpu(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

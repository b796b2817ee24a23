"""``spillcache bench restart``: what a prompt costs cold, live, from RAM, and after a restart.

For each length a real server answers a prompt over HTTP; then it is stopped, its files leave the
page cache, a new one starts and answers the prompt again.
"""

import json
import platform
import statistics
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from spillcache import __version__
from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_plot import can_plot, plot_restart
from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_server import BenchServer, drop_page_cache
from spillcache.cli.model_path import find_model
from spillcache.config import format_size
from spillcache.errors import ConfigError

ANSWER_TOKENS = 32
MIN_PROMPT_TOKENS = 128
"""Shorter prompts are not written to disk."""
_ROOM_TOKENS = 256
_DEFAULT_PLOT = Path("spillcache-restart.png")


@dataclass(slots=True)
class Measured:
    """The answers to one prompt, by how they came about; each list holds one per repetition."""

    prompt_tokens: int
    cold: list[Answer] = field(default_factory=list)
    live: list[Answer] = field(default_factory=list)
    ram: list[Answer] = field(default_factory=list)
    disk: list[Answer] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The JSON row: medians in milliseconds, and whether all answers were the same."""
        cold, disk = _median(self.cold), _median(self.disk)
        warm = [*self.live, *self.ram, *self.disk]
        return {
            "prompt_tokens": self.prompt_tokens,
            "cold_ttft_ms": round(cold, 2),
            "live_ttft_ms": round(_median(self.live), 2),
            "ram_ttft_ms": round(_median(self.ram), 2),
            "disk_ttft_ms": round(disk, 2),
            "disk_speedup": round(cold / disk, 2),
            "reused_tokens": min(answer.cached_tokens for answer in self.disk),
            "restored_bytes": max(answer.restored_bytes for answer in self.disk),
            "same_tokens": all(
                (answer.tokens, answer.text) == (self.cold[0].tokens, self.cold[0].text)
                for answer in warm
            ),
            "sources": {
                name: answers[-1].sources
                for name, answers in (("live", self.live), ("ram", self.ram), ("disk", self.disk))
            },
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    model: Path
    lengths: tuple[int, ...]
    repeat: int
    cache_disk: Path | None
    serve_flags: tuple[str, ...]


def bench_restart(
    *,
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="PATH", help="A GGUF file, or gemma3-270m."),
    ] = "gemma3-270m",
    prompt_tokens: Annotated[
        str, typer.Option(metavar="N,N,…", help="Prompt lengths.")
    ] = "2048,8192",
    repeat: Annotated[
        int,
        typer.Option(
            min=1, help="Measurements live, from RAM and from disk; cold is measured once."
        ),
    ] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help=f"Where the picture goes. Default: {_DEFAULT_PLOT}, if matplotlib is there.",
        ),
    ] = None,
    cache_disk: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The filesystem to measure; a fresh directory in it."),
    ] = None,
    serve_flags: Annotated[
        list[str] | None, typer.Argument(metavar="-- FLAGS", help="More flags for the server.")
    ] = None,
) -> None:
    """Time to the first token: cold, live, from RAM, and from disk after a restart.

    The last line of the output is JSON.
    """
    plan = Plan(
        model=find_model(model),
        lengths=_lengths(prompt_tokens),
        repeat=repeat,
        cache_disk=cache_disk,
        serve_flags=tuple(serve_flags or ()),
    )
    if plot is not None and not can_plot():
        raise ConfigError("--plot needs matplotlib; run: pip install 'spillcache[demo]'")
    rows, reads = [], ""
    for length in plan.lengths:
        measured, reads = measure(plan, length)
        rows.append(measured.row())
    filesystem = _filesystem(cache_disk or Path(tempfile.gettempdir()))
    page_cache = _page_cache(reads, filesystem)
    _print_table(rows, page_cache)
    target = plot or (_DEFAULT_PLOT if can_plot() else None)
    if target is not None:
        _plot(rows, plan, target)
    report = _report(plan, rows) | {"page_cache": page_cache, "filesystem": filesystem}
    print(json.dumps(report), flush=True)


def measure(plan: Plan, length: int) -> tuple[Measured, str]:
    """All phases of one prompt length, and how the store reads. Raises BenchError."""
    out = Measured(length)
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=plan.cache_disk) as work:
        directory = Path(work) / "cache"
        flags = ["--model", str(plan.model), "--cache-disk", str(directory)]
        flags += ["--ctx-size", str(length + ANSWER_TOKENS + _ROOM_TOKENS)]
        flags += ["--cache-namespace", f"bench-{uuid.uuid4()}", *plan.serve_flags]
        log = Path(work) / "server.log"
        with BenchServer(flags, log) as server:
            prompt = _first_life(server, out, plan.repeat)
            reads = _reads(server)
            server.stop()
        for _ in range(plan.repeat):
            drop_page_cache(directory / "segments")
            with BenchServer(flags, log) as server:
                _warm_up(server, PromptMaker(server.client.tokenize))
                _note(out, "disk", out.disk, server.client.complete(prompt, ANSWER_TOKENS))
                server.stop()
    return out, reads


def _first_life(server: BenchServer, out: Measured, repeat: int) -> list[int]:
    """Cold, then live, then from RAM each time after another prompt took the slot; the prompt."""
    client = server.client
    maker = PromptMaker(client.tokenize)
    _warm_up(server, maker)
    prompt, other = maker.prompt(out.prompt_tokens), maker.prompt(out.prompt_tokens)
    _note(out, "cold", out.cold, client.complete(prompt, ANSWER_TOKENS))
    for _ in range(repeat):
        _note(out, "live", out.live, client.complete(prompt, ANSWER_TOKENS))
        client.complete(other, 1)
        _note(out, "ram", out.ram, client.complete(prompt, ANSWER_TOKENS))
    return prompt


def _warm_up(server: BenchServer, maker: PromptMaker) -> None:
    """An unrelated short prompt, so that no phase pays for the model's page faults."""
    server.client.complete(maker.prompt(32), 2)


def _note(out: Measured, phase: str, answers: list[Answer], answer: Answer) -> None:
    answers.append(answer)
    print(
        f"{out.prompt_tokens} tokens, {phase}: {answer.ttft_ms:.1f} ms to the first token, "
        f"{answer.cached_tokens} reused",
        file=sys.stderr,
        flush=True,
    )


def _reads(server: BenchServer) -> str:
    """How the store reads: ``direct`` or ``buffered+dontneed``; empty if the server can't say."""
    return str(server.health().get("cache", {}).get("disk", {}).get("reads", ""))


def _filesystem(directory: Path) -> str:
    """The type of the filesystem below ``directory``; empty where the platform does not tell."""
    from spillcache.store.location import filesystem_type  # noqa: PLC0415 — pulls in the store

    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    return filesystem_type(directory.resolve(), mounts) or ""


def _page_cache(reads: str, filesystem: str) -> str:
    if filesystem in ("tmpfs", "ramfs"):
        return f"does not matter: {filesystem} is memory; name a disk with --cache-disk"
    if reads == "direct":
        return "bypassed (O_DIRECT)"
    return "dropped before each start (fadvise)"


def _lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < MIN_PROMPT_TOKENS:
        raise ConfigError(
            f"--prompt-tokens: {text!r}; write lengths of at least {MIN_PROMPT_TOKENS}, "
            "for example 2048,8192"
        )
    return lengths


def _median(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.ttft_ms for answer in answers)


def _report(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bench": "restart",
        "rows": rows,
        "model": plan.model.name,
        "answer_tokens": ANSWER_TOKENS,
        "repeat": {"cold": 1, "live": plan.repeat, "ram": plan.repeat, "disk": plan.repeat},
        "serve_flags": list(plan.serve_flags),
        "version": __version__,
        "machine": platform.machine(),
    }


def _print_table(rows: list[dict[str, Any]], page_cache: str) -> None:
    from rich.console import Console  # noqa: PLC0415 — only when there is something to print
    from rich.table import Table  # noqa: PLC0415

    table = Table(title="Time to the first token")
    for column in ("prompt", "cold", "live", "RAM", "disk", "disk is", "reused", "read", "answer"):
        table.add_column(column, justify="right")
    for row in rows:
        times = [f"{row[f'{name}_ttft_ms']:,.1f} ms" for name in ("cold", "live", "ram", "disk")]
        table.add_row(
            f"{row['prompt_tokens']:,} tokens",
            *times,
            f"{row['disk_speedup']:.1f}× faster",
            f"{row['reused_tokens']:,}",
            format_size(row["restored_bytes"]),
            "same" if row["same_tokens"] else "DIFFERENT",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"disk: after a restart of the server; page cache: {page_cache}")


def _plot(rows: list[dict[str, Any]], plan: Plan, path: Path) -> None:
    title = f"{plan.model.stem}: the same prompt again, also after the server was restarted"
    try:
        plot_restart(rows, title, path)
    except OSError as error:
        raise ConfigError(f"--plot: can't write {path}: {error.strerror or error}") from error
    print(f"picture: {path}")

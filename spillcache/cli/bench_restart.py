"""``spillcache bench restart``: what a prompt costs cold, live, from RAM, and after a restart.

For each length a real server answers a prompt over HTTP; then it is stopped, its files leave the
page cache, a new one starts and answers the prompt again.
"""

import json
import statistics
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_plan import ANSWER_TOKENS, Plan, break_even, server_flags
from spillcache.cli.bench_plot import can_plot, plot_restart
from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_report import (
    machine_facts,
    print_table,
    print_throttled,
    small_print,
    tell,
)
from spillcache.cli.bench_server import BenchServer, drop_page_cache, terminable
from spillcache.cli.bench_throttle import measure_throttled, speeds
from spillcache.cli.gguf_header import trained_tokens
from spillcache.cli.model_path import find_model
from spillcache.errors import ConfigError

MIN_PROMPT_TOKENS = 128
"""Shorter prompts are not written to disk."""
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
            min=1,
            metavar="N",
            help="Measurements live, from RAM and from disk; cold is measured once.",
        ),
    ] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help=f"Where the picture goes. Default: {_DEFAULT_PLOT}, if matplotlib is there.",
        ),
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            metavar="MB/S,…",
            help="Instead: a disk that reads so many megabytes per second, as 5,0.5.",
        ),
    ] = None,
    cache_disk: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The filesystem to measure; a fresh directory in it."),
    ] = None,
    serve_flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- FLAGS", help="Flags of spillcache serve, after --, as in: -- -fa off"
        ),
    ] = None,
) -> None:
    """Time to the first token: cold, live, from RAM, and from disk after a restart.

    The last line of the output is JSON.
    """
    path = find_model(model)
    plan = Plan(
        model=path,
        lengths=_lengths(prompt_tokens, trained_tokens(path)),
        repeat=repeat,
        cache_disk=cache_disk,
        serve_flags=tuple(serve_flags or ()),
    )
    if plot is not None and not can_plot():
        raise ConfigError("--plot needs matplotlib; run: pip install 'spillcache[demo]'")
    mb_s = None if throttle is None else speeds(throttle)
    with terminable():
        if mb_s is None:
            _run(plan, plot)
        else:
            _run_throttled(plan, mb_s)


def _run_throttled(plan: Plan, mb_s: Sequence[float]) -> None:
    """The same for slow disks."""
    rows = [
        found.row() for length in plan.lengths for found in measure_throttled(plan, length, mb_s)
    ]
    print_throttled(rows, model=plan.model.stem, repeat=plan.repeat)
    report = {"bench": "restart", "throttle": rows, "model": plan.model.name}
    facts = {"repeat": plan.repeat, "serve_flags": list(plan.serve_flags)} | machine_facts()
    print(json.dumps(report | facts), flush=True)


def _run(plan: Plan, plot: Path | None) -> None:
    """Measure and report."""
    rows, reads = [], ""
    for length in plan.lengths:
        measured, reads = measure(plan, length)
        rows.append(measured.row())
    filesystem = _filesystem(plan.cache_disk or Path(tempfile.gettempdir()))
    page_cache = _page_cache(reads, filesystem)
    facts = machine_facts()
    print_table(
        rows,
        model=plan.model.stem,
        repeat=plan.repeat,
        answer_tokens=ANSWER_TOKENS,
        page_cache=page_cache,
        even=break_even(rows),
    )
    target = plot or (_DEFAULT_PLOT if can_plot() else None)
    if target is not None:
        _plot(rows, plan, facts, target)
    report = _report(plan, rows, facts) | {"page_cache": page_cache, "filesystem": filesystem}
    print(json.dumps(report), flush=True)


def measure(plan: Plan, length: int) -> tuple[Measured, str]:
    """All phases of one prompt length, and how the store reads. Raises BenchError."""
    out = Measured(length)
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=plan.cache_disk) as work:
        directory = Path(work) / "cache"
        flags = server_flags(plan, length, directory, f"bench-{uuid.uuid4()}")
        flags += ["--cache-restore", "always"]  # it is the disk that is measured
        log = Path(work) / "server.log"
        with BenchServer(flags, log) as server:
            prompt = _first_life(server, out, plan.repeat)
            reads = _reads(server)
            server.stop()
        for _ in range(plan.repeat):
            drop_page_cache(directory / "segments")
            with BenchServer(flags, log) as server:
                _warm_up(server, PromptMaker(server.client.tokenize))
                _ask(server, out, "disk", plan.repeat, prompt)
                server.stop()
    return out, reads


def _first_life(server: BenchServer, out: Measured, repeat: int) -> list[int]:
    """Cold, then live, then from RAM each time after another prompt took the slot; the prompt."""
    client = server.client
    maker = PromptMaker(client.tokenize)
    _warm_up(server, maker)
    prompt, other = maker.prompt(out.prompt_tokens), maker.prompt(out.prompt_tokens)
    _ask(server, out, "cold", 1, prompt)
    for _ in range(repeat):
        _ask(server, out, "live", repeat, prompt)
        if len(out.ram) == 0:
            tell(f"{out.prompt_tokens} tokens: another prompt takes the slot …")
        client.complete(other, 1)
        _ask(server, out, "ram", repeat, prompt)
    return prompt


def _warm_up(server: BenchServer, maker: PromptMaker) -> None:
    """An unrelated short prompt, so that no phase pays for the model's page faults."""
    server.client.complete(maker.prompt(32), 2)


def _ask(server: BenchServer, out: Measured, phase: str, of: int, prompt: list[int]) -> None:
    """One measurement: what it will be, then what it was, on stderr."""
    answers: list[Answer] = getattr(out, phase)
    what = f"{out.prompt_tokens} tokens, {phase}"
    tell(f"{what}: measuring, {len(answers) + 1} of {of} …")
    answer = server.client.complete(prompt, ANSWER_TOKENS)
    answers.append(answer)
    tell(f"{what}: {answer.ttft_ms:.1f} ms to the first token, {answer.cached_tokens} reused")


def _reads(server: BenchServer) -> str:
    """How the store reads: ``direct`` or ``buffered+dontneed``; empty if the server can't say."""
    return str(server.health().get("cache", {}).get("disk", {}).get("reads", ""))


def _filesystem(directory: Path) -> str:
    """The type of the filesystem below ``directory``; empty where the platform does not tell."""
    from spillcache.store.mounts import filesystem_of  # noqa: PLC0415 — pulls in the store

    return filesystem_of(directory) or ""


def _page_cache(reads: str, filesystem: str) -> str:
    if filesystem in ("tmpfs", "ramfs"):
        return f"does not matter: {filesystem} is memory; name a disk with --cache-disk"
    if reads == "direct":
        return "bypassed (O_DIRECT)"
    return "dropped before each start (fadvise)"


def _lengths(text: str, trained: int | None) -> tuple[int, ...]:
    """The lengths in ``text``; none may be more than fits into the context that the model was
    trained for: what came of it would be nonsense, after minutes.
    """
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < MIN_PROMPT_TOKENS:
        raise ConfigError(
            f"--prompt-tokens: {text!r}; write lengths of at least {MIN_PROMPT_TOKENS}, "
            "for example 2048,8192"
        )
    if trained is not None and max(lengths) + ANSWER_TOKENS > trained:
        raise ConfigError(
            f"--prompt-tokens: {max(lengths)} is too long; the model was trained for {trained} "
            f"tokens, {ANSWER_TOKENS} of which the answer needs: {trained - ANSWER_TOKENS} at most"
        )
    return lengths


def _median(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.ttft_ms for answer in answers)


def _report(plan: Plan, rows: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "bench": "restart",
        "rows": rows,
        "break_even": break_even(rows),
        "model": plan.model.name,
        "answer_tokens": ANSWER_TOKENS,
        "repeat": {"cold": 1, "live": plan.repeat, "ram": plan.repeat, "disk": plan.repeat},
        "serve_flags": list(plan.serve_flags),
        **facts,
    }


def _plot(rows: list[dict[str, Any]], plan: Plan, facts: dict[str, Any], path: Path) -> None:
    try:
        plot_restart(rows, plan.model.stem, small_print(facts, plan.repeat), path)
    except OSError as error:
        raise ConfigError(f"--plot: can't write {path}: {error.strerror or error}") from error
    print(f"picture: {path}")

"""``spillcache doctor``: whether a directory, a disk and a model are fit for it, and what to do."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from spillcache.cli import care, doctor_report
from spillcache.cli.doctor_report import Finding
from spillcache.cli.model_path import find_model
from spillcache.errors import ConfigError, SpillcacheError


def doctor(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [-- FLAGS]",
            help="The cache directory; flags for the server of --restart.",
            show_default=False,
        ),
    ] = None,
    cache_disk: care.CacheDisk = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="PATH", help="Also try this model, or gemma3-270m."),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="With -m: save, restart and restore with a real server."),
    ] = False,
    as_json: care.AsJson = False,
) -> None:
    """Look whether everything is fit: directory, disk, store; with -m also engine and model."""
    words = words or []
    named = [Path(word) for word in words[:1] if not word.startswith("-")]
    path = care.directory_of(named[0] if named else None, cache_disk, "doctor")
    if restart and model is None:
        raise ConfigError("--restart needs a model: -m PATH")
    findings = []
    for finding in _look(path, model, restart=restart, serve_flags=words[len(named) :]):
        findings.append(finding)
        if not as_json:
            doctor_report.print_finding(finding)
            sys.stdout.flush()
    if as_json:
        care.print_json({"path": str(path)} | doctor_report.as_json(findings))
    else:
        doctor_report.print_end(findings)
    raise typer.Exit(0 if doctor_report.is_ready(findings) else 1)


def _look(
    path: Path, model: str | None, *, restart: bool, serve_flags: list[str]
) -> Iterator[Finding]:
    from spillcache.cli.doctor_directory import look_at_directory  # noqa: PLC0415 — LMDB, NumPy, …
    from spillcache.cli.doctor_speed import look_at_speed  # noqa: PLC0415

    is_usable = True
    for finding in look_at_directory(path):
        is_usable &= finding.state != "bad" or finding.name != "directory"
        yield finding
    if is_usable:
        with care.progress_bar("measuring the disk") as tell:
            findings = list(look_at_speed(path, tell))
        yield from findings
    if model is not None:
        yield from _look_at_engine(path, model, restart=restart and is_usable, flags=serve_flags)


def _look_at_engine(
    path: Path, model: str, *, restart: bool, flags: list[str]
) -> Iterator[Finding]:
    from spillcache.cli import doctor_engine as engine  # noqa: PLC0415 — an extra

    is_well = True
    for finding in engine.look_at_library():
        is_well &= finding.state != "bad"
        yield finding
    if not is_well:
        return
    try:
        file = find_model(model)
    except SpillcacheError as error:
        yield Finding("model", "bad", str(error), "give the path of a GGUF file to -m")
        return
    with care.spinner("loading the model and testing it"):
        findings = list(engine.look_at_model(file))
    yield from findings
    if restart and doctor_report.is_ready(findings):
        with care.spinner("a server answers, stops, starts, and answers again"):
            findings = list(engine.look_at_restart(path, file, flags))
        yield from findings

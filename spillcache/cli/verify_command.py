"""``spillcache verify`` and ``spillcache repair``: read everything, and make the index whole."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.cli import care
from spillcache.config import counted, format_size

if TYPE_CHECKING:
    from spillcache.store.repair import RepairReport
    from spillcache.store.scrub import VerifyReport


def verify(
    *,
    directory: care.Directory = None,
    cache_disk: care.CacheDisk = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Quarantine what is damaged, forget what is gone."),
    ] = False,
    as_json: care.AsJson = False,
) -> None:
    """Read everything that a cache directory holds and compare it with what was written.

    The exit code is 1 if anything is wrong and was not put right.
    """
    path = care.directory_of(directory, cache_disk, "verify")
    with care.open_store(path) as store, care.progress_bar("reading") as tell:
        report = store.verify(fix, tell)
    is_well = not report.left
    if as_json:
        care.print_json(_as_json(path, report) | {"ok": is_well})
    else:
        _print_verified(path, report, fix=fix)
    raise typer.Exit(0 if is_well else 1)


def repair(
    *,
    directory: care.Directory = None,
    cache_disk: care.CacheDisk = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Make the index anew even if it looks sound.")
    ] = False,
    as_json: care.AsJson = False,
) -> None:
    """Make the index whole again from the segments; anew, if it is damaged."""
    from spillcache.store.block_store import BlockStore  # noqa: PLC0415 — LMDB, NumPy, …

    path = care.directory_of(directory, cache_disk, "repair")
    with care.progress_bar("looking through segments", "segments") as tell:
        report = BlockStore.repair(path, tell, anew=anew)
    if as_json:
        care.print_json({"path": str(path)} | asdict(report))
    else:
        _print_repaired(path, report)
    raise typer.Exit(1 if report.unreadable else 0)


def _as_json(path: Path, report: "VerifyReport") -> dict[str, Any]:
    return {
        "path": str(path),
        "objects": report.objects,
        "read_bytes": report.read_bytes,
        "seconds": round(report.seconds, 3),
        "damaged": report.damaged,
        "unreadable": report.unreadable,
        "missing": report.missing,
        "fixed": report.fixed,
        "left": report.left,
        "index": report.index,
        "segments": report.segments,
        "findings": [_plain(asdict(each)) for each in report.findings],
        "quarantined": [_plain(asdict(each)) for each in report.quarantined],
    }


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: v.hex() if isinstance(v, bytes) else v for key, v in fields.items()}


def _print_verified(path: Path, report: "VerifyReport", *, fix: bool) -> None:
    speed = format_size(report.read_bytes / max(report.seconds, 1e-6))
    print(
        f"{path}: {report.objects:,} objects read, {format_size(report.read_bytes)} in "
        f"{report.seconds:.1f} s ({speed}/s)"
    )
    for each in report.findings:
        print(
            f"  {each.part} of block {each.block[:16]} in namespace {each.namespace_id.hex()}: "
            f"{each.reason} (segment {each.segment}, offset {each.offset})"
        )
    for line in (*report.index, *report.segments):
        print(f"  {line}")
    if report.quarantined:
        print(f"in quarantine, {len(report.quarantined)} records:")
    for record in report.quarantined:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
        size = format_size(record.size_bytes)
        print(f"  {when} {size} {record.part} of block {record.block}: {record.reason}")
    print(_verdict(path, report, fix=fix))


def _verdict(path: Path, report: "VerifyReport", *, fix: bool) -> str:
    if report.is_sound:
        return "all is as it was written"
    words = (
        f"{report.damaged:,} damaged, {report.missing:,} gone, {report.unreadable:,} unreadable, "
        f"{len(report.index):,} contradictions in the index, {len(report.segments):,} in segments"
    )
    if report.index:
        return f"{words}; run: spillcache repair {path}"
    if fix:
        left = f"; {report.left:,} still wrong" if report.left else ""
        return f"{words}; {report.fixed:,} put right: what they held is computed again{left}"
    return f"{words}; run: spillcache verify {path} --fix"


def _print_repaired(path: Path, report: "RepairReport") -> None:
    how = "was made anew" if report.rebuilt else "is sound"
    found = "" if report.rebuilt else f", {report.named:,} of them were not in it before"
    print(
        f"{path}: the index {how}: {counted(report.objects, 'object')} in "
        f"{counted(report.segments, 'segment')}"
        f"{found} ({report.seconds:.1f} s)"
    )
    if report.freed_bytes:
        print(f"freed: {format_size(report.freed_bytes)} that nothing could name")
    if report.rebuilt:
        print(f"the old one is in {path / 'index.damaged'}; spillcache gc deletes it")
    for line in report.unreadable:
        print(f"  {line}")

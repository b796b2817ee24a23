"""``spillcache gc``: make a cache directory smaller, or show what that would take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.cli import care
from spillcache.config import format_size, parse_age, parse_size

if TYPE_CHECKING:
    from spillcache.store.block_store import Plan


def gc(
    *,
    directory: care.Directory = None,
    cache_disk: care.CacheDisk = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would go.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Make the directory no larger than this.")
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Let go what was not used for longer, as 30d."),
    ] = None,
    as_json: care.AsJson = False,
) -> None:
    """Free space: what nothing names, what is too old, and the least useful blocks."""
    path = care.directory_of(directory, cache_disk, "gc")
    target = None if to is None else parse_size(to, "--to")
    age = None if max_age is None else parse_age(max_age, "--max-age")
    plan = plan_of(path, target, age) if dry_run else collect(path, target, age)
    if as_json:
        care.print_json(_report(path, plan, dry_run=dry_run))
    else:
        _print(path, plan, dry_run=dry_run)


def plan_of(path: Path, target: int | None, max_age_s: float | None) -> "Plan":
    """What would go; changes nothing."""
    from spillcache.store.block_store import BlockStore  # noqa: PLC0415 — LMDB, NumPy, …

    view = care.look(path)
    age = view.max_age_s if max_age_s is None else max_age_s
    return BlockStore.plan_gc(path, target, age, view.usage().min_free)


def collect(path: Path, target: int | None, max_age_s: float | None) -> "Plan":
    """Do it."""
    with care.open_store(path) as store, care.progress_bar("evicting") as tell:
        return store.gc(target, max_age_s, tell)


def _report(path: Path, plan: "Plan", *, dry_run: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "path": str(path),
        "dry_run": dry_run,
        "used_bytes": plan.used_bytes,
        "target_bytes": plan.target_bytes,
        "reached": plan.reached,
        "objects": plan.objects,
        "aged_objects": plan.aged_objects,
        "freed_bytes": plan.freed_bytes,
        "leftover_bytes": plan.leftover_bytes,
        "left_bytes": plan.left_bytes,
    }
    if dry_run:
        report["namespaces"] = {
            namespace.hex(): {"objects": share.objects, "freed_bytes": share.freed_bytes}
            for namespace, share in plan.namespaces.items()
        }
    return report


def _print(path: Path, plan: "Plan", *, dry_run: bool) -> None:
    would = "would go" if dry_run else "went"
    aged = f", {plan.aged_objects:,} of them for their age" if plan.aged_objects else ""
    print(
        f"{path}: {plan.objects:,} objects {would} ({format_size(plan.freed_bytes)}{aged}), and "
        f"{format_size(plan.leftover_bytes)} that nothing names"
    )
    for namespace, share in plan.namespaces.items():
        size = format_size(share.freed_bytes)
        print(f"  {namespace.hex()}: {share.objects:,} objects, {size}")
    print(f"{format_size(plan.used_bytes)} before, {format_size(plan.left_bytes)} after")
    if not plan.reached:
        print("no more can go: the rest is the index, which keeps its size, or in use just now")

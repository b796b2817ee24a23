"""``spillcache ls``: what a cache directory holds. Looks only: a server may be using it."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillcache.cli import care
from spillcache.config import format_size
from spillcache.namespace import FieldValue

if TYPE_CHECKING:
    from spillcache.store.objects import NamespaceInfo, Usage


def ls(
    *,
    directory: care.Directory = None,
    cache_disk: care.CacheDisk = None,
    as_json: care.AsJson = False,
) -> None:
    """Show what a cache directory holds: namespaces, blocks, bytes and ages."""
    path = care.directory_of(directory, cache_disk, "ls")
    view = care.look(path)
    namespaces, usage = view.namespaces(), view.usage()
    if as_json:
        care.print_json(_report(path, namespaces, usage))
    else:
        _print_tables(path, namespaces, usage)


def _report(path: Path, namespaces: "list[NamespaceInfo]", usage: "Usage") -> dict[str, Any]:
    now = time.time()
    return {
        "path": str(path),
        "allocated_bytes": usage.allocated_bytes,
        "quota_bytes": usage.quota_bytes,
        "free_bytes": usage.free_bytes,
        "segments": usage.segments,
        "objects": usage.objects,
        "namespaces": [_namespace(info, now) for info in namespaces],
    }


def _namespace(info: "NamespaceInfo", now: float) -> dict[str, Any]:
    fields = {name: _plain(value) for name, value in info.namespace.fields}
    return {
        "id": info.namespace.id.hex(),
        "fields": fields,
        "blocks": info.blocks,
        "tails": info.tails,
        "objects": info.objects,
        "raw_bytes": info.raw_bytes,
        "stored_bytes": info.stored_bytes,
        "saved_ratio": round(_saved(info), 4),
        "hidden": info.hidden_since is not None,
        "reason": info.reason,
        "parts": {part.name.lower(): count for part, count in info.parts.items()},
        "created_age_s": round(max(0.0, now - info.created), 1),
        "last_used_age_s": round(max(0.0, now - info.last_used), 1),
    }


def _plain(value: FieldValue) -> bool | int | float | str:
    return value.hex() if isinstance(value, bytes) else value


def _print_tables(path: Path, namespaces: "list[NamespaceInfo]", usage: "Usage") -> None:
    from rich.console import Console  # noqa: PLC0415 — only for people
    from rich.table import Table  # noqa: PLC0415

    now = time.time()
    table = Table(box=None, pad_edge=False)
    for column in (
        *("namespace", "blocks", "tails", "bytes", "raw", "saved", "parts", "used", "made"),
    ):
        table.add_column(column, justify="left" if column in ("namespace", "parts") else "right")
    for info in namespaces:
        table.add_row(
            info.namespace.id.hex(),
            f"{info.blocks:,}",
            f"{info.tails:,}",
            format_size(info.stored_bytes),
            format_size(info.raw_bytes),
            f"{_saved(info):.0%}",
            " ".join(f"{part.name.lower()}:{count:,}" for part, count in info.parts.items()),
            _age(now - info.last_used),
            _age(now - info.created),
        )
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    console.print(
        f"{path}: {format_size(usage.allocated_bytes)} of {format_size(usage.quota_bytes)}, "
        f"segments: {usage.segments:,}, {format_size(usage.free_bytes)} free on the filesystem",
        soft_wrap=True,
    )
    if not namespaces:
        console.print("no namespaces: nothing was stored yet")
        return
    console.print(table)
    for info in namespaces:
        words = [f"{name}={_short(value)}" for name, value in info.namespace.fields]
        console.print(f"{info.namespace.id.hex()}: {' '.join(words)}", soft_wrap=True)
        if info.hidden_since is not None:
            since = _age(now - info.hidden_since)
            text = f"{info.namespace.id.hex()}: HIDDEN {since}: {info.reason}"
            console.print(text, soft_wrap=True)


def _saved(info: "NamespaceInfo") -> float:
    """What compression saves, as a share of the state as the engine gave it."""
    return max(0.0, 1 - info.stored_bytes / info.raw_bytes) if info.raw_bytes else 0.0


def _short(value: FieldValue) -> str:
    """A field for people: digests by their first bytes."""
    return f"{value[:6].hex()}…" if isinstance(value, bytes) else str(value)


def _age(seconds: float) -> str:
    """``"3 h ago"``: one unit is enough to see what is old."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"

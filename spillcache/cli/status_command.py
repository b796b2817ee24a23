"""``spillcache status``: how a cache directory stands, and how well a server hits it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.cli import care
from spillcache.cli.server_counters import ask, server_lines
from spillcache.config import counted, format_age, format_size

if TYPE_CHECKING:
    from spillcache.store.view import StoreView


def status(
    *,
    directory: care.Directory = None,
    cache_disk: care.CacheDisk = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also ask this server, as http://127.0.0.1:8080."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="LLAMA_API_KEY", metavar="KEY", help="The server's."),
    ] = None,
    cacert: Annotated[
        Path | None,
        typer.Option(
            "--cacert", metavar="FILE", help="The server's certificate, if it is its own."
        ),
    ] = None,
    as_json: care.AsJson = False,
) -> None:
    """Show how a cache directory stands: quota, space, namespaces; with --url also a server."""
    path = care.directory_of(directory, cache_disk, "status")
    report = describe(path, care.look(path))
    if url is not None:
        report["server"] = ask(url, api_key, cacert)
    if as_json:
        care.print_json(report)
    else:
        _print(report)


def describe(path: Path, view: "StoreView") -> dict[str, Any]:
    """What there is to say of a store."""
    usage, namespaces = view.usage(), view.namespaces()
    return {
        "path": str(path),
        "store_id": view.store_id.hex(),
        "quota_bytes": usage.quota_bytes,
        "used_bytes": usage.allocated_bytes,
        "free_bytes": usage.free_bytes,
        "min_free_bytes": usage.min_free,
        "max_age_s": view.max_age_s,
        "segments": usage.segments,
        "objects": usage.objects,
        "raw_bytes": sum(each.raw_bytes for each in namespaces),
        "stored_bytes": sum(each.stored_bytes for each in namespaces),
        "namespaces": len(namespaces),
        "hidden_namespaces": sum(each.hidden_since is not None for each in namespaces),
        "quarantined": view.quarantined,
        "writers": [pid for pid in view.writers if care.is_alive(pid)],
    }


def _print(report: dict[str, Any]) -> None:
    used, quota = report["used_bytes"], report["quota_bytes"]
    print(f"{report['path']}: {format_size(used)} of {format_size(quota)} ({used / quota:.0%})")
    print(
        f"filesystem: {format_size(report['free_bytes'])} free, of which "
        f"{format_size(report['min_free_bytes'])} stay free"
    )
    hidden = report["hidden_namespaces"]
    print(
        f"holds: {counted(report['objects'], 'object')} in "
        f"{counted(report['namespaces'], 'namespace')}"
        f"{f' ({hidden} hidden)' if hidden else ''}, {counted(report['segments'], 'segment')}, "
        f"{format_size(report['stored_bytes'])} for {format_size(report['raw_bytes'])} of state"
    )
    if report["max_age_s"] is not None:
        print(f"what is not used for {format_age(report['max_age_s'])} goes")
    if report["quarantined"]:
        print(
            f"quarantine: {counted(report['quarantined'], 'damaged record')}; see spillcache verify"
        )
    writers = ", ".join(str(pid) for pid in report["writers"])
    print(
        f"written by process {writers}" if writers else "no process that runs now has written to it"
    )
    if "server" in report:
        print(*server_lines(report["server"]), sep="\n")

"""``spillcache status``: how a cache directory stands, and how well a server hits it."""

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.cli import care
from spillcache.config import format_size
from spillcache.errors import ConfigError

if TYPE_CHECKING:
    from spillcache.store.view import StoreView

_TIMEOUT_S = 5.0
_MOST_BYTES = 8 << 20
_SOURCES = ("live", "ram", "disk", "computed")
_COUNTER = re.compile(r'spillcache_(\w+)_total(?:\{(?:source|tier)="(\w+)"\})? ([\d.e+]+)')


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
    as_json: care.AsJson = False,
) -> None:
    """Show how a cache directory stands: quota, space, namespaces; with --url also a server."""
    path = care.directory_of(directory, cache_disk, "status")
    report = describe(path, care.look(path))
    if url is not None:
        report["server"] = ask(url, api_key)
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


def ask(url: str, api_key: str | None = None) -> dict[str, Any]:
    """A server's health, and its counters of where prompt tokens came from. Raises ConfigError."""
    base = url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"--url: {url!r} is not a URL; write for example http://127.0.0.1:8080")
    try:
        health = json.loads(_get(f"{base}/health", api_key))
        if not isinstance(health, dict):
            raise ValueError("its /health is no object")
        counters = _counters(_get(f"{base}/metrics", api_key).decode())
    except (OSError, ValueError, HTTPException) as error:
        raise ConfigError(f"--url: {url} does not answer as a server of ours: {error}") from error
    tokens = {name: counters.get(("prompt_tokens", name), 0) for name in _SOURCES}
    reused = sum(tokens.values()) - tokens["computed"]
    return {
        "url": base,
        "status": health.get("status") or health.get("error", {}).get("message"),
        "cache": health.get("cache", {}),
        "prompt_tokens": tokens,
        "hit_ratio": round(reused / sum(tokens.values()), 4) if any(tokens.values()) else None,
        "restored_bytes_disk": counters.get(("restored_bytes", "disk"), 0),
        "spilled_bytes": counters.get(("spilled_bytes", ""), 0),
    }


def _get(url: str, api_key: str | None) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 — http only
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return bytes(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError(f"--url: {url} wants a key; give it with --api-key") from error
        return error.read(_MOST_BYTES)  # 503 while it loads; the body says so


def _counters(text: str) -> dict[tuple[str, str], int]:
    found = (_COUNTER.fullmatch(line) for line in text.splitlines())
    return {(m[1], m[2] or ""): int(float(m[3])) for m in found if m is not None}


def _print(report: dict[str, Any]) -> None:
    used, quota = report["used_bytes"], report["quota_bytes"]
    print(f"{report['path']}: {format_size(used)} of {format_size(quota)} ({used / quota:.0%})")
    print(
        f"filesystem: {format_size(report['free_bytes'])} free, of which "
        f"{format_size(report['min_free_bytes'])} stay free"
    )
    hidden = report["hidden_namespaces"]
    print(
        f"holds: {report['objects']:,} objects in {report['namespaces']:,} namespaces"
        f"{f' ({hidden} hidden)' if hidden else ''}, {report['segments']:,} segments, "
        f"{format_size(report['stored_bytes'])} for {format_size(report['raw_bytes'])} of state"
    )
    if report["max_age_s"] is not None:
        print(f"what is not used for {report['max_age_s'] / 86400:.1f} days goes")
    if report["quarantined"]:
        print(f"quarantine: {report['quarantined']} damaged records; see spillcache verify")
    writers = ", ".join(str(pid) for pid in report["writers"])
    print(f"written by process {writers}" if writers else "nobody writes to it now")
    if "server" in report:
        _print_server(report["server"])


def _print_server(server: dict[str, Any]) -> None:
    disk = server["cache"].get("disk", {})
    state = "on" if disk.get("on") else f"off: {disk.get('reason') or 'not said'}"
    print(f"{server['url']}: {server['status']}; disk tier {state}")
    tokens, ratio = server["prompt_tokens"], server["hit_ratio"]
    if ratio is None:
        print("no prompt was answered yet")
        return
    words = ", ".join(f"{count:,} {name}" for name, count in tokens.items())
    print(f"prompt tokens: {words}; {ratio:.1%} reused")

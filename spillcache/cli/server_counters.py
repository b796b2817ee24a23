"""What a running server says of itself: its health, and what became of tokens and blocks."""

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from http.client import HTTPException
from pathlib import Path
from typing import Any

from spillcache.config import expanded, format_size
from spillcache.errors import ConfigError, ServerSilent

_TIMEOUT_S = 5.0
_MOST_BYTES = 8 << 20
_SOURCES = ("live", "ram", "disk", "computed")
_TIERS = ("ram", "disk")

Values = dict[str, dict[tuple[str, ...], int]]
"""By metric, without prefix and ``_total``, and by the values of its labels."""


def ask(url: str, api_key: str | None = None, cacert: Path | None = None) -> dict[str, Any]:
    """A server's health and counters since its start; ``cacert``: the certificate to trust.

    Raises ConfigError for flags that are wrong or missing, ServerSilent where no server answers.
    """
    base = url.rstrip("/")
    if not _is_url(base):
        raise ConfigError(f"--url: {url!r} is not a URL; write for example http://127.0.0.1:8080")
    trust = _trust(cacert)
    try:
        health = json.loads(_get(f"{base}/health", api_key, trust))
        if not isinstance(health, dict):
            raise ValueError("its /health is no object")
        values = _values(_get(f"{base}/metrics", api_key, trust).decode())
    except (OSError, ValueError, HTTPException) as error:
        raise ServerSilent(f"--url: {_why_silent(base, error)}") from error
    return {
        "url": base,
        "status": health.get("status") or health.get("error", {}).get("message"),
        "cache": health.get("cache", {}),
        **_tokens(values),
        **_blocks(values),
    }


def _tokens(values: Values) -> dict[str, Any]:
    tokens = {name: values["prompt_tokens"].get((name,), 0) for name in _SOURCES}
    reused = sum(tokens.values()) - tokens["computed"]
    restored = {tier: values["restored_tokens"].get((tier,), 0) for tier in _TIERS}
    return {
        "prompt_tokens": tokens,
        "hit_ratio": round(reused / sum(tokens.values()), 4) if any(tokens.values()) else None,
        "restored_tokens": restored,
        "refused_tokens": _by_reason(values["refused_tokens"]),
        "restored_bytes_disk": values["restored_bytes"].get(("disk",), 0),
    }


def _blocks(values: Values) -> dict[str, Any]:
    return {
        "spilled_blocks": values["spilled_blocks"].get((), 0),
        "spilled_bytes": values["spilled_bytes"].get((), 0),
        "unsaved_blocks": values["unsaved_blocks"].get((), 0),
        "dropped_blocks": _by_reason(values["dropped_blocks"]),
        "condemned_blocks": values["condemned_blocks"].get((), 0),
    }


def _by_reason(counts: dict[tuple[str, ...], int]) -> dict[str, dict[str, int]]:
    """From (reason, tier) to tier → reason; labels come in the order of their names."""
    found: dict[str, dict[str, int]] = {tier: {} for tier in _TIERS}
    for labels, count in counts.items():
        if len(labels) == 2 and labels[1] in found and count:
            found[labels[1]][labels[0]] = count
    return found


def server_lines(server: dict[str, Any]) -> list[str]:
    """The same for people."""
    disk = server["cache"].get("disk", {})
    state = "on" if disk.get("on") else f"off: {disk.get('reason') or 'not said'}"
    lines = [f"{server['url']}: {server['status']}; disk tier {state}"]
    if limit := disk.get("write_limit"):
        lines.append(
            f"written within a day: {format_size(limit['written_bytes'])} of "
            f"{format_size(limit['bytes_day'])}"
            f"{'; nothing more is written for now' if limit['reached'] else ''}"
        )
    lines += _prompt_lines(server)
    lines.append(
        f"to disk: {server['spilled_blocks']:,} blocks "
        f"({format_size(server['spilled_bytes'])}), "
        f"{server['unsaved_blocks']:,} are only in RAM so far"
        f"{_reasons('dropped', server['dropped_blocks'])}"
    )
    if server["condemned_blocks"]:
        lines.append(f"failed in use and deleted: {server['condemned_blocks']:,} blocks")
    return lines


def _prompt_lines(server: dict[str, Any]) -> list[str]:
    tokens, ratio = server["prompt_tokens"], server["hit_ratio"]
    if ratio is None:
        return ["no prompt was answered yet"]
    words = ", ".join(f"{count:,} {name}" for name, count in tokens.items())
    restored = ", ".join(f"{count:,} {tier}" for tier, count in server["restored_tokens"].items())
    return [
        f"prompt tokens: {words}; {ratio:.1%} reused",
        f"restored tokens: {restored}{_reasons('refused', server['refused_tokens'])}",
    ]


def _reasons(what: str, by_tier: dict[str, dict[str, int]]) -> str:
    named = [
        f"{count:,} {tier} {reason}"
        for tier, counts in by_tier.items()
        for reason, count in counts.items()
    ]
    return f"; {what}: {', '.join(named)}" if named else ""


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and not re.search(r"[\s\x00-\x1f]", text)


def _trust(cacert: Path | None) -> ssl.SSLContext | None:
    if cacert is None:
        return None
    try:
        return ssl.create_default_context(cafile=expanded(cacert))
    except ssl.SSLError as error:
        raise ConfigError(f"--cacert: {cacert} holds no certificate in PEM") from error
    except OSError as error:
        raise ConfigError(f"--cacert: {cacert}: {error.strerror}") from error


def _why_silent(base: str, error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return (
            f"nothing listens at {base} (connection refused); start the server, or give the "
            "address after 'listening on' in its log"
        )
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {base} is not trusted ({reason.verify_message}); if it is your "
            "own, give it with --cacert FILE"
        )
    if isinstance(reason, TimeoutError):
        return f"{base} does not answer within {_TIMEOUT_S:g} s"
    return f"{base} does not answer as a server of ours: {reason}"


def _get(url: str, api_key: str | None, trust: ssl.SSLContext | None) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 — http only
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=_TIMEOUT_S, context=trust
        ) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError(f"--url: {url} wants a key; give it with --api-key") from error
        return error.read(_MOST_BYTES)  # 503 while it loads; the body says so


def _values(text: str) -> Values:
    from prometheus_client.parser import (  # noqa: PLC0415 — not for a look at a directory
        text_string_to_metric_families,
    )

    found: Values = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("spillcache_") and sample.value >= 0:
                name = sample.name.removeprefix("spillcache_").removesuffix("_total")
                labels = tuple(sample.labels[key] for key in sorted(sample.labels))
                found[name][labels] = int(sample.value)
    return found

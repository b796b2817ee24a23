"""How much memory the RAM tier may take: what was asked for, clamped to what container and machine
can give.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from spillcache.config import MIB, NO_LIMIT_BYTES, CacheConfig, format_size

log = logging.getLogger("spillcache.cache")

SHARE = 0.8
"""Of the memory that is available when the tier opens, with the model already loaded."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """What machine and cgroup can still give, or None where nothing tells. Any thread."""
    found = [a for a in (_machine(root), _cgroup(root)) if a is not None]
    return min(found, default=None)


def clamp_ram(asked_bytes: int, root: Path = Path("/")) -> int:
    """``asked_bytes``, or less when the machine or the cgroup can't give that; warns then, unless
    no limit was asked for. That, where nothing tells what there is, comes to the default.

    ``root``: where /proc and /sys are. Sources: proc(5), the kernel's cgroup-v1 and cgroup-v2
    documents.
    """
    available = available_bytes(root)
    if available is None:
        return CacheConfig().ram_bytes if asked_bytes >= NO_LIMIT_BYTES else asked_bytes
    most = int(available * SHARE)
    if asked_bytes <= most:
        return asked_bytes
    if asked_bytes >= NO_LIMIT_BYTES:
        return most
    log.warning(
        "--cache-ram %d MiB is more than this machine or container can give: using %s",
        asked_bytes // MIB,
        format_size(most),
    )
    return most


def _machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


@dataclass(frozen=True, slots=True)
class _Kind:
    """The files of one version of cgroups."""

    base: str
    limits: tuple[str, ...]
    used: str
    reclaimable: str
    """In memory.stat: pages of files that were not used of late; they go when memory is needed."""


_V2 = _Kind("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Kind(
    "sys/fs/cgroup/memory",
    ("memory.limit_in_bytes", "memory.soft_limit_in_bytes"),
    "memory.usage_in_bytes",
    "total_inactive_file",
)


def _cgroup(root: Path) -> int | None:
    """What is left below the tightest memory limit of our cgroup and its ancestors."""
    left: list[int] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = _V1 if controllers else _V2
        base = root / kind.base
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            left += _left(group, kind)
            if group == base:
                break
    return min(left, default=None)


def _left(group: Path, kind: _Kind) -> list[int]:
    limits = [most for name in kind.limits if (most := _number(group / name)) is not None]
    used = _number(group / kind.used)
    if not limits or used is None:
        return []
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return [max(0, min(limits) - max(0, used - stat.get(kind.reclaimable, 0)))]


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

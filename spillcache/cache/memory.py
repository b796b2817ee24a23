"""How much memory the RAM tier may take: what was asked for, clamped to what container and machine
can give.
"""

import logging
from pathlib import Path

from spillcache.config import MIB, NO_LIMIT_BYTES, CacheConfig, format_size

log = logging.getLogger("spillcache.cache")

SHARE = 0.8
"""Of the memory that is available when the tier opens, with the model already loaded."""


def clamp_ram(asked_bytes: int, root: Path = Path("/")) -> int:
    """``asked_bytes``, or less when the machine or the cgroup can't give that; warns then, unless
    no limit was asked for. That, where nothing tells what there is, comes to the default.

    ``root``: where /proc and /sys are. Sources: proc(5), the kernel's cgroup-v1 and cgroup-v2
    documents.
    """
    available = [a for a in (_machine(root), _cgroup(root)) if a is not None]
    if not available:
        return CacheConfig().ram_bytes if asked_bytes >= NO_LIMIT_BYTES else asked_bytes
    most = int(min(available) * SHARE)
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


def _cgroup(root: Path) -> int | None:
    """What is left below the tightest memory limit of our cgroup and its ancestors."""
    left: list[int] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                left.append(max(0, most - now))
            if group == base:
                break
    return min(left, default=None)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

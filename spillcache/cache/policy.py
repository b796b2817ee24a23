"""Which prefixes can be restored, and what should go first; pure functions."""

from collections.abc import Collection, Iterator, Sequence

from spillcache.state import Geometry, Part

RANKS = {Part.KV: 0, Part.BOUNDARY: 1, Part.WINDOW: 2}
"""The store evicts higher ranks first: a window serves only prefixes that end near it, kv serves
all longer ones. But without any window or boundary kv serves nothing: see ``rank``.
"""
WINDOWS_PER_STRIDE = 8
"""Of so many windows' lengths one keeps its windows as long as kv (bench/LOG.md)."""


def rank(part: Part, geometry: Geometry, block: int, blocks: int) -> int:
    """The rank of a part of block ``block`` in a chain that now ends after ``blocks`` blocks.

    What a restore of the whole chain needs goes with its kv, and so do the windows before every
    8th multiple of a window's length, from which a branch in the middle starts; all other windows
    and boundaries go before any kv.
    """
    w = geometry.window_blocks
    kept = part in needed(geometry, block, blocks)
    if part is Part.WINDOW:
        stride = WINDOWS_PER_STRIDE * w
        kept = kept or block % stride >= stride - w
    return 0 if kept else RANKS[part]


def restorable(present: Sequence[Collection[Part]], geometry: Geometry, limit: int) -> int:
    """The most blocks, at most ``limit``, that can be restored when block i has the parts
    ``present[i]``.
    """
    return next(prefixes(present, geometry, limit), 0)


def prefixes(present: Sequence[Collection[Part]], geometry: Geometry, limit: int) -> Iterator[int]:
    """Every number of blocks that can be restored, as ``restorable``, the largest first."""
    limit = min(limit, _reach(present, geometry), len(present))
    windows = _runs(present[:limit], Part.WINDOW)
    for blocks in range(limit, 0, -1):
        if geometry.has_boundary and Part.BOUNDARY not in present[blocks - 1]:
            continue
        if windows[blocks - 1] >= min(geometry.window_blocks, blocks):
            yield blocks


def tail_places(present: Sequence[Collection[Part]], geometry: Geometry, least: int) -> list[int]:
    """After how many blocks, at least ``least``, a tail could be restored, if there is one: its own
    parts, with the boundary among them, stand for what a whole block would need there.
    """
    windows = [0, *_runs(present, Part.WINDOW)]
    reach = _reach(present, geometry)
    return [n for n in range(least, reach + 1) if windows[n] >= min(geometry.window_blocks, n)]


def _reach(present: Sequence[Collection[Part]], geometry: Geometry) -> int:
    """How many blocks in a row have the part that every block of a prefix needs."""
    if not geometry.has_kv:
        return len(present)
    missing = (i for i, parts in enumerate(present) if Part.KV not in parts)
    return next(missing, len(present))


def _runs(present: Sequence[Collection[Part]], part: Part) -> list[int]:
    """For every block, how many in a row up to and including it have ``part``."""
    runs, run = [], 0
    for parts in present:
        run = run + 1 if part in parts else 0
        runs.append(run)
    return runs


def needed(geometry: Geometry, block: int, blocks: int, *, ends: bool = True) -> tuple[Part, ...]:
    """The parts of block ``block`` that restoring a prefix of ``blocks`` blocks needs. ``ends``:
    whether it ends there, rather than with a tail, which needs all of its own parts.
    """
    wanted = (
        (Part.KV, geometry.has_kv),
        (Part.WINDOW, block >= blocks - geometry.window_blocks),
        (Part.BOUNDARY, geometry.has_boundary and block == blocks - 1 and ends),
    )
    return tuple(part for part, yes in wanted if yes)

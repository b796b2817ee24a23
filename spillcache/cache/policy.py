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
    limit = min(limit, len(present))
    if geometry.has_kv:
        missing = (i for i in range(limit) if Part.KV not in present[i])
        limit = next(missing, limit)
    windows = _runs(present[:limit], Part.WINDOW)
    for blocks in range(limit, 0, -1):
        if geometry.has_boundary and Part.BOUNDARY not in present[blocks - 1]:
            continue
        if windows[blocks - 1] >= min(geometry.window_blocks, blocks):
            yield blocks


def _runs(present: Sequence[Collection[Part]], part: Part) -> list[int]:
    """For every block, how many in a row up to and including it have ``part``."""
    runs, run = [], 0
    for parts in present:
        run = run + 1 if part in parts else 0
        runs.append(run)
    return runs


def needed(geometry: Geometry, block: int, blocks: int) -> tuple[Part, ...]:
    """The parts of block ``block`` that restoring a prefix of ``blocks`` blocks needs."""
    wanted = (
        (Part.KV, geometry.has_kv),
        (Part.WINDOW, block >= blocks - geometry.window_blocks),
        (Part.BOUNDARY, geometry.has_boundary and block == blocks - 1),
    )
    return tuple(part for part, yes in wanted if yes)

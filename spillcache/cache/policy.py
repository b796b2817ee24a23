"""Which prefixes can be restored, and what should go first; pure functions."""

from collections.abc import Collection, Iterator, Sequence

from spillcache.state import Geometry, Part

RANKS = {Part.KV: 0, Part.BOUNDARY: 1, Part.WINDOW: 2}
"""The store evicts higher ranks first: a window serves only prefixes that end near it, kv serves
all longer ones.
"""


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

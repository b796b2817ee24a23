"""The prefix tree as people can read it: runs of blocks that nothing branches off within. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spillcache.cache.held import HeldBlock
from spillcache.chain import BlockHash

_Key = tuple[bytes, BlockHash]
_NAME_BYTES = 4
"""Of a hash's end: its beginning is that of its neighbours."""


@dataclass(slots=True)
class Run:
    """Blocks that follow one another, up to where the next ones differ, or to the end."""

    blocks: list[HeldBlock] = field(default_factory=list)
    following: list["Run"] = field(default_factory=list)
    last_use: float = 0.0
    """Of it and all that follows."""


def runs(blocks: Iterable[HeldBlock]) -> list[Run]:
    """The runs that begin where nothing is known before them; the most recently used first, here
    and within each run's ``following``.
    """
    known: dict[_Key, HeldBlock] = {(each.namespace_id, each.hash): each for each in blocks}
    after: dict[_Key, list[HeldBlock]] = {}
    firsts = []
    for each in known.values():
        parent = (each.namespace_id, each.parent)
        if parent in known:
            after.setdefault(parent, []).append(each)
        else:
            firsts.append(each)
    made: list[Run] = []
    top = [Run([each]) for each in firsts]
    left = list(top)
    while left:
        run = left.pop()
        made.append(run)
        while True:
            end = run.blocks[-1]
            next_ones = after.get((end.namespace_id, end.hash), ())
            if len(next_ones) != 1:
                break
            run.blocks.append(next_ones[0])
        run.following = [Run([each]) for each in next_ones]
        left += run.following
    for run in reversed(made):  # what follows comes before what it follows
        own = (each.last_use for each in run.blocks)
        run.last_use = max(*own, *(each.last_use for each in run.following), 0.0)
        run.following.sort(key=lambda each: -each.last_use)
    return sorted(top, key=lambda each: -each.last_use)


def listed(
    top: Sequence[Run], most: int, live: Collection[BlockHash], block_tokens: int, now: float
) -> tuple[list[dict[str, Any]], bool]:
    """Up to ``most`` runs for JSON, each after the one that it follows, and whether these are all.

    ``live``: the blocks that slots hold. Flat, with the place of the run before (``after``), so
    that a tree of any depth can be read.
    """
    rows: list[dict[str, Any]] = []
    left: list[tuple[Run, int | None]] = [(run, None) for run in reversed(top)]
    while left and len(rows) < most:
        run, after = left.pop()
        left += [(each, len(rows)) for each in reversed(run.following)]
        rows.append({"after": after, **_facts(run, live, block_tokens, now)})
    return rows, not left


def _facts(run: Run, live: Collection[BlockHash], block_tokens: int, now: float) -> dict[str, Any]:
    first = run.blocks[0]
    return {
        "name": first.hash[-_NAME_BYTES:].hex(),
        "namespace": first.namespace_id[:_NAME_BYTES].hex(),
        "start": first.index * block_tokens,
        "tokens": _tokens(run.blocks),
        "blocks": len(run.blocks),
        "live_tokens": _tokens(each for each in run.blocks if each.hash in live),
        "ram_tokens": _tokens(each for each in run.blocks if each.ram_bytes),
        "disk_tokens": _tokens(each for each in run.blocks if each.disk_bytes),
        "ram_bytes": sum(each.ram_bytes for each in run.blocks),
        "disk_bytes": sum(each.disk_bytes for each in run.blocks),
        "unsaved_blocks": sum(each.unsaved for each in run.blocks),
        "used_s_ago": round(max(0.0, now - run.last_use), 1),
    }


def _tokens(blocks: Iterable[HeldBlock]) -> int:
    return sum(each.tokens for each in blocks)

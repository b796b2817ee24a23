"""Whether restoring a prefix is quicker than computing it, and how much of it; pure.

What a prefix costs from the tiers grows with its blocks, but not evenly: windows are read for its
last blocks only. So every prefix that can be restored is a candidate, and what is left of the
prompt is computed after each of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

from spillcache.config import format_size
from spillcache.state import Geometry, Part
from spillcache.store.read_meter import Reading

LEAST_GAIN_S = 0.02
"""What is not quicker by so much is not worth a decision: estimates are no better, nobody notices,
and a restore leaves the processor to others.
"""
_PLAINLY = 0.05
"""A restore that takes no more than this share of the computing is not looked at further."""

Word = Literal["miss", "restore", "partial", "compute"]


class Rates(Protocol):
    """What was measured, in seconds; None: nothing like it yet."""

    def prefill_s(self, start: int, stop: int) -> float | None:
        """Computing the tokens from position ``start`` to ``stop``."""

    def restore_s(self, blocks: int, disk_bytes: int) -> float | None:
        """Restoring ``blocks`` blocks, ``disk_bytes`` of them from disk."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``blocks`` blocks are to be restored.

    miss: the tiers hold no more than the engine does; restore: all that they hold; partial: less,
    because the rest is computed sooner; compute: none of it, likewise. The figures are those of
    all that the tiers hold; None where nothing was measured.
    """

    word: Word
    blocks: int
    held: int = 0
    disk_bytes: int = 0
    restore_s: float | None = None
    compute_s: float | None = None

    @property
    def tier(self) -> Literal["ram", "disk"]:
        """The slowest that holds any of it."""
        return "disk" if self.disk_bytes else "ram"

    def left(self, live_tokens: int, block_tokens: int) -> int:
        """How many tokens are computed although a tier holds them."""
        return max(0, self.held * block_tokens - max(live_tokens, self.blocks * block_tokens))

    def __str__(self) -> str:
        """For the log, where it was a matter of speed."""
        if self.restore_s is None or self.compute_s is None:
            return self.word
        what = f"the first {self.blocks} of {self.held} blocks are restored"
        if not self.blocks:
            what = f"{self.held} blocks are computed, not restored"
        read = f"reading {format_size(self.disk_bytes)}" if self.disk_bytes else "importing"
        return f"{what}: {read} would take {self.restore_s:.2f} s, computing {self.compute_s:.2f} s"


def choose(
    prefixes: Iterable[int],
    live_tokens: int,
    block_tokens: int,
    disk_bytes: Callable[[int], int],
    rates: Rates | None,
) -> Verdict:
    """How much of what the tiers hold to restore.

    ``prefixes``: every number of blocks that can be restored, the largest first. ``live_tokens``:
    what the engine could go on from instead. ``disk_bytes``: of a prefix, what lies on disk only.
    ``rates``: None where that is not to be asked. Where nothing was measured yet, all of it is
    restored: that is how it gets measured.
    """
    candidates = iter(prefixes)
    held = next(candidates, 0)
    end = held * block_tokens
    if end <= live_tokens:
        return Verdict("miss", 0)
    if rates is None:
        return Verdict("restore", held, held)
    size = disk_bytes(held)
    compute_s, restore_s = rates.prefill_s(live_tokens, end), rates.restore_s(held, size)
    verdict = Verdict("restore", held, held, size, restore_s, compute_s)
    if compute_s is None or restore_s is None or restore_s <= _PLAINLY * compute_s:
        return verdict
    best_s, best = restore_s, held
    for blocks in candidates:
        start = blocks * block_tokens
        if start <= live_tokens:
            break
        read_s, rest_s = rates.restore_s(blocks, disk_bytes(blocks)), rates.prefill_s(start, end)
        if read_s is not None and rest_s is not None and read_s + rest_s < best_s:
            best_s, best = read_s + rest_s, blocks
    if restore_s <= min(best_s, compute_s) + LEAST_GAIN_S:
        return verdict
    if best_s <= compute_s + LEAST_GAIN_S:
        return Verdict("partial", best, held, size, restore_s, compute_s)
    return Verdict("compute", 0, held, size, restore_s, compute_s)


def bytes_s_of(pace: Reading) -> float | None:
    """What the disk gives, from what was read and how long that has taken; None before anything
    can be told.

    Before the first read is over, what is under way counts as if it came at once: a disk that is
    only slow to begin has its chance. Then half of it does, for reads are as likely to have just
    begun as to be nearly done.
    """
    if pace.busy_s <= 0:
        return None
    under_way = pace.under_way_bytes / 2 if pace.done_bytes else pace.under_way_bytes
    return (pace.done_bytes + under_way) / pace.busy_s


def gives_up(left_bytes: int, bytes_s: float, compute_s: float) -> bool:
    """Whether a restore under way has become slower than computing what it still has to bring.

    ``left_bytes``: what has not come from disk yet.
    """
    return left_bytes > bytes_s * (compute_s + LEAST_GAIN_S)


def disk_bytes_of(
    on_disk: Sequence[Mapping[Part, int]], geometry: Geometry
) -> Callable[[int], int]:
    """The bytes that a prefix of n blocks needs from disk, as a function of n; ``on_disk``: the
    size of each part of each block that is there and in no quicker tier.
    """
    kv, window = (
        list(accumulate((parts.get(part, 0) for parts in on_disk), initial=0))
        for part in (Part.KV, Part.WINDOW)
    )

    def of(blocks: int) -> int:
        oldest = max(0, blocks - geometry.window_blocks)
        boundary = on_disk[blocks - 1].get(Part.BOUNDARY, 0) if geometry.has_boundary else 0
        return kv[blocks] + window[blocks] - window[oldest] + boundary

    return of

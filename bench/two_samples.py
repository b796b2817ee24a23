"""Do two samples of times come from one distribution? Rank sums: no assumption of their shape."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Of a two-sided Mann-Whitney test, normal approximation with ties corrected."""

    z: float
    p: float
    """How likely so large a difference is where there is none."""
    auc: float
    """How often a time of the first is longer than one of the second; 0.5: as often as not."""


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> Verdict:
    """At least 20 of each, for the approximation."""
    n, m = len(first), len(second)
    ordered = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    rank_sum, ties, at = 0.0, 0.0, 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][0] == ordered[at][0]:
            end += 1
        rank = (at + 1 + end) / 2
        rank_sum += rank * sum(1 for _, which in ordered[at:end] if which == 0)
        ties += (end - at) ** 3 - (end - at)
        at = end
    u = rank_sum - n * (n + 1) / 2
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    z = (u - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0
    return Verdict(z, math.erfc(abs(z) / math.sqrt(2)), u / (n * m))

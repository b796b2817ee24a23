"""The two-sample test, what the bench makes of it, and a short run."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tenants import Row
from two_samples import Verdict, mann_whitney

BENCH = Path(__file__).parents[2] / "bench" / "tenants.py"


def test_known_ranks() -> None:
    """Every value of the first is longer than all of the second, and the other way round."""
    low, high = list(range(20)), list(range(100, 120))
    assert mann_whitney(high, low).auc == 1
    assert mann_whitney(low, high).auc == 0
    assert mann_whitney(high, low).p < 1e-6
    # U = 0, its mean 200, its deviation sqrt(20 * 20 * 41 / 12).
    assert mann_whitney(low, high).z == pytest.approx(-200 / (20 * 20 * 41 / 12) ** 0.5)


def test_ties_say_nothing() -> None:
    same = mann_whitney([5.0] * 30, [5.0] * 30)
    assert (same.z, same.p, same.auc) == (0, 1, 0.5)
    mixed = mann_whitney([1.0, 2.0] * 20, [1.0, 2.0] * 20)
    assert mixed.auc == 0.5
    assert mixed.p == pytest.approx(1)


def test_what_is_alike_is_rarely_blamed_and_what_is_not_is_seen() -> None:
    source = random.Random(1)

    def times(shift: float) -> list[float]:
        return [shift + source.lognormvariate(0, 0.3) for _ in range(200)]

    blamed = sum(mann_whitney(times(0), times(0)).p < 0.05 for _ in range(200))
    assert 1 <= blamed <= 22
    assert mann_whitney(times(0.3), times(0)).p < 1e-6


@pytest.mark.parametrize(
    ("kind", "p", "cached", "good"),
    [
        ("keys", 0.4, 0, True),
        ("keys", 0.0001, 0, False),
        ("salts", 0.4, 64, False),
        ("same", 1e-9, 640, True),
        ("same", 0.4, 640, False),
        ("same", 1e-9, 0, False),
    ],
)
def test_what_a_row_must_show(kind: str, p: float, cached: int, good: bool) -> None:
    assert Row(kind, "live", Verdict(1.0, p, 0.5), 1.0, 1.0, cached).good is good


@pytest.mark.model
def test_a_short_run() -> None:
    """Whether times differ is for the bench: a few probes on a busy machine say little."""
    command = [sys.executable, str(BENCH), "--probes", "3", "--prompt-tokens", "129"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = {(row["kind"], row["where"]): row["cached_tokens"] for row in found["rows"]}
    assert rows == {
        (kind, where): 384 if kind == "same" else 0
        for kind in ("keys", "salts", "same")
        for where in ("live", "kept")
    }

"""What bench/interference.py computes from calls and tokens."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from interference import Runs, _overlaps
from pace_rig import Answer, Call, Gap, Rig, median_p99, p99_ratio, percentile


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(list(range(200)), 0.99) == 198
    assert percentile([5.0], 0.5) == 5.0


def test_ratios_are_those_of_medians_over_runs() -> None:
    quiet, busy = [[10.0], [20.0], [90.0]], [[30.0], [30.0], [600.0]]
    assert median_p99(quiet) == 20.0
    assert p99_ratio(quiet, busy) == 1.5


def test_a_pause_with_the_others_tokens_in_it_is_shared() -> None:
    class Engine:
        calls = (
            Call(0.0, (1,)),
            Call(1.1, (1,)),
            Call(2.2, (0,)),
            Call(2.3, (1,)),
            Call(3.4, (1,)),
        )

    class Fake:
        engine = Engine()

    answer = Answer(4, times=[1.0, 2.0, 3.0, 4.0], first_call=1)
    gaps = Rig.gaps(Fake(), answer)  # type: ignore[arg-type]
    assert [gap.shared for gap in gaps] == [False, True, False]
    assert [gap.ms for gap in gaps] == [1000.0] * 3
    assert answer.tokens_per_s == pytest.approx(1.0)


def test_pauses_overlap_spans() -> None:
    gap = Gap(1.0, 2.0, False)
    assert _overlaps(gap, [(1.5, 1.6)])
    assert _overlaps(gap, [(0.0, 0.5), (1.9, 5.0)])
    assert not _overlaps(gap, [(2.0, 3.0), (0.0, 1.0)])


def test_a_row_tells_medians_and_how_often() -> None:
    runs = Runs(quiet=[[10.0, 10.0]], busy=[[15.0, 15.0]], times=2, seconds=3.0)
    row = " ".join(runs.row("restore").split())
    assert row == "restore 10.0 10.0 15.0 15.0 1.50 2 × 1,500 ms"

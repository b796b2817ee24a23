"""bench/replay.py counts hits as they are, on traces small enough to count by hand."""

import json
import random
import subprocess
import sys
from pathlib import Path

from replay import (
    Bound,
    ChainLru,
    Chosen,
    CostAware,
    Frequency,
    Lru,
    Request,
    cut,
    hit_rate,
    made_trace,
)
from replay_windows import window_rows

BENCH = Path(__file__).parents[2] / "bench"


def trace(*prompts: list[int]) -> list[Request]:
    return [Request(float(index), blocks) for index, blocks in enumerate(prompts)]


def test_a_block_hits_only_if_all_before_it_do() -> None:
    # With room for two, [3] pushes out the older chain's end, or, without chains, its beginning.
    prompts = trace([1, 2], [3], [1, 2])
    assert hit_rate(prompts, 2, ChainLru(), chains=True) == 100 * 1 / 5
    assert hit_rate(prompts, 2, Lru(), chains=False) == 0
    assert hit_rate(prompts, 3, Lru(), chains=False) == 100 * 2 / 5


def test_a_prompt_that_is_too_long_keeps_its_beginning() -> None:
    prompts = trace([1, 2, 3, 4], [1, 2, 3, 4])
    assert hit_rate(prompts, 3, ChainLru(), chains=True) == 100 * 3 / 8


def test_nothing_beats_the_bound_and_what_fits_hits_with_all() -> None:
    prompts = made_trace(200, seed=3)
    distinct = len({block for request in prompts for block in request.blocks})
    for capacity in (distinct // 10, distinct // 3, distinct):
        bound = hit_rate(prompts, capacity, Bound(prompts), chains=True)
        for ranking in (ChainLru(), Chosen(), Frequency(), CostAware()):
            rate = hit_rate(prompts, capacity, ranking, chains=True)
            assert rate <= bound
            assert rate == bound or capacity < distinct


def test_the_chosen_order_keeps_what_is_used_again() -> None:
    source = random.Random(0)
    prompts = [[-1, -2, i % 5 - 10] if i % 10 == 0 else [i] for i in range(400)]
    source.shuffle(prompts)
    requests = trace(*prompts)
    chosen = hit_rate(requests, 20, Chosen(), chains=True)
    assert chosen > hit_rate(requests, 20, ChainLru(), chains=True)


def test_it_runs_and_ends_in_json() -> None:
    command = [sys.executable, str(BENCH / "replay.py"), "--requests", "300", "--percents", "10,50"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert report["bench"] == "replay"
    assert [row["percent"] for row in report["rows"]] == [10, 50]
    for row in report["rows"]:
        assert row["trace"] == "made"
        assert row["bound"] >= row["chosen"] > 0


def test_ends_are_restored_where_windows_first_would_leave_only_kv() -> None:
    prompts = [[number * 10 + index for index in range(4)] for number in range(8)] * 2
    rows = {row["percent"]: row for row in window_rows("made", prompts, 1, (50, 100))}
    assert rows[100]["first"] == rows[100]["alike"] == rows[100]["chosen"] == 50.0
    assert rows[50]["chosen"] == 50.0, "all ends fit"
    assert rows[50]["first"] == 0.0


def test_a_text_is_cut_into_whole_blocks() -> None:
    one, two = cut("a" * 256 + "b" * 300), cut("a" * 256 + "c" * 256)
    assert len(one) == len(two) == 2
    assert one[0] == two[0]
    assert one[1] != two[1]

"""The soak: its report, what its judge counts, and a short run of it."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from reference import Verdict
from soak import (
    ANSWER_TOKENS,
    MIB,
    Answered,
    Sample,
    World,
    evictions,
    growth,
    judge,
    known_prompts,
    missed,
    other_block,
    random_tokens,
)

BENCH = Path(__file__).parents[2] / "bench" / "soak.py"


def samples(*bytes_: int, ram: int = 0) -> list[Sample]:
    return [Sample(10.0 * i, size, ram, 0, 10, 5) for i, size in enumerate(bytes_)]


def test_known_prompts_share_beginnings_but_none_begins_another():
    prompts = known_prompts(512, seed=1)
    assert prompts == known_prompts(512, seed=1)
    assert prompts[0][:130] == prompts[1][:130] != prompts[4][:130]
    for one in prompts:
        assert not any(other[: len(one)] == one for other in prompts if other is not one)


def test_another_block_is_the_only_difference():
    prompt = random_tokens(random.Random(1), 512, 150, 150)
    for block in range(3):
        other = other_block(prompt, block, 512)
        different = [i for i, (a, b) in enumerate(zip(prompt, other, strict=True)) if a != b]
        assert different == list(range(64 * block, min(64 * block + 64, 150)))
        assert min(other) >= 5


def test_growth_is_what_memory_gains_beyond_the_ram_tier():
    assert growth(samples(900, 500, 100, 110, 120, 130)) == 30
    assert growth(samples(100, 100, 100, 100, 900, 100)) == 0, "one peak is no growth"
    late = samples(0, 0, 100, 200, 300)
    for each in late:
        each.ram_tier_bytes = each.anonymous_bytes
    assert growth(late) == 0
    assert growth(samples(100)) == 0


class KnownKind:
    """Says of answers what the test wants."""

    name, noise = "kind", 0.1

    def __init__(self, verdict: Verdict) -> None:
        self.reference = SimpleNamespace(judge=lambda *_: verdict)

    def is_right(self, verdict: Verdict, *, exact: bool) -> bool:
        return verdict.same if exact else verdict.behind < 0.4

    def knows(self, number: int, answer: list[int]) -> bool:
        return answer == [number] * ANSWER_TOKENS


@pytest.mark.parametrize(
    ("slots", "number", "answer", "behind", "counted"),
    [
        (1, 7, [7] * ANSWER_TOKENS, 9.0, {"judged": 1}),
        (1, 7, [8] * ANSWER_TOKENS, 0.1, {"judged": 1, "wrong": 1}),
        (4, 7, [8] * ANSWER_TOKENS, 0.1, {"judged": 1, "near_ties": 1}),
        (4, 7, [8] * ANSWER_TOKENS, 0.5, {"judged": 1, "wrong": 1}),
        (1, None, [8] * ANSWER_TOKENS, 0.1, {"judged": 1, "near_ties": 1}),
        (1, None, [8] * ANSWER_TOKENS, 0.0, {"judged": 1}),
        (1, None, [8] * 3, 0.0, {"judged": 1, "wrong": 1}),
    ],
)
def test_the_judge_is_exact_where_nothing_else_runs(slots, number, answer, behind, counted):
    world, scene = (
        World(),
        SimpleNamespace(kind=KnownKind(Verdict(not behind, behind)), slots=slots),
    )
    world.answers.put(Answered(scene, [1], answer, number))
    world.answers.put(None)
    judge(world)
    assert world.counts == Counter(counted)
    assert len(world.notes) == counted.get("wrong", 0)


def test_clients_wait_while_it_is_paused_and_stop_when_it_is_over():
    world, scene = World(), SimpleNamespace(down=False)
    world.show(scene)
    assert world.enter() is scene
    world.leave()
    with world.pause():
        pass
    world.end(scene)
    assert scene.down
    world.over()
    assert world.enter() is None


def test_evictions_are_read_from_metrics():
    text = '# HELP x\nspillcache_evicted_objects_total{tier="ram"} 12.0\nother_total 3\n'
    assert evictions(text) == {"ram": 12}


def test_each_bar_can_be_missed():
    good = {
        "wrong": 0, "failed": 0, "pinned": 0, "rss_growth_bytes": 0, "descriptors": [10, 10],
        "threads": [5, 5], "max_bytes": 1, "quota_bytes": 1, "changed_prompts": 10,
        "changed_prompts_caught": 9,
    }  # fmt: skip
    assert missed(good) == []
    bad = {
        "wrong": 1, "failed": 1, "pinned": 1, "rss_growth_bytes": 25 * MIB, "descriptors": [10, 15],
        "threads": [5, 10], "max_bytes": 2, "changed_prompts_caught": 8,
    }  # fmt: skip
    for name, value in bad.items():
        assert len(missed(good | {name: value})) == 1, name


def test_a_short_run(tmp_path):
    command = [sys.executable, str(BENCH), "--minutes", "0.25", "--kinds", "llama,gemma3"]
    command += ["--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bench"] == "soak"
    assert (found["wrong"], found["failed"], found["pinned"]) == (0, 0, 0), found["notes"]
    assert found["judged"] + found["not_judged"] == found["requests"] > 0
    assert found["changed_prompts_caught"] > 0.7 * found["changed_prompts"]
    assert found["kills"] + found["stops"] >= 2
    assert list(tmp_path.iterdir()) == []

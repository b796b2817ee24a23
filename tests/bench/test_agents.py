"""The bench of agents: its report, and a small run of it."""

import json
import subprocess
import sys
from pathlib import Path

from agent_trace import Reusable
from agents import Asked, Run, State, _passed, report_of, tail_of

from spillcache.chain import Chain, as_tokens, block_hash, chain_hashes, chain_root
from spillcache.cli.bench_client import Answer
from spillcache.namespace import Namespace

BENCH = Path(__file__).parents[2] / "bench" / "agents.py"


def answer(tokens: tuple[int, ...], disk: int = 0) -> Answer:
    return Answer(1.0, 2.0, tokens, "", disk, {"live": 0, "ram": 0, "disk": disk}, 0)


def report(*, reused: int = 64, last: tuple[int, ...] = (7, 8), written: int = 1100) -> dict:
    before = Asked("a", [1] * 100, answer((5, 6)), Reusable(0, 0, 0))
    after = Asked("a", [1] * 120, answer((7, 8), reused), Reusable(64, 64, 100))
    state = State(1200, 1000, 3300, blocks=2, missing_blocks=0)
    live = {"a": [answer((5, 6)), answer(last)]}
    return report_of(Run([before], [after], written), state, live)


def test_the_report_compares_with_what_could_be():
    good = report()
    assert _passed(good)
    assert (good["reused_share"], good["written_ratio"], good["snapshot_ratio"]) == (1.0, 1.1, 3.0)
    assert good["after_restart"]["by_tier"] == {"live": 0, "ram": 0, "disk": 64}
    assert good["after_restart"]["unlimited_tokens"] == 100
    assert (good["requests"], good["same_answers"], good["different"]) == (2, 2, [])


def test_each_bar_can_be_missed():
    assert not _passed(report(reused=60))
    assert not _passed(report(written=1201))
    other = report(last=(7, 9))
    assert other["different"] == ["a, turn 2"]
    assert not _passed(other)


def test_the_slot_holds_all_but_the_last_token_of_an_answer():
    assert Asked("a", [1, 2], answer((3, 4)), Reusable(0, 0, 0)).held == [1, 2, 3]


def test_a_tail_is_named_by_what_follows_the_last_block():
    namespace = Namespace.of({"model": "x"})
    (name,) = tail_of(Chain(namespace, 4, [1, 2, 3, 4, 5, 6]))
    (parent,) = chain_hashes(chain_root(namespace.digest), [1, 2, 3, 4], 4)
    assert name == block_hash(parent, as_tokens([5, 6]))
    assert tail_of(Chain(namespace, 4, [1, 2, 3, 4])) == []


def test_a_small_run(tmp_path, gguf_model):
    command = [sys.executable, str(BENCH), "-m", str(gguf_model("gemma3")), "--words", "60"]
    command += ["--conversations", "2", "--turns", "2", "--answer-tokens", "4"]
    command += ["--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["bench"], found["requests"]) == ("agents", 4)
    assert found["different"] == []
    after = found["after_restart"]
    assert 0 < after["unlimited_blocks"] <= after["reused"] <= after["unlimited_turns"]
    assert found["after_restart"]["by_tier"]["disk"] > 0
    assert found["missing_blocks"] == 0
    assert 0 < found["unique_state_bytes"] < found["written_bytes"]
    assert list(tmp_path.iterdir()) == []

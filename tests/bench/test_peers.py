"""The bench beside llama-server: its report, and a small run with the real one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from peers import OURS, PEER, PHASES, instructions, missed, rate, report_of

from spillcache.cli.bench_client import Answer
from spillcache.errors import BenchError

BENCH = Path(__file__).parents[2] / "bench" / "peers.py"


def answer(ttft_ms: float, total_ms: float = 0.0, cached: int = 0) -> Answer:
    return Answer(ttft_ms, total_ms, (), "", cached, {}, 0)


def report(**changed: tuple[float, float]) -> dict:
    """All phases with the same times but those that are ``changed``: ours and the peer's."""
    times = dict.fromkeys(PHASES, (10.0, 10.0))
    times |= {"restart": (10.0, 600.0), "branch": (10.0, 110.0), **changed}
    answers = {
        phase: {OURS: [answer(ours, cached=64)] * 3, PEER: [answer(peer)] * 3}
        for phase, (ours, peer) in times.items()
        if phase != "decode"
    }
    ours, peer = changed.get("decode", (110.0, 110.0))
    answers["decode"] = {OURS: [answer(10.0, ours)], PEER: [answer(10.0, peer)]}
    return report_of(answers, {OURS: [1.0, 2.0], PEER: [4.0]}, tokens=11)


def test_the_report_says_how_much_faster():
    good = report()
    assert missed(good) == []
    assert (good["restart_speedup"], good["branch_speedup"]) == (60.0, 11.0)
    assert good["decode_tokens_per_s"] == {OURS: 100.0, PEER: 100.0}
    assert good["four_clients_s"] == {OURS: 3.0, PEER: 4.0}
    restart = next(row for row in good["rows"] if row["phase"] == "restart")
    assert (restart["spillcache_reused"], restart["llama_server_reused"]) == (64, 0)


@pytest.mark.parametrize(
    ("phase", "times"),
    [
        ("restart", (10.0, 490.0)),
        ("branch", (10.0, 99.0)),
        ("repeat", (13.1, 10.0)),
        ("switch", (13.1, 10.0)),
        ("decode", (130.0, 110.0)),
    ],
)
def test_each_bar_can_be_missed(phase, times):
    (name,) = missed(report(**{phase: times}))
    assert name.startswith(phase)


def test_a_rate_counts_what_follows_the_first_token():
    assert rate(answer(500.0, 1500.0), 11) == 10.0


def test_what_is_not_installed_is_said():
    with pytest.raises(BenchError, match=r"No module named 'nothing'.*spillcache\[bench\]"):
        instructions("import nothing")
    assert instructions("print('CPU : AVX = 1 | AVX2 = 1 |')") == "AVX AVX2"


def test_a_small_run(tmp_path, gguf_model):
    command = [sys.executable, str(BENCH), "-m", str(gguf_model("gemma3")), "--repeat", "1"]
    command += ["--prompt-tokens", "320", "--client-tokens", "128", "--answer-tokens", "6"]
    command += ["--threads", "1", "--directory", str(tmp_path), "--plot", str(tmp_path / "p.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bench"] == "peers"
    reused = {
        row["phase"]: (row["spillcache_reused"], row["llama_server_reused"])
        for row in found["rows"]
    }
    assert set(reused) == set(PHASES)
    assert reused["cold"] == reused["four, first turn"] == (0, 0)
    assert reused["restart"] == (319, 0)
    assert reused["repeat"][0] == reused["switch"][0] == 319
    assert reused["branch"][0] == 128
    assert reused["four, next turn"][0] == 128
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]

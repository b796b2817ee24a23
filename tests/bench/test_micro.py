"""The bench of small steps, cut short: all is measured, and the clock runs where it should."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from models import ModelShelf

BENCH = Path(__file__).parents[2] / "bench" / "micro.py"


def test_every_step_is_measured(gguf_model: ModelShelf, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "-m", str(gguf_model("gemma3")), "--tokens", "256"]
    command += ["--rounds", "2", "--seconds", "0.01", "--directory", str(tmp_path)]
    # Its own pytest is not a worker of ours: to workers pytest-benchmark measures nothing.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=env
    )
    assert done.returncode in (0, 1), (
        done.stdout + done.stderr
    )  # 1: over the bar, on a busy machine
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["bench"], found["tokens"]) == ("micro", 256)
    steps = "chain match_ram match_disk export import encode_byteplane decode_zstd resident_repeat"
    steps += " resident_rest"
    assert all(found[f"{step}_ms"] > 0 for step in [*steps.split(), "resident"])
    lines = found["resident_turn_lines_ms"]
    assert {"chain", "match", "keep", "export", "end of turn"} <= lines.keys()
    assert "export" not in found["resident_repeat_lines_ms"]
    assert list(tmp_path.iterdir()) == []


def test_the_clock_runs_in_watched_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("bench_micro", BENCH)
    assert spec is not None
    assert spec.loader is not None
    micro = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_micro", micro)
    spec.loader.exec_module(micro)
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def take(seconds: float) -> None:
        now[0] += seconds

    clock = micro.CacheClock()
    inner = clock._timed(lambda: take(2), micro.EXPORT)

    def outer() -> None:
        take(1)
        inner()
        take(4)

    clock._timed(outer, "keep")()
    take(8)
    assert clock.seconds == {"keep": 5, micro.EXPORT: 2}
    assert clock() == 5

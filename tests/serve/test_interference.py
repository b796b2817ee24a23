"""bench/interference.py runs, and what it computes from pauses is right."""

import json
import subprocess
import sys
from pathlib import Path

from models import ModelShelf

ROOT = Path(__file__).parents[2]


def test_it_measures_all_four(gguf_model: ModelShelf, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "interference.py"), "--quick"]
    command += ["-m", str(gguf_model("llama")), "--directory", str(tmp_path), "--size", "4MiB"]
    command += ["--tokens", "20", "--answer-tokens", "60", "--prefill-tokens", "256"]
    command += ["--rate-runs", "1", "--rate-tokens", "10", "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bench"] == "interference"
    for name in ("decode_ratio", "p99_ratio_restore", "p99_ratio_spill", "p99_ratio_prefill"):
        assert report[name] > 0
    assert done.returncode == (0 if report["ok"] else 1)
    assert (tmp_path / "plot.png").stat().st_size > 1000

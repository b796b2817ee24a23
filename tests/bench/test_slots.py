"""bench/slots.py, cut short: it saves, restores, and compares."""

import json
import subprocess
import sys
from pathlib import Path

from models import ModelShelf

BENCH = Path(__file__).parents[2] / "bench" / "slots.py"


def test_both_rows_are_measured(gguf_model: ModelShelf, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "--quick", "-m", str(gguf_model("gemma3"))]
    command += ["--tokens", "512", "--size", "4MiB", "--touch", "0", "--runs", "1", "--pauses", "4"]
    command += ["--answer-tokens", "20", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bench"] == "slots"
    assert len(report["rows"]) == 2
    for row in report["rows"]:
        assert row["bytes"] > 1 << 20
        assert min(row["save_ratio"], row["restore_ratio"], row["p99_ratio"]) > 0
        assert row["restore_over_ratio"] > 0
    assert done.returncode == (0 if report["ok"] else 1)
    assert list(tmp_path.iterdir()) == []

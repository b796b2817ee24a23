"""The bench of killed processes, cut short: nothing wrong, nothing durable lost, always open."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "chaos.py"


def test_processes_killed_at_any_instant():
    command = [sys.executable, str(BENCH), "--kills", "8", "--start-s", "0.4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["bench"], found["kills"]) == ("chaos", 8)
    wrong = ("wrong_bytes", "lost_durable", "failed_opens", "contradictions", "child_failures")
    assert {found[key] for key in wrong} == {0}
    assert found["opens"] >= 3

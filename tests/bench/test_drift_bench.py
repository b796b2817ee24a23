"""The bench of drift: its arithmetic, and a small run of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from drift import Said, report_of, session, shared

from spillcache.errors import ConfigError

BENCH = Path(__file__).parents[2] / "bench" / "drift.py"


def test_the_report_compares_with_a_history_of_tokens():
    first = Said(100, 0, [7, 8, 9], list(range(100)), None)
    second = Said(150, 96, [5, 6], [*range(100), 7, 1, 2], {"at": 101, "lost": 2})
    report = report_of([first, second])
    assert (report["possible_tokens"], report["kept_tokens"]) == (102, 96)
    assert report["kept_share"] == round(96 / 102, 4)
    assert report["kept_by_text_share"] == round(101 / 102, 4)
    assert report["parted"] == [{"at": 101, "lost": 2}]


def test_a_session_is_what_is_new_in_each_prompt(tmp_path):
    rows = [(2, "a", "one two"), (1, "a", "one"), (3, "b", "x"), (4, "a", "one two three")]
    path = tmp_path / "trace"
    path.write_text(
        "\n".join(json.dumps({"timestamp": t, "session_id": s, "input": i}) for t, s, i in rows)
    )
    assert session(path, 4) == ["one", " two", " three", "one"]
    assert len(session(None, 5)) == 5
    path.write_text("")
    with pytest.raises(ConfigError, match="no session"):
        session(path, 4)


def test_what_two_lists_share():
    assert shared([1, 2, 3], [1, 2, 4]) == 2
    assert shared("ab", "abc") == 2


def test_a_small_run(gguf_model):
    command = [sys.executable, str(BENCH), "-m", str(gguf_model("llama")), "--threads", "1"]
    done = subprocess.run(
        [*command, "--turns", "4", "--answer-tokens", "8"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert report["turns"] == 4
    assert report["kept_share"] >= 0.95

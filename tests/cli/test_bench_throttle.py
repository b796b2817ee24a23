import json
from pathlib import Path
from typing import Any

import pytest

from spillcache.cli import bench_throttle
from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_throttle import Throttled, speeds
from spillcache.errors import ConfigError


def answer(ttft_ms: float, decision: str, tokens: tuple[int, ...] = (1, 2)) -> Answer:
    return Answer(ttft_ms, 2 * ttft_ms, tokens, "text", 0, {}, 0, decision)


def throttled(**changes: Any) -> Throttled:
    values = {
        "full_ms": 2800.0,
        "full_is": "measured",
        "first": answer(3000.0, "gave_up"),
        "cached": [answer(2520.0, "compute"), answer(2600.0, "compute"), answer(9.0, "restore")],
        "cold": [answer(2400.0, "off"), answer(2500.0, "off"), answer(2600.0, "off")],
    }
    return Throttled(2048, 5.0, **(values | changes))


def test_a_row_compares_with_the_better_of_the_two() -> None:
    row = throttled().row()
    assert (row["cold_ttft_ms"], row["cached_ttft_ms"]) == (2500.0, 2520.0)
    assert row["ratio"] == 1.008
    assert row["decisions"] == ["compute", "restore"]
    assert (row["first_ttft_ms"], row["first_decision"]) == (3000.0, "gave_up")
    assert row["same_tokens"] is True
    assert throttled(full_ms=1260.0).row()["ratio"] == 2.0
    other = throttled(first=answer(1.0, "gave_up", (1, 3)))
    assert other.row()["same_tokens"] is False


@pytest.mark.parametrize("text", ["", "5,", "fast", "0", "-1", "nan", "5,inf"])
def test_bad_speeds_are_said(text: str) -> None:
    with pytest.raises(ConfigError, match="--throttle"):
        speeds(text)


def test_speeds() -> None:
    assert speeds("5,0.5") == (5.0, 0.5)


def test_the_whole_of_it_on_a_real_server(
    cli: Any, gguf_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_throttle, "_LONGEST_S", 0.5)
    model = str(gguf_model("gemma3"))
    ended = cli(
        *("bench", "restart", "-m", model, "--prompt-tokens", "512", "--repeat", "1"),
        *("--throttle", "50,0.2", "--cache-disk", str(tmp_path), "--", "-t", "2"),
    )
    assert ended.code == 0, ended.err
    report = json.loads(ended.out.splitlines()[-1])
    assert report["bench"] == "restart"
    quick, slow = report["throttle"]
    assert (quick["mb_s"], quick["full_restore_is"]) == (50.0, "measured")
    assert (slow["mb_s"], slow["full_restore_is"]) == (0.2, "computed")
    assert slow["full_restore_ms"] > 500
    assert slow["decisions"] == ["compute"]
    assert quick["same_tokens"]
    assert slow["same_tokens"]
    assert "0.2 MB/s" in ended.out
    assert list(tmp_path.iterdir()) == []

from pathlib import Path

import pytest

from spillcache.cli import bench_report
from spillcache.cli.bench_report import (
    format_ms,
    format_speedup,
    print_table,
    print_throttled,
    small_print,
)

ROW = {
    "prompt_tokens": 8192,
    "cold_ttft_ms": 23661.1,
    "live_ttft_ms": 716.64,
    "ram_ttft_ms": 701.8,
    "disk_ttft_ms": 1735.8,
    "disk_speedup": 13.63,
    "reused_tokens": 8128,
    "restored_bytes": 1 << 20,
    "same_tokens": True,
}


def test_the_table_has_seconds_medians_and_a_legend(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        [ROW, {**ROW, "same_tokens": False}],
        model="tiny",
        repeat=5,
        answer_tokens=32,
        page_cache="bypassed",
        even={"tokens": 300, "is": "interpolated"},
    )
    out = capsys.readouterr().out
    assert "Time to the first token, tiny (median of 5)" in out
    order = [out.index(text) for text in ("23.66 s", "716.6 ms", "701.8 ms", "1.74 s", "13.6×")]
    assert order == sorted(order)
    assert "DIFFERENT" in out
    for word in ("cold ", "live ", "RAM ", "disk ", "reused ", "answer "):
        assert f"\n{word}" in out
    assert "page cache: bypassed" in out
    assert "medians of 5, but for cold" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    assert "Disk is quicker than computing from about 300 tokens on." in out


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.04, "0.0 ms"), (999.9, "999.9 ms"), (999.96, "1.00 s"), (1234, "1.23 s")],
)
def test_seconds_from_one_second_on(ms: float, text: str) -> None:
    assert format_ms(ms) == text


def test_slower_is_said() -> None:
    assert (format_speedup(3.3), format_speedup(0.5)) == ("3.3× faster", "2.0× slower")


def test_the_small_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"cpu": "A  CPU", "cpus": 2, "date": "2026-01-31", "version": "1.0"}
    line = "A CPU, 2 CPUs · 2026-01-31 · spillcache 1.0 · median of 3, cold once"
    assert small_print(facts, 3) == line
    facts = bench_report.machine_facts()
    assert facts["cpus"] >= 1
    assert facts["cpu"]
    assert bench_report._cpu(tmp_path / "none") == facts["machine"]
    monkeypatch.delattr("os.sched_getaffinity")
    assert bench_report._cpus() >= 1


@pytest.mark.parametrize(
    ("even", "says"),
    [
        ({"tokens": 512, "is": "at most"}, "from at most 512 tokens on"),
        ({"tokens": None, "is": "more than the longest"}, "at none of these lengths"),
    ],
)
def test_where_disk_begins_to_pay(
    capsys: pytest.CaptureFixture[str], even: dict[str, object], says: str
) -> None:
    print_table([ROW], model="m", repeat=1, answer_tokens=1, page_cache="", even=even)
    assert says in capsys.readouterr().out


def test_the_table_of_slow_disks(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "prompt_tokens": 8192,
        "mb_s": 0.5,
        "cold_ttft_ms": 10_440.0,
        "full_restore_ms": 66_000.0,
        "full_restore_is": "computed",
        "first_ttft_ms": 12_000.0,
        "cached_ttft_ms": 10_500.0,
        "decisions": ["compute"],
        "ratio": 1.006,
        "same_tokens": True,
    }
    measured = {**row, "full_restore_is": "measured", "same_tokens": False}
    print_throttled([row, measured], model="tiny", repeat=3)
    out = capsys.readouterr().out
    order = [
        out.index(t) for t in ("0.5 MB/s", "10.44 s", "66.00 s*", "12.00 s", "compute", "1.01")
    ]
    assert order == sorted(order)
    assert out.count("66.00 s*") == 1
    assert "DIFFERENT" in out
    assert "medians of 3" in out

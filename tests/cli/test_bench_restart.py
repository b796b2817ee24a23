import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spillcache.cli import bench_restart
from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_restart import Measured
from spillcache.cli.bench_server import terminable


def answer(
    ttft_ms: float, cached: int = 0, tokens: tuple[int, ...] = (1, 2), read: int = 0
) -> Answer:
    return Answer(ttft_ms, 2 * ttft_ms, tokens, "text", cached, {"disk": cached}, read)


def measured(**changes: list[Answer]) -> Measured:
    phases = {
        "cold": [answer(1000.0)],
        "live": [answer(10.0, 192), answer(12.0, 192), answer(90.0, 192)],
        "ram": [answer(20.0, 192)],
        "disk": [answer(50.0, 192, read=4000), answer(40.0, 128, read=4096)],
    }
    return Measured(256, **(phases | changes))


def test_a_row_has_medians_and_the_worst_reuse() -> None:
    row = measured().row()
    assert row["prompt_tokens"] == 256
    assert row["cold_ttft_ms"] == 1000.0
    assert row["live_ttft_ms"] == 12.0
    assert row["disk_ttft_ms"] == 45.0
    assert row["disk_speedup"] == 22.22
    assert row["reused_tokens"] == 128
    assert row["restored_bytes"] == 4096
    assert row["same_tokens"] is True


@pytest.mark.parametrize("phase", ["live", "ram", "disk"])
def test_one_other_token_anywhere_is_told(phase: str) -> None:
    other = {phase: [answer(10.0), answer(10.0, tokens=(1, 3))]}
    assert measured(**other).row()["same_tokens"] is False


@pytest.mark.parametrize("lengths", ["", "2048,", "big", "127", "2048,64", "-1", "1e3"])
def test_bad_lengths_are_said(cli: Any, gguf_model: Any, lengths: str) -> None:
    model = str(gguf_model("llama"))
    ended = cli("bench", "restart", "-m", model, f"--prompt-tokens={lengths}")
    assert ended.code == 2
    assert "--prompt-tokens" in ended.err
    assert ended.err.count("\n") == 1


def test_more_than_the_model_was_trained_for_is_said_at_once(cli: Any, gguf_model: Any) -> None:
    model = str(gguf_model("llama", n_ctx=512))
    ended = cli("bench", "restart", "-m", model, "--prompt-tokens", "256,481")
    assert (ended.code, ended.out) == (2, "")
    assert "481 is too long" in ended.err
    assert "480 at most" in ended.err


def test_sigterm_leaves_no_server_and_no_files(gguf_model: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spillcache", "bench", "restart", "-m", gguf_model("llama")]
    command += ["--prompt-tokens", "256", "--repeat", "1000", "--cache-disk", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "live: measuring" not in process.stderr.readline():
                assert process.poll() is None
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert children
            assert list(tmp_path.iterdir())
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(20) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_off_the_main_thread_signals_stay_as_they_are() -> None:
    handlers: list[object] = []

    def run() -> None:
        with terminable():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_missing_model_is_said(cli: Any, tmp_path: Path) -> None:
    ended = cli("bench", "restart", "-m", str(tmp_path / "none.gguf"))
    assert (ended.code, ended.out) == (1, "")
    assert "no such model" in ended.err


def test_a_plot_without_matplotlib_is_said_before_the_work(
    cli: Any, gguf_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_restart, "can_plot", lambda: False)
    ended = cli("bench", "restart", "-m", str(gguf_model("llama")), "--plot", "x.png")
    assert ended.code == 2
    assert "pip install" in ended.err


def test_a_plot_that_can_not_be_written_is_said(
    cli: Any, gguf_model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_restart, "measure", lambda *_: (measured(), "direct"))
    target = tmp_path / "missing" / "x.png"
    ended = cli("bench", "restart", "-m", str(gguf_model("llama")), "--plot", str(target))
    assert ended.code == 2
    assert str(target) in ended.err


@pytest.mark.parametrize(
    ("reads", "filesystem", "says"),
    [
        ("direct", "ext4", "bypassed (O_DIRECT)"),
        ("buffered+dontneed", "", "dropped"),
        ("direct", "tmpfs", "does not matter: tmpfs is memory"),
    ],
)
def test_the_output_says_what_became_of_the_page_cache(
    cli: Any,
    gguf_model: Any,
    monkeypatch: pytest.MonkeyPatch,
    reads: str,
    filesystem: str,
    says: str,
) -> None:
    monkeypatch.setattr(bench_restart, "_filesystem", lambda _: filesystem)
    monkeypatch.setattr(bench_restart, "measure", lambda *_: (measured(), reads))
    monkeypatch.setattr(bench_restart, "can_plot", lambda: False)
    ended = cli("bench", "restart", "-m", str(gguf_model("llama")))
    assert ended.code == 0
    assert f"page cache: {says}" in ended.out
    report = json.loads(ended.out.splitlines()[-1])
    assert says in report["page_cache"]
    assert report["filesystem"] == filesystem
    assert "picture" not in ended.out


def test_the_whole_of_it_on_a_real_server(
    cli: Any, gguf_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(gguf_model("gemma3"))
    ended = cli(
        *("bench", "restart", "-m", model, "--prompt-tokens", "256", "--repeat", "1"),
        *("--cache-disk", str(tmp_path), "--", "-t", "2", "-cram", "64"),
    )
    assert ended.code == 0, ended.err
    report = json.loads(ended.out.splitlines()[-1])
    assert report["bench"] == "restart"
    assert report["filesystem"]
    assert report["serve_flags"] == ["-t", "2", "-cram", "64"]
    (row,) = report["rows"]
    assert row["same_tokens"] is True
    assert row["reused_tokens"] >= 256 - 64
    assert row["restored_bytes"] > 0
    assert row["disk_speedup"] == pytest.approx(
        row["cold_ttft_ms"] / row["disk_ttft_ms"], rel=0.01, abs=0.01
    )
    assert row["sources"]["live"]["live"] == row["reused_tokens"]
    assert row["sources"]["ram"]["ram"] == row["reused_tokens"]
    assert row["sources"]["disk"]["disk"] == row["reused_tokens"]
    assert report["cpus"] >= 1
    assert len(report["date"]) == 10
    assert "256 │" in ended.out
    assert "median of 1" in ended.out
    asked = ended.err.index("256 tokens, cold: measuring, 1 of 1")
    assert asked < ended.err.index("256 tokens, cold: ", asked + 1)
    assert "256 tokens, disk: " in ended.err
    assert (tmp_path / "spillcache-restart.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spillcache-restart.png"]

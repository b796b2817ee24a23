import time
from pathlib import Path

import pytest

from spillcache.cli.bench_server import BenchServer, drop_page_cache
from spillcache.errors import BenchError


def test_a_server_that_ends_at_once_gives_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(BenchError, match="ended with code 1: spillcache: error: no such model"),
        BenchServer(["-m", str(tmp_path / "none.gguf")], log),
    ):
        pass
    assert "no such model" in log.read_text()


def test_a_server_runs_stops_and_leaves_nothing(tmp_path: Path, gguf_model: object) -> None:
    model = gguf_model("llama")  # type: ignore[operator]
    flags = ["-m", str(model), "-c", "1024", "--cache-disk", str(tmp_path / "cache")]
    with BenchServer(flags, tmp_path / "log") as server:
        pid = server.pid
        assert server.health()["cache"]["disk"]["on"]
        assert server.client.complete([5, 6, 7], 2).cached_tokens == 0
        server.stop()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OSError, match="refused"):
        server.health()


def test_a_server_that_is_left_is_killed(tmp_path: Path, gguf_model: object) -> None:
    model = gguf_model("llama")  # type: ignore[operator]
    with BenchServer(["-m", str(model), "-c", "512"], tmp_path / "log") as server:
        pid = server.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_was_killed_did_not_stop_well(tmp_path: Path, gguf_model: object) -> None:
    model = gguf_model("llama")  # type: ignore[operator]
    with BenchServer(["-m", str(model), "-c", "512"], tmp_path / "log") as server:
        server._kill()
        with pytest.raises(BenchError, match="stopped with code -9"):
            server.stop()


def test_a_server_that_hangs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_model: object
) -> None:
    monkeypatch.setattr("spillcache.cli.bench_server._READY_S", 0.2)
    model = gguf_model("llama")  # type: ignore[operator]
    began = time.monotonic()
    with (
        pytest.raises(BenchError, match="was not ready within"),
        BenchServer(["-m", str(model)], tmp_path / "log"),
    ):
        pass
    assert time.monotonic() - began < 10


def test_nothing_can_be_asked_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="was not started"):
        BenchServer([], tmp_path / "log").stop()


def test_dropping_the_page_cache_leaves_the_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "below/b"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    assert drop_page_cache(tmp_path) == 2
    assert (tmp_path / "below" / "b").read_bytes() == b"x" * 8192
    assert drop_page_cache(tmp_path / "missing") == 0
    monkeypatch.delattr("os.posix_fadvise")
    assert drop_page_cache(tmp_path) == 0

from pathlib import Path

import pytest
from matplotlib import image

from spillcache.cli.bench_plot import can_plot, plot_restart

ROWS = [
    {
        "prompt_tokens": length,
        "cold_ttft_ms": cold,
        "live_ttft_ms": 15.0,
        "ram_ttft_ms": 40.0,
        "disk_ttft_ms": 60.0,
        "disk_speedup": cold / 60,
    }
    for length, cold in ((2048, 2570.0), (8192, 16400.0), (16384, 33000.0))
]


@pytest.mark.parametrize("count", [1, 3])
def test_the_picture_is_a_png_with_something_on_it(tmp_path: Path, count: int) -> None:
    assert can_plot()
    path = tmp_path / "restart.png"
    plot_restart(ROWS[:count], "a title", path)
    pixels = image.imread(path)
    assert pixels.shape[0] >= 400
    assert pixels.shape[1] >= 600
    assert pixels.std() > 0.05


def test_a_path_that_can_not_be_written_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        plot_restart(ROWS, "a title", tmp_path / "missing" / "restart.png")

from pathlib import Path

import pytest
from matplotlib import image
from matplotlib.figure import Figure

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
    plot_restart(ROWS[:count], "a model", "2 CPUs", path)
    pixels = image.imread(path)
    assert pixels.shape[0] >= 400
    assert pixels.shape[1] >= 600
    assert pixels.std() > 0.05


def test_a_path_that_can_not_be_written_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        plot_restart(ROWS, "a model", "", tmp_path / "missing" / "restart.png")


def test_what_is_written_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: seen.append(figure))
    rows = [*ROWS[:2], {**ROWS[2], "disk_speedup": 0.5}]
    plot_restart(rows, "a model", "a CPU, yesterday", tmp_path / "x.png")
    (figure,) = seen
    (axes,) = figure.axes
    assert axes.get_title() == "Time to first token, a model, after a restart: from disk"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "cold",
        "live slot",
        "RAM",
        "disk, after a restart",
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "2,048 tokens\n42.8× faster from disk",
        "8,192 tokens\n273.3× faster from disk",
        "16,384 tokens\n2.0× slower from disk",
    ]
    form = axes.yaxis.get_major_formatter()
    assert [form(value, None) for value in (0.05, 0.1, 1, 20)] == ["0.05", "0.1", "1", "20"]
    assert {text.get_text() for text in axes.texts} >= {"0.015 s", "2.57 s", "16.4 s"}
    assert figure.get_supxlabel() == "a CPU, yesterday"

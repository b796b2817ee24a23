"""The report: each benchmark by its section's own command, its results between the markers."""

import json
import sys
from pathlib import Path

import pytest

REPORT = """# Benchmarks

Prose.

## Speed

```
python bench/speed.py --quick --trace TRACE.jsonl …
```

More prose. <!-- results: begin -->
old
<!-- results: end -->

After.

## Restart

```
spillcache bench restart -m gemma3-270m
```

<!-- results: begin -->
kept
<!-- results: end -->

## Words only

```
python bench/words.py
```
"""


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    import report  # noqa: PLC0415

    return report


def test_a_section_with_a_command_and_a_place_is_a_benchmark(report):
    found = report.sections(REPORT)
    assert [(s.name, s.command.split()[0]) for s in found] == [
        ("speed", "python"),
        ("restart", "spillcache"),
    ]


def test_only_what_lies_between_the_markers_of_its_section_changes(report):
    new = report.rewritten(REPORT, {"speed": "new \\1", "words": "nowhere"})
    assert new == REPORT.replace("\nold\n", "\nnew \\1\n")


def test_commands_run_with_the_traces_that_are_there(report):
    speed, restart = report.sections(REPORT)
    python = sys.executable
    assert report.arguments_of(speed.command, []) == [python, "bench/speed.py", "--quick"]
    assert report.arguments_of(speed.command, ["a b", "c"])[3:] == [
        "--trace", "a b", "--trace", "c",
    ]  # fmt: skip
    assert report.arguments_of(restart.command, [])[:4] == [python, "-m", "spillcache", "bench"]


def test_facts_and_rows_become_tables(report):
    text = report.table({
        "bench": "x", "open_ms": 0.12345, "count": 12345, "ok": True, "nothing": None,
        "times": [1, 2.5], "lines": {"chain": 0.5}, "rows": [{"a_b": 1, "c": "x|y"}, {"a_b": 2}],
    })  # fmt: skip
    assert text.splitlines() == [
        "|  |  |", "|---|---|", "| open ms | 0.123 |", "| count | 12,345 |", "| ok | yes |",
        "| nothing | – |", "| times | 1, 2.5 |", "| lines, chain | 0.5 |", "",
        "rows:", "", "| a b | c |", "|---|---|", "| 1 | x\\|y |", "| 2 | – |",
    ]  # fmt: skip


def test_each_benchmark_is_run_kept_and_written(report, tmp_path, monkeypatch, capfd):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "speed.py").write_text(
        'print(\'table\')\nprint(\'{"bench": "speed", "gb_s": 2.5}\')\n'
    )
    document = tmp_path / "benchmarks.md"
    document.write_text(REPORT)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "OUT", tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["report.py", "--document", str(document), "--only", "speed"])
    assert report.main() == 0
    assert json.loads((tmp_path / "out" / "speed.json").read_text())["gb_s"] == 2.5
    text = document.read_text()
    assert "| gb s | 2.5 |" in text
    assert "\nold\n" not in text
    assert "\nkept\n" in text
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["written"] == ["speed"]


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "print('no json')", "print([])"])
def test_one_that_fails_is_named_and_its_old_results_stay(report, tmp_path, monkeypatch, script):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "speed.py").write_text(script)
    document = tmp_path / "benchmarks.md"
    document.write_text(REPORT)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "OUT", tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["report.py", "--document", str(document), "--only", "speed"])
    assert report.main() == 1
    assert document.read_text() == REPORT


def test_every_benchmark_of_the_document_has_its_script(report):
    names = [s.name for s in report.sections(report.DOCUMENT.read_text())]
    assert {"restart", "micro", "quota", "lookup"} <= set(names)
    assert len(names) == len(set(names))
    for name in names:
        assert name.startswith("restart") or (report.ROOT / "bench" / f"{name}.py").exists()


def test_a_trace_belongs_to_a_benchmark(report, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report.py", "--trace", "speed=a/b"])
    name, path = report.arguments().trace[0]
    assert (name, path) == ("speed", str(Path("a/b").resolve()))
    monkeypatch.setattr(sys, "argv", ["report.py", "--trace", "a/b"])
    with pytest.raises(SystemExit):
        report.arguments()
    assert "NAME=PATH" in capsys.readouterr().err

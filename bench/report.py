"""Runs the benchmarks of docs/benchmarks.md, each by the very command that its section gives, and
writes what they found between the section's markers; the prose around stays.

The last line of each benchmark's output is kept in out/NAME.json. A command's ``--trace …`` is
taken from ``--trace NAME=PATH``, and left out where there is none. The last line of stdout is JSON.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
OUT = ROOT / "out"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
LONGEST_TABLE_COLUMNS = 10
_COMMAND = re.compile(r"^(python bench/(\w+)\.py.*|spillcache bench (\w+).*)$", re.M)
_RESULTS = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
_SECTION = re.compile(r"^## ", re.M)
_TRACES = re.compile(r" --trace \S+(?: …)?")


@dataclass(frozen=True)
class Section:
    """A benchmark as the document has it."""

    name: str
    command: str


def sections(document: str) -> list[Section]:
    """Every section that gives a command and has a place for its results."""
    found = []
    for text in _SECTION.split(document)[1:]:
        command = _COMMAND.search(text)
        if command is not None and _RESULTS.search(text):
            found.append(Section(_name(command), command[1]))
    return found


def rewritten(document: str, results: Mapping[str, str]) -> str:
    """The document with new results, by benchmark, between the markers of its section."""
    parts = re.split(r"(?m)^(?=## )", document)
    for index, text in enumerate(parts):
        command = _COMMAND.search(text)
        name = _name(command) if command is not None else ""
        if name in results:
            block = f"{BEGIN}\n{results[name]}\n{END}"
            parts[index] = _RESULTS.sub(lambda _, block=block: block, text, count=1)
    return "".join(parts)


def _name(command: re.Match[str]) -> str:
    """Slow disks are another question than ``restart`` itself."""
    name = command[2] or command[3]
    return f"{name}_throttle" if " --throttle " in command[1] else name


def arguments_of(command: str, traces: Sequence[str]) -> list[str]:
    """What to run: this interpreter, and the traces that are there."""
    given = "".join(f" --trace {shlex.quote(path)}" for path in traces)
    words = shlex.split(_TRACES.sub(lambda _: given, command))
    head = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "spillcache"]
    return [*head, *words[1:]]


def run(section: Section, traces: Sequence[str]) -> dict[str, Any] | None:
    """Run one; shows its output, and keeps its last line. None where that is no JSON."""
    command = arguments_of(section.command, traces)
    print(f"\n== {section.name}: {section.command}", flush=True)
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    try:
        found = json.loads(last)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    OUT.mkdir(exist_ok=True)
    (OUT / f"{section.name}.json").write_text(json.dumps(found) + "\n")
    return {**found, "ok": process.returncode == 0}


def table(found: Mapping[str, Any]) -> str:
    """Facts as a table of two columns, and a table for each list of rows."""
    facts = [("", ""), *_facts(found)]
    out = [_markdown(facts)]
    for key, rows in found.items():
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            columns = list(dict.fromkeys(k for row in rows for k in row))[:LONGEST_TABLE_COLUMNS]
            body = [[_cell(row.get(column)) for column in columns] for row in rows]
            out.append(f"{_words(key)}:\n\n" + _markdown([[_words(c) for c in columns], *body]))
    return "\n\n".join(out)


def _facts(found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for key, value in found.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{prefix}{_words(key)}, ")
        elif key != "bench" and not _is_rows(value):
            facts.append((prefix + _words(key), _cell(value)))
    return facts


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(row, dict) for row in value)


def _words(key: str) -> str:
    return str(key).replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_cell(each) for each in value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def machine(path: Path = ROOT) -> str:
    """The machine in a few words, as far as it says."""
    words = [f"{len(os.sched_getaffinity(0))} cores"]
    memory = Path("/proc/meminfo").read_text().split()
    words.append(f"{int(memory[1]) / (1 << 20):.0f} GiB")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [m for m in mounts if path.resolve().is_relative_to(m[1])]
    words += [m[2] for m in sorted(above, key=lambda m: len(m[1]))[-1:]]
    return ", ".join(words)


def main() -> int:
    args = arguments()
    failed: list[str] = []
    written: list[str] = []
    for section in sections(args.document.read_text()):
        if args.only and section.name not in args.only:
            continue
        found = run(section, [path for name, path in args.trace if name == section.name])
        if found is None or not found["ok"]:
            failed.append(section.name)
        if found is None:
            continue
        head = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; the command above."
        # Read again: somebody may have written in it, for all of this takes long.
        document = args.document.read_text()
        args.document.write_text(rewritten(document, {section.name: f"{head}\n\n{table(found)}"}))
        written.append(section.name)
    print(json.dumps({"bench": "report", "written": written, "failed": failed}))
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these benchmarks; default: all")
    parser.add_argument(
        "--trace", type=_trace, action="append", default=[], metavar="NAME=PATH",
        help="a trace for benchmark NAME; may be given more than once",
    )  # fmt: skip
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    return parser.parse_args()


def _trace(text: str) -> tuple[str, str]:
    name, mark, path = text.partition("=")
    if not mark or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, str(Path(path).resolve())


if __name__ == "__main__":
    sys.exit(main())

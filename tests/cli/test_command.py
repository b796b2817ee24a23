"""Words before they are parsed, and what the help shows."""

import re
from typing import Any

import pytest

from spillcache.cli.command import is_flag, ours_of
from spillcache.cli.llama_flags import ALIASES, IGNORED_SWITCHES, IGNORED_VALUES, REFUSED
from spillcache.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serve -mu a/b", "-mu is not supported: models are files or come with -hf"),
        ("serve --control-vector=x -m y", "--control-vector is not supported: control"),
        ("serve -m x -r 7", "-r is not supported: requests say where to stop"),
        ("serve -m x --cache-disk --port 0", "--cache-disk needs a DIR"),
        ("serve --cache-disk", "--cache-disk needs a DIR"),
        ("serve -m x -c -t 3", "-c needs a number"),
        ("serve -m x -fa --port 0", "-fa needs on|off|auto"),
        ("serve -m x --alias -fa on", "--alias needs a NAME"),
        ("serve -m x --cache-max-age -b 2", "--cache-max-age needs an AGE"),
        ("serve --thread 3", "--thread: no such flag; did you mean --threads?"),
        ("serve -t8", "-t8: no such flag"),
        ("serve --zzzzzzzz", "see spillcache serve --help"),
        ("gc --to --dry-run", "--to needs a SIZE"),
        ("bench restart -fa off", "-fa: no such flag of spillcache bench restart"),
        ("bench restart -fa off", "as in: spillcache bench restart -- -fa off"),
        ("bench restart --repeat --plot x", "--repeat needs a number"),
    ],
)
def test_what_is_wrong_is_said_as_it_was_typed(cli: Any, words: str, says: str) -> None:
    ended = cli(*words.split())
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_negative_numbers_and_a_lone_dash_are_values() -> None:
    assert not any(map(is_flag, ["-1", "-0.5", "-", "x", ""]))
    assert all(map(is_flag, ["-c", "--port", "--", "-1x"]))


def test_values_go_with_their_flags() -> None:
    line = "-b 512 --jinja -c 5 --gpu-layers 3 --poll --warmup -tb=9 -- x"
    assert ours_of(line.split()) == (
        ["-c", "5", "--n-gpu-layers", "3", "--", "x"],
        ["-b 512", "--jinja", "--poll", "--warmup", "-tb=9"],
    )
    assert ours_of(["--batch-size"]) == ([], ["--batch-size"])
    with pytest.raises(ConfigError, match="-dev is not supported"):
        ours_of(["-c", "5", "-dev", "x"])


def test_a_flag_is_in_one_table_only() -> None:
    tables = [set(ALIASES), set(IGNORED_SWITCHES), set(IGNORED_VALUES), set(REFUSED)]
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.parametrize(
    "words",
    ["", "serve", "ls", "status", "gc", "purge", "verify", "doctor", "bench", "bench restart"],
)
def test_help_fits_80_columns_and_cuts_nothing(
    cli: Any, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    out = cli(*words.split(), "--help").out
    assert max(len(line) for line in out.splitlines()) <= 80
    for word in ("<bool>", "<int", "<str>", "<list", "<path", "LLAMA_ARG_C"):
        assert word not in out
    assert not re.search(r"\w…", out.replace("N,N,…", "").replace("LLAMA_ARG_…", ""))


def test_help_has_n_for_numbers(cli: Any) -> None:
    out = cli("serve", "--help").out
    assert re.search(r"--ctx-size +-c +N ", out)
    assert re.search(r"--no-mmap +Read", out)

"""Docs say what the code has: every flag, error code, metric and dependency, and no other."""

import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from spillcache import errors
from spillcache.cli.llama_flags import ALIASES, IGNORED_SWITCHES, IGNORED_VALUES, REFUSED
from spillcache.cli.main import app
from spillcache.config import EngineConfig, Settings
from spillcache.metrics import Metrics
from spillcache.serve.answer_format import timings_object
from spillcache.serve.anthropic_schema import MessagesBody
from spillcache.serve.app import create_app
from spillcache.serve.job import Timings, Usage
from spillcache.serve.responses_schema import ResponsesBody
from spillcache.serve.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from spillcache.serve.service import Service

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def cells(text: str) -> Iterator[str]:
    """The first cell of each row of the page's tables."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield line.split(" | ")[0]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def commands() -> dict[str, Any]:
    """``"bench restart"`` → click's command; "" is the front door."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        found[path] = command
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{path} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found


def flags_of(command: Any) -> dict[str, list[str]]:
    """Each option's names, with the variable that it reads."""
    return {
        name: [option.envvar] if option.envvar else []
        for option in command.params
        if option.param_type_name == "option"
        for name in [*option.opts, *option.secondary_opts]
    }


def documented_flags() -> dict[str, dict[str, str]]:
    """Command → flag → its row, by the sections of docs/flags.md."""
    sections: dict[str, dict[str, str]] = {}
    section = None
    for line in (DOCS / "flags.md").read_text().splitlines():
        if line.startswith("## "):
            name = quoted(line)[0] if quoted(line) else None
            section = name.removeprefix("spillcache").strip() if name is not None else None
        elif section is not None and line.startswith("| `"):
            for flag in quoted(line.split(" | ")[0]):
                sections.setdefault(section, {})[flag] = line
    return sections


@pytest.mark.parametrize("name", [name for name in commands() if name != "bench"])
def test_every_flag_is_documented_and_no_other(name: str) -> None:
    flags = flags_of(commands()[name])
    documented = documented_flags()[name]
    assert set(documented) - {"-h", "--help"} == set(flags) - {"-h", "--help"}
    for flag, variables in flags.items():
        row = documented.get(flag, "")
        named = set(re.findall(r"\b(?:LLAMA|SPILLCACHE)_\w+", row))
        assert named == set(variables), flag


def test_llama_servers_other_flags_are_documented() -> None:
    text = (DOCS / "flags.md").read_text()
    section = text.split("## Other flags of llama-server\n")[1].split("\n## ")[0]
    ignored, refused = section.split("**Not supported**")
    assert set(quoted(ignored)) == IGNORED_SWITCHES | IGNORED_VALUES
    assert {flag for cell in cells(refused) for flag in quoted(cell)} == set(REFUSED)
    for alias, flag in ALIASES.items():
        assert f"`{alias}`" in documented_flags()["serve"][flag]


def test_ours_are_not_among_them() -> None:
    others = {*ALIASES, *IGNORED_SWITCHES, *IGNORED_VALUES, *REFUSED}
    assert not others & set(flags_of(commands()["serve"]))


def test_every_documented_command_exists() -> None:
    assert set(documented_flags()) <= set(commands())


def test_every_error_code_is_documented_and_no_other() -> None:
    text = (DOCS / "errors.md").read_text()
    documented = {quoted(cell)[0] for cell in cells(text)}
    codes = {
        value.code
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.SpillcacheError)
    }
    assert documented == codes


def test_every_route_is_documented_and_no_other() -> None:
    settings = Settings(EngineConfig(model=Path("m.gguf")))
    app = create_app(Service(settings))
    routes = {name.replace(":path}", "}") for name in app.state.routes}
    documented = {
        name
        for cell in cells((DOCS / "api.md").read_text())
        for name in quoted(cell)
        if name.startswith(("GET ", "POST "))
    }
    assert documented == routes


def test_every_field_of_requests_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    named = {word for quote in quoted(text) for word in re.findall(r"\w+", quote)}
    bodies = (ChatBody, CompletionBody, MessagesBody, ResponsesBody, TokenizeBody, DetokenizeBody)
    for body in bodies:
        assert set(body.model_fields) <= named


def test_every_field_of_timings_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    timings = timings_object(Usage(9, 4, {"disk": 4}), Timings(1.5, 2.5, 3, {}, {}, 4.5, 5.5))
    (sample,) = (
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", text, re.S)
        if "cache_n" in block
    )
    assert list(sample) == list(timings)
    assert set(timings) <= {name for cell in cells(text) for name in quoted(cell)}


def test_error_codes_are_only_those_of_the_tree() -> None:
    for path in (ROOT / "spillcache").rglob("*.py"):
        if path.name != "errors.py":
            assert not re.findall(r"^    code\b.*= \"[A-Z_]+\"$", path.read_text(), re.M), path


def test_every_metric_is_documented_and_no_other() -> None:
    text = (DOCS / "metrics.md").read_text()
    documented = {
        quoted(cell)[0]: (kind.strip(), set(quoted(labels.split(":")[0])))
        for line in text.splitlines()
        if line.startswith("| `")
        for cell, kind, labels, *_ in [line.split(" | ")]
    }
    families = {
        family.name: (family.type, labels_of(family.name))
        for family in Metrics().registry.collect()
    }
    assert documented == families


def labels_of(name: str) -> set[str]:
    """The labels that a metric of that name is declared with."""
    metric = next(
        value for value in vars(Metrics()).values() if getattr(value, "_name", None) == name
    )
    return set(metric._labelnames)


def test_every_dependency_has_a_reason_and_a_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        declared += extra
    names = {re.split(r"[\[<>=!~ ]", line)[0] for line in declared} - {"spillcache"}
    text = (DOCS / "dependencies.md").read_text()
    assert {quoted(cell)[0] for cell in cells(text)} == names
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert names <= pinned
    assert all("==" in line or line.startswith("#") or not line for line in pins)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in quoted(page.read_text()):
        if re.fullmatch(r"(tests|docs|bench|\.ci)/[\w./-]+\.\w+", name):
            assert (ROOT / name).exists(), name
        elif re.fullmatch(r"(spillcache/)?([a-z_]+/)?[a-z_]+\.py", name):
            assert (ROOT / "spillcache" / name.removeprefix("spillcache/")).exists(), name


def shell_lines(page: Path) -> Iterator[str]:
    for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.split(" # ")[0].strip().removeprefix("$ ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_examples_exist_with_their_flags(page: Path) -> None:
    known = commands()
    makefile = (ROOT / "Makefile").read_text()
    for line in shell_lines(page):
        if line.startswith("make "):
            target = line.split()[-1]
            assert f"\n{target}:" in makefile, line
        elif line.startswith("spillcache "):
            words = line.split(" -- ")[0].split()[1:]
            name = next(
                " ".join(words[:count]) for count in (2, 1, 0) if " ".join(words[:count]) in known
            )
            flags = {
                word.strip("[]").split("=")[0] for word in words if word.strip("[").startswith("-")
            }
            assert flags <= set(flags_of(known[name])), line


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for name in commands():
        if name and name != "bench":
            assert f"spillcache {name}" in text

"""The dashboard, the unit, the image and the configuration of docs/ say what the code has."""

import configparser
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from spillcache.cli import serve_command
from spillcache.cli.main import app
from spillcache.config import Settings
from spillcache.metrics import Metrics

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS / "examples"


def options() -> dict[str, Any]:
    """Flags of ``serve`` by all their names."""
    command: Any = typer.main.get_command(app)
    return {name: option for option in command.commands["serve"].params for name in option.opts}


def expressions() -> Iterator[str]:
    board = json.loads((DOCS / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_every_metric_of_the_dashboard_exists_with_its_labels() -> None:
    metrics = [value for value in vars(Metrics()).values() if hasattr(value, "_labelnames")]
    labels: dict[str, set[str]] = {}
    for metric in metrics:
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        for ending in endings.get(metric._type, [""]):
            labels[metric._name + ending] = set(metric._labelnames)
    used = set()
    for expression in expressions():
        for name, inside in re.findall(r"(spillcache_\w+)\{([^}]*)\}", expression):
            used.add(name)
            assert name in labels, expression
            selected = set(re.findall(r"(\w+)=", inside))
            grouped = set(re.findall(r"[\w]+", "".join(re.findall(r"by \(([^)]*)\)", expression))))
            assert selected | grouped <= labels[name] | {"instance", "le"}, expression
        assert len(re.findall(r"spillcache_", expression)) == len(
            re.findall(r"spillcache_\w+\{", expression)
        )
    assert len(used) > 15


def test_the_dashboards_panels_do_not_overlap() -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_units_command_exists_with_its_flags() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / "spillcache.service")
    words = unit["Service"]["ExecStart"].split()
    assert (Path(words[0]).name, words[1]) == ("spillcache", "serve")
    assert {word for word in words if word.startswith("--")} <= set(options())
    assert float(unit["Service"]["TimeoutStopSec"]) >= 20


def test_every_key_of_the_configuration_is_a_flag() -> None:
    values = tomllib.loads((EXAMPLES / "spillcache.toml").read_text())
    assert values
    assert {f"--{key}" for key in values} <= set(options())


def test_the_configuration_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "spillcache.toml").read_text()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "keys").write_text("a key\n")
    (tmp_path / "keys").chmod(0o600)
    for there in ("/srv/models", "/var/cache", "/etc/spillcache"):
        text = text.replace(there, str(tmp_path))
    (tmp_path / "serve.toml").write_text(text)
    seen: list[Settings] = []

    def run_server(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(serve_command, "_run_server", run_server)
    for option in options().values():
        for variable in [option.envvar] if isinstance(option.envvar, str) else []:
            monkeypatch.delenv(variable, raising=False)
    command: Any = typer.main.get_command(app)
    command.main(["serve", "--config", str(tmp_path / "serve.toml")], standalone_mode=False)
    assert capsys.readouterr().err == ""
    assert seen[0].serve.api_keys == ("a key",)
    assert seen[0].serve.isolation == "api-key"


def test_the_images_variables_are_those_of_flags() -> None:
    text = (EXAMPLES / "Containerfile").read_text()
    known = {option.envvar for option in options().values() if option.envvar}
    named = set(re.findall(r"\b(?:LLAMA|SPILLCACHE)_\w+", text))
    assert named
    assert named <= known

"""The one-way rule of docs/architecture.md, held for every import, lazy ones and types included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spillcache"
ALLOWED = {
    "root": {"root"},
    "store": {"root", "store"},
    "cache": {"root", "store", "cache"},
    "engine": {"root", "engine"},
    "serve": {"root", "store", "cache", "engine", "serve"},
    "connect": {"root", "store", "cache", "connect"},
    "cli": {"root", "store", "cache", "engine", "serve", "connect", "cli"},
}
ROOMS = set(ALLOWED) - {"root"}
FRONT_DOOR = "__main__.py"  # ``python -m spillcache``: the one root module that may name the cli
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """The room that a dotted module name below ``spillcache`` lies in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "root"


def imported(source: str, package: str) -> Iterator[str]:
    """Dotted names of all that a module of ``package`` imports, at the top or anywhere inside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parts if node.level else []), *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"}:
            yield from (
                argument.value
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def called_name(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "spillcache"}


def package_of(path: Path) -> str:
    return ".".join(["spillcache", *path.relative_to(PACKAGE).parts[:-1]])


def forbidden(path: Path, source: str) -> set[str]:
    room = room_of(package_of(path))
    return {
        name
        for name in ours(imported(source, package_of(path)))
        if room_of(name) not in ALLOWED[room]
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    if path == PACKAGE / FRONT_DOOR:
        assert ours(imported(path.read_text(), "spillcache")) == {
            "spillcache.cli.main",
            "spillcache.cli.main.run",
        }
    else:
        assert not forbidden(path, path.read_text())


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("store", "from spillcache.engine.base import Engine"),
        ("store", "import spillcache.cache.policy"),
        ("cache", "def f():\n    from spillcache.engine import base"),
        (
            "cache",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import spillcache.serve",
        ),
        ("engine", "from ..cache.policy import x"),
        ("engine", "from .. import store"),
        ("engine", "from spillcache import cache"),
        ("serve", "import importlib\nimportlib.import_module('spillcache.cli.main')"),
        ("connect", "from importlib import import_module\nimport_module('spillcache.serve.app')"),
        ("", "__import__('spillcache.cli.main')"),
    ],
)
def test_the_rule_sees_what_it_must(room: str, source: str) -> None:
    assert forbidden(PACKAGE / room / "new.py", source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("cache", "from spillcache.store.block_store import BlockStore"),
        ("serve", "from ..engine.base import Engine\nfrom . import job"),
        ("cli", "import spillcache.serve.server"),
        ("engine", "import json\nfrom spillcache.errors import EngineError"),
    ],
)
def test_the_rule_allows_what_it_may(room: str, source: str) -> None:
    assert not forbidden(PACKAGE / room / "new.py", source)


def test_every_room_is_known_and_flat() -> None:
    folders = {path.parent.relative_to(PACKAGE).parts for path in MODULES}
    assert {parts[0] for parts in folders if parts} <= ROOMS
    assert max(len(parts) for parts in folders) == 1


def test_only_the_front_door_has_something_in_its_init() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        assert path.read_text() == "", path


def test_a_file_is_one_noun() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: lines for name, lines in long.items() if lines > 550}

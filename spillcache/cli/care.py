"""What the commands that care for a cache directory share: its name, opening it, progress."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.config import expanded
from spillcache.errors import ConfigError

if TYPE_CHECKING:
    from spillcache.store.block_store import BlockStore, NamespaceInfo
    from spillcache.store.view import StoreView

DISK_VARIABLE = "SPILLCACHE_DISK"
"""Names the cache directory where no flag does."""
_SHORTEST_ID = 4

Directory = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="The cache directory.", show_default=False)
]
CacheDisk = Annotated[
    Path | None,
    typer.Option(
        "--cache-disk", metavar="DIR", envvar=DISK_VARIABLE, help="The same, as serve calls it."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]

Tell = Callable[[int, int], None]
"""Told how much is done, and of how much."""


def directory_of(directory: Path | None, cache_disk: Path | None, command: str) -> Path:
    """The cache directory that a command is about; raises ConfigError if none is named."""
    path = directory or cache_disk
    if path is None:
        raise ConfigError(f"name the cache directory: spillcache {command} DIR")
    return expanded(path)


def directory_and_name(
    words: list[str], cache_disk: Path | None, command: str, *, needs_name: bool
) -> tuple[Path, str | None]:
    """From ``[DIR] [NAME]``: the directory may be left out when a flag or a variable names it."""
    if len(words) > 2:
        raise ConfigError(f"too many words; write: spillcache {command}")
    if len(words) == 2:
        return expanded(Path(words[0])), words[1]
    if words and needs_name and cache_disk is not None:
        return expanded(cache_disk), words[0]
    if words:
        return expanded(Path(words[0])), None
    return directory_of(None, cache_disk, command), None


def look(path: Path) -> "StoreView":
    """A look at the store in ``path``; raises StoreError if there is none."""
    from spillcache.store.block_store import BlockStore  # noqa: PLC0415 — LMDB, NumPy, …

    return BlockStore.inspect(path)


def open_store(path: Path) -> "BlockStore":
    """Open the store in ``path``, beside whoever uses it, with the limits that they use.

    Raises StoreError if there is none: these commands make no store.
    """
    from spillcache.store.block_store import BlockStore  # noqa: PLC0415 — LMDB, NumPy, …

    return BlockStore.visit(path)


def find_namespace(path: Path, name: str) -> "NamespaceInfo":
    """The namespace whose id is, or begins with, ``name``; raises ConfigError."""
    infos = look(path).namespaces()
    wanted = name.lower()
    found = [each for each in infos if each.namespace.id.hex().startswith(wanted)]
    if len(found) == 1 and len(wanted) >= _SHORTEST_ID:
        return found[0]
    if len(found) > 1:
        raise ConfigError(f"{name!r} is the beginning of several namespaces; write more of the id")
    known = ", ".join(each.namespace.id.hex() for each in infos) or "none"
    raise ConfigError(f"{path} has no namespace {name!r}; it has {known}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless ``yes``; where nobody can answer, raises ConfigError. Aborts on no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Add --yes to say so")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[Tell]:
    """A bar on stderr, if that is a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 — only for people
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Something that moves on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 — only for people

    with Console(stderr=True).status(what):
        yield


def print_json(report: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(report))


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return False  # of another system, or of a damaged row
    return True

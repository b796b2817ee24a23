"""``spillcache purge``: delete a namespace, or all that spillcache has put into a directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillcache.cli import care
from spillcache.config import format_size
from spillcache.errors import ConfigError

if TYPE_CHECKING:
    from spillcache.store.block_store import Purged

_USAGE = "purge [DIR] NAMESPACE, or purge [DIR] --all"


def purge(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [NAMESPACE]",
            help="The cache directory, and a namespace's id, or its beginning.",
            show_default=False,
        ),
    ] = None,
    cache_disk: care.CacheDisk = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Everything of ours. Files of others in DIR stay."),
    ] = False,
    yes: care.Yes = False,
    as_json: care.AsJson = False,
) -> None:
    """Delete what a cache directory holds, of one namespace or altogether.

    While a server uses it, it is emptied; otherwise --all removes the files, too.
    """
    path, name = care.directory_and_name(words or [], cache_disk, _USAGE, needs_name=not everything)
    if everything == (name is not None):
        raise ConfigError(f"say what to delete: spillcache {_USAGE}")
    done = _purge_all(path, yes=yes) if name is None else _purge_namespace(path, name, yes=yes)
    if as_json:
        care.print_json(_report(path, done))
    else:
        _print(path, done, in_use=everything and not done.removed)


def _purge_namespace(path: Path, name: str, *, yes: bool) -> "Purged":
    """Delete a namespace, and what is remembered of its model's answers: that is text, too."""
    from spillcache.serve.token_shelf import shelf_of  # noqa: PLC0415 — LMDB, NumPy, …

    info = care.find_namespace(path, name)
    shelf = shelf_of(info.namespace)
    shown = f"{info.namespace.id.hex()} ({info.objects:,} objects)"
    care.confirm(f"Delete namespace {shown} in {path}?", yes=yes)
    with care.open_store(path) as store, care.progress_bar("deleting", "objects") as tell:
        done = store.purge(info.namespace.id, tell)
        if shelf is not None:
            more = store.purge(shelf.id, tell)
            done.objects += more.objects
            done.freed_bytes += more.freed_bytes
        return done


def _purge_all(path: Path, *, yes: bool) -> "Purged":
    from spillcache.store.block_store import BlockStore  # noqa: PLC0415 — LMDB, NumPy, …
    from spillcache.store.location import read_location  # noqa: PLC0415

    read_location(path)  # a damaged index is no reason not to delete it
    care.confirm(f"Delete everything that spillcache keeps in {path}?", yes=yes)
    removed = BlockStore.remove(path)
    if removed is not None:
        return removed
    with care.open_store(path) as store, care.progress_bar("deleting", "objects") as tell:
        return store.purge(None, tell)


def _report(path: Path, done: "Purged") -> dict[str, Any]:
    return {
        "path": str(path),
        "removed": done.removed,
        "objects": done.objects,
        "files": done.files,
        "freed_bytes": done.freed_bytes,
        "foreign": done.foreign,
    }


def _print(path: Path, done: "Purged", *, in_use: bool) -> None:
    size = format_size(done.freed_bytes)
    if not done.removed:
        print(f"{path}: {done.objects:,} objects deleted, {size}; the store goes on")
        if in_use:
            print(
                "it is in use: a server still has in memory what it worked with, and may store "
                "that again; to have it forgotten, stop the server first"
            )
        return
    print(f"{path}: {done.files:,} files deleted, {size}")
    if done.foreign:
        print(f"not ours, and left: {', '.join(done.foreign)}")

"""``spillcache invalidate``: hide a namespace, so that nothing of it is used; reversible."""

from typing import Annotated

import typer

from spillcache.cli import care
from spillcache.errors import ConfigError

_USAGE = "invalidate [DIR] NAMESPACE --reason TEXT"


def invalidate(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] NAMESPACE",
            help="The cache directory, and a namespace's id, or its beginning.",
            show_default=False,
        ),
    ] = None,
    cache_disk: care.CacheDisk = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; ls shows it.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Show it again.")] = False,
    as_json: care.AsJson = False,
) -> None:
    """Hide a namespace: its blocks stay, but no server finds or adds any, until --undo."""
    path, name = care.directory_and_name(words or [], cache_disk, _USAGE, needs_name=True)
    if name is None:
        raise ConfigError(f"say which namespace: spillcache {_USAGE}")
    if undo == bool(reason and reason.strip()):
        raise ConfigError("say why, with --reason TEXT; or show it again, with --undo")
    info = care.find_namespace(path, name)
    with care.open_store(path) as store:
        if undo:
            store.reinstate(info.namespace.id)
        else:
            store.invalidate(info.namespace.id, reason or "")
    if as_json:
        hidden = {"namespace": info.namespace.id.hex(), "hidden": not undo}
        care.print_json({"path": str(path), **hidden})
    else:
        word = "is found again" if undo else "is hidden: servers compute anew what it holds"
        print(f"{path}: {info.namespace.id.hex()} {word}")

"""The doctor's look at a cache directory: whether it can hold a store, and how its store is.

Nothing is changed, and no store is made.
"""

import stat
from collections.abc import Iterator
from pathlib import Path

from spillcache.cli.doctor_report import Finding
from spillcache.config import GIB, counted, format_size
from spillcache.errors import StoreError, StoreIndexError
from spillcache.store.block_store import BlockStore, StoreView, Usage
from spillcache.store.files import Files
from spillcache.store.location import Location, examine, existing
from spillcache.store.mounts import filesystem_of
from spillcache.store.probe import Health, health
from spillcache.store.tenancy import alone_with

_MIN_FREE_BYTES = 4 * GIB
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def look_at_directory(path: Path) -> Iterator[Finding]:
    """Finding after finding; the first bad one about the place itself ends it."""
    try:
        location = examine(path)
    except StoreError as error:
        yield Finding("directory", "bad", str(error), "choose or make another directory")
        return
    if location is None:
        there = "is empty" if path.exists() else "is not there yet"
        yield Finding("directory", "ok", f"{path} {there}; the first server makes a store in it")
        yield _filesystem(path)
        yield _free_space(Files().free_bytes(existing(path.absolute())), _MIN_FREE_BYTES)
        return
    yield Finding("directory", "ok", f"{path} holds a store of this format")
    yield _filesystem(path)
    yield _permissions(path)
    yield from _store(location)


def _filesystem(path: Path) -> Finding:
    kind = filesystem_of(path)
    if kind is None:
        return Finding("filesystem", "ok", "not told by this system")
    if kind in ("tmpfs", "ramfs"):
        todo = "name a directory on a disk, or nothing outlives the machine"
        return Finding("filesystem", "note", f"{kind}: memory, not a disk", todo)
    return Finding("filesystem", "ok", f"{kind}, local")


def _permissions(path: Path) -> Finding:
    """The directory and all in it belong to its owner alone."""
    wide = [each for each in (path, *path.rglob("*")) if _is_wide(each)]
    if not wide:
        return Finding("permissions", "ok", "only its owner can read it")
    names = ", ".join(str(each.relative_to(path.parent)) for each in wide[:3])
    more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
    text = f"others may read {names}{more}; they hold prompts in recoverable form"
    return Finding("permissions", "note", text, f"chmod -R go= {path}")


def _is_wide(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return bool(mode & _OTHERS) and not stat.S_ISLNK(mode)


def _store(location: Location) -> Iterator[Finding]:
    try:
        view = BlockStore.inspect(location.path, _MIN_FREE_BYTES)
        found = _index(location)
    except StoreIndexError as error:
        yield _damaged(location, str(error))
        return
    except StoreError as error:
        yield Finding("index", "bad", str(error), "look at the disk")
        return
    yield found
    if found.state == "bad":
        return
    yield _free_space(view.usage().free_bytes, view.usage().min_free)
    yield _quota(view.usage())
    yield _contents(view)


def _index(location: Location) -> Finding:
    """Walked page by page in a child process, if nobody uses it."""
    try:
        with alone_with(location.path) as alone:
            state = health(location.index) if alone else None
    except OSError as error:
        return Finding("index", "bad", f"{error}", "look at the disk")
    if state is None:
        return Finding("index", "ok", "in use by a server, and readable")
    if state is Health.DAMAGED:
        return _damaged(location, "damaged")
    if state is Health.UNKNOWN:
        return Finding("index", "note", "could not be looked through", "look at memory and disk")
    return Finding("index", "ok", "sound")


def _damaged(location: Location, text: str) -> Finding:
    todo = f"run: spillcache repair {location.path}; nothing but the cache is lost"
    return Finding("index", "bad", text, todo)


def _free_space(free_bytes: int, min_free_bytes: int) -> Finding:
    text = f"{format_size(free_bytes)} free, of which {format_size(min_free_bytes)} stay free"
    if free_bytes > min_free_bytes + GIB:
        return Finding("free space", "ok", text)
    todo = "free space on the filesystem, or lower --cache-disk-min-free"
    if free_bytes > min_free_bytes:
        return Finding("free space", "note", f"{text}: little is left", todo)
    return Finding("free space", "bad", f"{text}: nothing can be written", todo)


def _quota(usage: Usage) -> Finding:
    used, quota = usage.allocated_bytes, usage.quota_bytes
    text = f"{format_size(used)} of {format_size(quota)}"
    if used > quota:
        return Finding("quota", "note", f"{text}: too much", "run: spillcache gc")
    return Finding("quota", "ok", text)


def _contents(view: StoreView) -> Finding:
    usage = view.usage()
    hidden = sum(each.hidden_since is not None for each in view.namespaces())
    text = f"{counted(usage.objects, 'object')}, {counted(usage.segments, 'segment')}"
    if hidden:
        text += f", {counted(hidden, 'hidden namespace')}"
    if view.quarantined:
        todo = "if there are more and more of them, check the disk and the memory"
        return Finding(
            "contents", "note", f"{text}, {counted(view.quarantined, 'damaged record')}", todo
        )
    return Finding("contents", "ok", text)

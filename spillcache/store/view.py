"""What a store holds and takes, for people: the same for an open store and for one that is only
looked at.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spillcache.errors import StoreIndexError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.catalog import Catalog
from spillcache.store.files import BLOCK_BYTES, Files, store_error
from spillcache.store.index import Index
from spillcache.store.index_opening import is_sound
from spillcache.store.location import Location, read_location
from spillcache.store.objects import NamespaceInfo, Usage
from spillcache.store.quarantine import Quarantine
from spillcache.store.rows import SegmentState
from spillcache.store.tails import count_tails
from spillcache.store.tenancy import alone_with

_NS_PER_S = 1_000_000_000

opening = threading.RLock()
"""Held while an index is opened or looked at: LMDB allows one environment per process and
directory.
"""


LIMITS_NOTE = b"store:limits"
"""The note of the limits that are not the store's own but those of whoever opened it last."""


def pack_limits(min_free_bytes: int, max_age_s: float | None) -> bytes:
    """What ``LIMITS_NOTE`` says."""
    return json.dumps({"min_free_bytes": min_free_bytes, "max_age_s": max_age_s}).encode()


def noted_limits(catalog: Catalog, min_free_bytes: int = 0) -> tuple[int, float | None]:
    """What is to be left free, in bytes, and the greatest age in seconds, as noted; if nothing was,
    ``min_free_bytes``, and no age.
    """
    try:
        noted = json.loads(catalog.note(LIMITS_NOTE) or b"{}")
        min_free, max_age = noted.get("min_free_bytes", min_free_bytes), noted.get("max_age_s")
        return int(min_free), None if max_age is None else float(max_age)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return min_free_bytes, None


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as it was when ``BlockStore.inspect`` was called; holds nothing open."""

    path: Path
    store_id: bytes
    _namespaces: tuple[NamespaceInfo, ...]
    _usage: Usage
    max_age_s: float | None
    """``--cache-max-age`` of whoever opened it last."""
    writers: tuple[int, ...]
    """Process ids of those who write to it, or were killed while they did."""
    quarantined: int
    """Records in quarantine."""

    def namespaces(self) -> list[NamespaceInfo]:
        """As ``BlockStore.namespaces``."""
        return list(self._namespaces)

    def usage(self) -> Usage:
        """As ``BlockStore.usage``."""
        return self._usage


def look(path: Path, min_free_bytes: int = 0, index: Index | None = None) -> StoreView:
    """Look at the store in ``path`` without changing anything; ``index``: the one this process has
    open, if any.

    Raises StoreLocationError, StoreFormatError and StoreIndexError.
    """
    with looked_at(path, index) as (location, _, catalog):
        found = tuple(namespace_infos(catalog))
        min_free_bytes, max_age_s = noted_limits(catalog, min_free_bytes)
        usage = usage_of(catalog, location, min_free_bytes, location.quota_bytes)
        is_open = SegmentState.OPEN
        writers = {row.owner_pid for _, row in catalog.segments() if row.state == is_open}
    quarantined = len(Quarantine(location.quarantine).records())
    return StoreView(
        location.path,
        location.store_id,
        found,
        usage,
        max_age_s=max_age_s,
        writers=tuple(sorted(writers)),
        quarantined=quarantined,
    )


@contextmanager
def looked_at(path: Path, index: Index | None) -> Iterator[tuple[Location, Index, Catalog]]:
    """A snapshot of the store in ``path``; as ``look``."""
    location = read_location(path)
    own = _opened(location) if index is None else index
    try:
        with own.read() as catalog:
            yield location, own, catalog
    finally:
        if index is None:
            own.close()


def _opened(location: Location) -> Index:
    """The index, to be read only; never one that is damaged, as far as can be told: LMDB would
    follow its pages anywhere.
    """
    try:
        with alone_with(location.path) as alone:
            if alone and not is_sound(location):
                raise StoreIndexError(f"the index {location.index} is damaged")
        return Index(location.index, read_only=True)
    except StoreIndexError as error:
        raise StoreIndexError(
            f"{error}; to make it whole again, run: spillcache repair {location.path}"
        ) from error
    except OSError as error:
        raise store_error(error, "the index was looked through") from error


def namespace_infos(catalog: Catalog) -> list[NamespaceInfo]:
    """Every namespace, the most recently used first."""
    by_part = catalog.usage()
    found = []
    for namespace_id, row in catalog.namespaces():
        try:
            namespace = Namespace.decode(row.encoding)
        except ValueError as error:
            raise StoreIndexError(f"the index has a damaged namespace: {error}") from error
        parts = {part: usage for (owner, part), usage in by_part.items() if owner == namespace_id}
        tails = count_tails(catalog, namespace_id)
        found.append(
            NamespaceInfo(
                namespace=namespace,
                objects=sum(usage.objects for usage in parts.values()),
                blocks=parts[Part.KV].objects - tails if Part.KV in parts else 0,
                raw_bytes=sum(usage.raw_bytes for usage in parts.values()),
                stored_bytes=sum(usage.stored_bytes for usage in parts.values()),
                parts={part: usage.objects for part, usage in parts.items()},
                created=row.created_ns / _NS_PER_S,
                last_used=row.last_used_ns / _NS_PER_S,
                hidden_since=row.hidden_ns / _NS_PER_S if row.hidden_ns else None,
                reason=row.reason,
                tails=tails,
            )
        )
    return sorted(found, key=lambda info: -info.last_used)


def usage_of(catalog: Catalog, location: Location, min_free_bytes: int, quota_bytes: int) -> Usage:
    """What the store takes; walks the directory's few files."""
    return Usage(
        allocated_bytes=directory_bytes(location.path),
        quota_bytes=quota_bytes,
        min_free=min_free_bytes,
        free_bytes=Files().free_bytes(location.path),
        segments=len(catalog.segments()),
        objects=sum(usage.objects for usage in catalog.usage().values()),
    )


def directory_bytes(path: Path) -> int:
    """What everything in a directory takes on the filesystem, the directory included."""
    total = 0
    for each in (path, *path.rglob("*")):
        try:
            total += each.lstat().st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue  # removed meanwhile
    return total

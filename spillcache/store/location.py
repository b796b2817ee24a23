"""The directory of a store: whether it can hold one, whether it is ours, and the settings that
belong to it.

A directory is made into a store only if it was empty; whatever is not ours is never adopted and
never deleted.
"""

import errno
import json
import logging
import os
import secrets
import shutil
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spillcache.config import GIB, MIB, expanded, format_size
from spillcache.errors import ConfigError, StoreError, StoreFormatError, StoreLocationError
from spillcache.store.files import DIRECTORY_MODE, store_error, sync_directory
from spillcache.store.format import FORMAT, STORE_ID_BYTES
from spillcache.store.mounts import MOUNTS, NETWORK, filesystem_of
from spillcache.store.small_files import TEMPORARY, read_small, replace_file, write_temporary

SETTINGS = "spillcache.json"
INDEX = "index"
SEGMENTS = "segments"
QUARANTINE = "quarantine"
DAMAGED = "index.damaged"
"""The last index that was found damaged and replaced; may be deleted."""
DEFAULT_QUOTA_BYTES = 32 * GIB
MIN_QUOTA_BYTES = 64 * MIB

_IGNORED = {"lost+found"}
_LARGEST = 1 << 63
log = logging.getLogger("spillcache.store")


@dataclass(frozen=True, slots=True)
class Location:
    """A directory that holds a store of this format, and its settings."""

    path: Path
    store_id: bytes
    quota_bytes: int
    created_ns: int

    @property
    def index(self) -> Path:
        """The LMDB environment's directory."""
        return self.path / INDEX

    @property
    def segments(self) -> Path:
        """The segment files' directory."""
        return self.path / SEGMENTS

    @property
    def quarantine(self) -> Path:
        """The directory of records that failed verification."""
        return self.path / QUARANTINE


def open_location(
    path: Path, quota_bytes: int | None = None, mounts: Path = MOUNTS, *, make: bool = True
) -> Location:
    """The store in ``path``, made if the directory is missing or empty, unless ``make`` is false; a
    quota given here is from now on the store's.

    Raises StoreLocationError, StoreFormatError, ConfigError for a quota that can't be, and
    StoreError when the filesystem fails.
    """
    path = expanded(path).absolute()
    _check_quota(quota_bytes)
    try:
        _check_filesystem(path, mounts)
        if not make:
            read_location(path)
        _check_directory(path)
        location = _read_settings(path) or _create(path, quota_bytes or DEFAULT_QUOTA_BYTES)
        rooms = (location.index, location.segments, location.quarantine)
        made = [_make_directory(each) for each in rooms]
        if any(made):
            sync_directory(path)
        return _with_quota(location, quota_bytes)
    except OSError as error:
        raise _location_error(path, error) from error


def _check_quota(quota_bytes: int | None) -> None:
    if quota_bytes is not None and quota_bytes < MIN_QUOTA_BYTES:
        raise ConfigError(
            f"--cache-disk-size: {format_size(quota_bytes)} is under the least that a cache on "
            f"disk can work with, {format_size(MIN_QUOTA_BYTES)}"
        )
    if quota_bytes is not None and quota_bytes >= _LARGEST:
        raise ConfigError(f"--cache-disk-size: {format_size(quota_bytes)} is more than can be")


def examine(path: Path, mounts: Path = MOUNTS) -> Location | None:
    """What ``open_location`` would find, without changing anything: the store in ``path``; None if
    one can be made there. Raises StoreLocationError, StoreFormatError and StoreIOError.
    """
    path = expanded(path).absolute()
    try:
        _check_filesystem(path, mounts)
        above = existing(path)
        if above != path and path.is_symlink():
            raise StoreLocationError(f"{path} is a link to something that is not there")
        if above != path and os.access(above, os.W_OK | os.X_OK):
            return None
        if above != path:
            raise StoreLocationError(f"{path} can't be made, for {above} can't be written to")
        _check_directory(path)
        return _read_settings(path)
    except OSError as error:
        raise _location_error(path, error) from error


def existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def read_location(path: Path) -> Location:
    """The store in ``path``, only looked at; raises StoreLocationError and StoreFormatError."""
    path = expanded(path).absolute()
    try:
        if not path.exists():
            raise StoreLocationError(f"{path} is not there")
        if not path.is_dir():
            raise StoreLocationError(f"{path} is not a directory")
        if os.geteuid():  # root may look at anybody's
            _require_owner(path)
        if not (path / SETTINGS).exists():
            raise StoreFormatError(f"{path} holds no spillcache store")
        location = _read_settings(path)
    except OSError as error:
        raise _location_error(path, error) from error
    if location is None:  # it went just now
        raise StoreFormatError(f"{path} holds no spillcache store")
    return location


def set_aside_index(location: Location) -> None:
    """Move a damaged index out of the way, in place of an older one; an empty directory takes its
    place.

    Only while no other process has the store open. Raises OSError.
    """
    damaged = location.path / DAMAGED
    if damaged.exists():
        shutil.rmtree(damaged)
    location.index.rename(damaged)
    _make_directory(location.index)
    sync_directory(location.path)


def _check_filesystem(path: Path, mounts: Path) -> None:
    kind = filesystem_of(path, mounts)
    if kind in NETWORK:
        raise StoreLocationError(
            f"{path} is on a network filesystem ({kind}), where the index's locks and shared "
            "memory don't work; choose a directory on a local disk"
        )


def _check_directory(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_directory(path)
        return
    if not stat.S_ISDIR(found.st_mode):
        raise StoreLocationError(f"{path} is not a directory; choose a directory for the cache")
    _require_owner(path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StoreLocationError(f"{path} can't be written to; choose a writable directory")


def _require_owner(path: Path) -> None:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise StoreLocationError(
            f"{path} belongs to user {owner}, not to the user {os.geteuid()} who runs this; "
            "choose another directory, or change its owner"
        )


def _make_directory(path: Path) -> bool:
    """Make a directory that only its owner can enter, whatever the umask; one that is there is
    narrowed to that.
    """
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise StoreFormatError(
                f"{path} should be a directory of the store, but is not"
            ) from None
        if stat.S_IMODE(found.st_mode) != DIRECTORY_MODE:
            path.chmod(DIRECTORY_MODE)
        return False
    path.chmod(DIRECTORY_MODE)
    return True


def _location_error(path: Path, error: OSError) -> StoreError:
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StoreLocationError(f"{path} can't be used for the cache: {error.strerror}")
    if isinstance(error, FileNotFoundError | NotADirectoryError | FileExistsError):
        return StoreLocationError(f"{path} can't be used for the cache: {error}")
    return store_error(error, f"opening the cache directory {path}")


def _read_settings(path: Path) -> Location | None:
    """The settings file's content; None if there is none and the directory is empty, so that it may
    become ours.
    """
    raw = read_small(path / SETTINGS)
    if raw is None:
        _require_empty(path)
        return None
    try:
        return _parse_settings(path, json.loads(raw))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StoreFormatError(
            f"{path / SETTINGS} is not a store's settings ({error}); move the directory away, "
            "or choose another"
        ) from error


def _parse_settings(path: Path, fields: dict[str, Any]) -> Location:
    if fields["format"] != FORMAT:
        raise StoreFormatError(
            f"{path} holds a store of format {fields['format']!r}, and this version of spillcache "
            f"knows only {FORMAT}; choose another directory"
        )
    store_id = bytes.fromhex(fields["store_id"])
    if len(store_id) != STORE_ID_BYTES:
        raise ValueError("store_id has the wrong length")
    quota_bytes, created_ns = int(fields["quota_bytes"]), int(fields["created_ns"])
    if not (0 < quota_bytes < _LARGEST and 0 <= created_ns < _LARGEST):
        raise ValueError("a number is out of range")
    return Location(path, store_id, quota_bytes, created_ns)


def _require_empty(path: Path) -> None:
    for each in path.iterdir():
        if each.name not in _IGNORED and not each.name.startswith(TEMPORARY):
            raise StoreFormatError(
                f"{path} is not empty and holds no spillcache store ({each.name!r} is in it); "
                "choose an empty directory"
            )


def _create(path: Path, quota_bytes: int) -> Location:
    """Make an empty directory a store; if another process is quicker, take what it made."""
    _make_directory(path)
    location = Location(path, secrets.token_bytes(STORE_ID_BYTES), quota_bytes, time.time_ns())
    temporary = write_temporary(path, _settings(location))
    try:
        os.link(temporary, path / SETTINGS)
    except FileExistsError:
        made = _read_settings(path)
        if made is None:
            raise
        return made
    finally:
        temporary.unlink()
    sync_directory(path)
    log.info("store created path=%s quota=%s", path, format_size(quota_bytes))
    return location


def _settings(location: Location) -> bytes:
    """The content of the settings file."""
    fields = {
        "format": FORMAT,
        "store_id": location.store_id.hex(),
        "quota_bytes": location.quota_bytes,
        "created_ns": location.created_ns,
    }
    return json.dumps(fields, indent=2).encode() + b"\n"


def settings_stamp(location: Location) -> tuple[int, int]:
    """Changes whenever the settings are replaced. Raises OSError."""
    found = (location.path / SETTINGS).lstat()
    return found.st_ino, found.st_mtime_ns


def _with_quota(location: Location, quota_bytes: int | None) -> Location:
    if quota_bytes is None or quota_bytes == location.quota_bytes:
        return location
    changed = replace(location, quota_bytes=quota_bytes)
    replace_file(location.path / SETTINGS, _settings(changed))
    log.info(
        "store quota changed path=%s from=%s to=%s",
        location.path,
        format_size(location.quota_bytes),
        format_size(quota_bytes),
    )
    return changed

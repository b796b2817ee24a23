"""Records that failed verification, kept for people to look at; bounded in number and bytes."""

import logging
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from spillcache.config import MIB
from spillcache.store.files import BLOCK_BYTES, FILE_MODE
from spillcache.store.rows import Entry

MAX_RECORDS = 64
_SUFFIX = ".rec"
_NS_PER_S = 1_000_000_000
_NAME = re.compile(
    r"(\d{20})-([0-9a-f]{16})-([0-9a-f]{16})-([a-z]+)-(\d+)-(\d+)(?:-([a-z0-9-]*))?\.rec"
)
_MAX_SLUG = 80

log = logging.getLogger("spillcache.store")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One record that failed verification."""

    file: str
    time: float
    """When it was found, Unix time in seconds."""
    namespace_id: bytes
    block: str
    """The first 16 hexadecimal digits of the block's hash."""
    part: str
    reason: str
    size_bytes: int


def quarantine_bytes(quota_bytes: int) -> int:
    """The most that quarantined records may take."""
    return min(quota_bytes // 32, 64 * MIB)


class Quarantine:
    """One store's quarantine directory; any thread. Its errors are logged: a lost specimen is no
    harm.
    """

    def __init__(self, directory: Path, limit_bytes: int = 0) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes

    def keep(self, entry: Entry, record: memoryview, reason: str = "") -> int:
        """Save a record's bytes as they were read; the oldest give way. What the directory then
        takes, in bytes. ``reason`` becomes a part of the file's name.
        """
        name = (
            f"{time.time_ns():020d}-{entry.namespace_id.hex()}-{entry.block.hex()[:16]}"
            f"-{entry.part.name.lower()}-{entry.segment}-{entry.offset}-{_slug(reason)}{_SUFFIX}"
        )
        try:
            self._make_room(len(record))
            if len(record) <= self._limit_bytes:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(self._directory / name, flags, FILE_MODE), "wb") as file:
                    os.fchmod(file.fileno(), FILE_MODE)
                    file.write(record)
                    file.flush()
                    # So that st_blocks counts it.
                    os.fsync(file.fileno())
        except OSError as error:
            log.warning("a damaged record was not kept for inspection: %s", error)
        return self.allocated_bytes()

    def _make_room(self, size_bytes: int) -> None:
        records = self.records()
        taken = sum(path.lstat().st_size for path in records)
        while records and (len(records) >= MAX_RECORDS or taken + size_bytes > self._limit_bytes):
            oldest = records.pop(0)
            taken -= oldest.lstat().st_size
            oldest.unlink()

    def clear(self) -> None:
        """Delete them all."""
        for path in self.records():
            path.unlink(missing_ok=True)

    def records(self) -> list[Path]:
        """The files, oldest first."""
        try:
            return sorted(path for path in self._directory.iterdir() if _is_ours(path))
        except FileNotFoundError:
            return []

    def listed(self) -> list[Quarantined]:
        """What is known of each, oldest first. Raises OSError."""
        return [found for path in self.records() if (found := _describe(path)) is not None]

    def allocated_bytes(self) -> int:
        """What the records take on the filesystem; 0 if that can't be told."""
        try:
            return sum(path.lstat().st_blocks * BLOCK_BYTES for path in self.records())
        except OSError:
            return 0


def is_record(name: str) -> bool:
    """Whether a file of that name is a record in quarantine."""
    return _NAME.fullmatch(name) is not None


def _is_ours(path: Path) -> bool:
    try:
        return is_record(path.name) and stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _slug(reason: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", reason.lower()).strip("-")[:_MAX_SLUG]


def _describe(path: Path) -> Quarantined | None:
    """What a record's name and file tell; None if it was removed meanwhile."""
    match = _NAME.fullmatch(path.name)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if match is None:
        return None
    at, namespace_id, block, part, _, _, slug = match.groups()
    return Quarantined(
        file=path.name,
        time=int(at) / _NS_PER_S,
        namespace_id=bytes.fromhex(namespace_id),
        block=block,
        part=part,
        reason=(slug or "").replace("-", " "),
        size_bytes=found.st_size,
    )

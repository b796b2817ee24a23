"""How fast the store's own path is on a directory's filesystem: a small store of its own is
written and read.
"""

import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spillcache.chain import chain_hashes, chain_root
from spillcache.cli.care import Tell
from spillcache.cli.doctor_report import Finding
from spillcache.config import MIB, StoreConfig, format_size
from spillcache.errors import StoreError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.files import Files
from spillcache.store.location import existing
from spillcache.store.small_files import TEMPORARY, is_stale_temporary

_NAMESPACE = Namespace.of({"engine": "doctor"})
_PREFIX = f"{TEMPORARY}doctor-"
_OBJECT_BYTES = MIB
_GROUP = 32
_OBJECTS = 128
_QUOTA_BYTES = 256 * MIB
_SLOW_BYTES_PER_S = 200 * MIB


def place_beside(path: Path) -> Path:
    """A directory for temporary things on the filesystem of ``path``: above it, where that is the
    same one, so that a store's quota is not used.
    """
    here = existing(path.absolute())
    above = here.parent if here == path.absolute() else here
    same = above.stat().st_dev == here.stat().st_dev
    try:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=above):
            return above if same else here
    except OSError:
        return here


@contextmanager
def workplace(path: Path) -> Iterator[Path]:
    """A temporary directory beside ``path``; what a killed doctor left there goes. Raises
    OSError.
    """
    place = place_beside(path)
    for each in place.glob(f"{_PREFIX}*"):
        if is_stale_temporary(each) and each.lstat().st_uid == os.geteuid():
            shutil.rmtree(each, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place) as work:
        yield Path(work)


def _room_bytes(path: Path) -> int:
    """What may be written there: within a store's directory its quota counts, too."""
    place = place_beside(path)
    free = Files().free_bytes(place)
    if place == path.absolute():
        with contextlib.suppress(StoreError):
            usage = BlockStore.inspect(path).usage()
            free = min(free, usage.quota_bytes - usage.allocated_bytes)
    return free


def look_at_speed(path: Path, tell: Tell) -> Iterator[Finding]:
    """Direct I/O, and the speed of durable writes and of verified reads past the page cache."""
    if _room_bytes(path) < 2 * _QUOTA_BYTES:
        yield Finding("speed", "note", "not measured: too little space", "free some space")
        return
    try:
        with workplace(path) as work:
            reads, written_per_s, read_per_s = _measure(work / "store", tell)
    except (OSError, StoreError) as error:
        yield Finding("speed", "bad", f"a store can't be written and read: {error}", "see above")
        return
    if reads == "direct":
        yield Finding("direct I/O", "ok", "reads and writes bypass the page cache")
    else:
        text = "not on this filesystem; reads are buffered and dropped from the page cache"
        yield Finding("direct I/O", "note", text, "another filesystem would be faster")
    text = f"{format_size(written_per_s)}/s written durably, {format_size(read_per_s)}/s read"
    if min(written_per_s, read_per_s) >= _SLOW_BYTES_PER_S:
        yield Finding("speed", "ok", text)
    else:
        todo = "see with spillcache bench restart whether your model gains on this disk"
        yield Finding("speed", "note", f"{text}: slow", todo)


def _measure(path: Path, tell: Tell) -> tuple[str, float, float]:
    """How it reads, and bytes per second written and read."""
    config = StoreConfig(path, quota_bytes=_QUOTA_BYTES, min_free_bytes=0, codec="raw")
    objects = _objects()
    total = _OBJECTS * _OBJECT_BYTES
    with BlockStore.open(config) as store:
        began = time.monotonic()
        for first in range(0, _OBJECTS, _GROUP):
            store.put(_NAMESPACE, objects[first : first + _GROUP])
            tell(first * _OBJECT_BYTES, 2 * total)
        written_s = time.monotonic() - began
        found = store.find(_NAMESPACE.id, [each.block for each in objects], [Part.KV])
        began = time.monotonic()
        for count, payload in enumerate(store.read([each[Part.KV] for each in found])):
            payload.release()
            tell(total + count * _OBJECT_BYTES, 2 * total)
        read_s = time.monotonic() - began
        return str(store.describe()["reads"]), total / written_s, total / read_s


def _objects() -> list[StoreObject]:
    """A chain of noise: nothing on the way can make it smaller."""
    payload = random.Random(1).randbytes(_OBJECT_BYTES)  # noqa: S311 — not a secret
    parent = chain_root(_NAMESPACE.digest)
    out = []
    for index, block in enumerate(chain_hashes(parent, range(_OBJECTS), 1)):
        out.append(StoreObject(block, Part.KV, parent, index, 1, payload))
        parent = block
    return out

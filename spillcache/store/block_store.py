"""The store on disk: objects by namespace, block hash and part. It knows no tokens and no engine.

``put`` is durable when it returns; ``find`` tells what is there without reading payloads; ``read``
streams verified payloads. Nothing that this room does is needed for a right answer: a lost object
is computed again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from spillcache.chain import BlockHash
from spillcache.config import KIB, MIB, StoreConfig
from spillcache.errors import StoreIndexError
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.catalog import Catalog
from spillcache.store.disk_speed import read_speed
from spillcache.store.files import Files, store_error
from spillcache.store.found import Found
from spillcache.store.gc import Plan, collect, plan
from spillcache.store.index_opening import Care
from spillcache.store.objects import NamespaceInfo, PutResult, StoreObject, Usage
from spillcache.store.opened import OpenStore, acquire, index_of, release
from spillcache.store.pins import Pin
from spillcache.store.progress import Progress, Stop, never, no_progress
from spillcache.store.purge import Purged, discard, purge, remove
from spillcache.store.read_meter import Reading
from spillcache.store.reader import Failure, Payload, ReadAhead
from spillcache.store.recent import RecentBlocks, recent_blocks
from spillcache.store.repair import RepairReport, repair
from spillcache.store.room import Limits
from spillcache.store.rows import Entry
from spillcache.store.scrub import Scrub, VerifyReport
from spillcache.store.tails import tails_of
from spillcache.store.view import (
    StoreView,
    look,
    looked_at,
    namespace_infos,
    opening,
    usage_of,
)

__all__ = [
    "BlockStore",
    "Entry",
    "Found",
    "NamespaceInfo",
    "Payload",
    "Pin",
    "Plan",
    "Purged",
    "PutResult",
    "RepairReport",
    "StoreObject",
    "StoreView",
    "Usage",
    "VerifyReport",
]

_MAX_NOTE_KEY_BYTES = 480
_PROBE_BYTES = 256 * KIB


class BlockStore:
    """A handle on a store; several handles, threads and processes may use one directory at once.
    Any thread.

    Methods raise StoreIndexError when the index fails or the handle is closed.
    """

    def __init__(self, opened: OpenStore) -> None:
        self._opened: OpenStore | None = opened
        self.path = opened.location.path
        self.store_id = opened.location.store_id

    @classmethod
    def open(
        cls, config: StoreConfig, metrics: Metrics | None = None, *, files: Files | None = None
    ) -> "BlockStore":
        """Open the store in ``config.path``, made if the directory is missing or empty.

        Takes over what a process that died left behind. A second open in one process shares the
        first one's resources, ``files``, codec and key; its quota counts from then on. ``files``:
        another way to reach the operating system.

        Raises StoreLocationError (a file, read-only, a network filesystem, another user's),
        StoreFormatError (another format, or a directory with files that are not ours), ConfigError
        (a quota under the minimum, or a key that can't be used), StoreIndexError and StoreIOError.
        """
        return cls(acquire(config, metrics, files))

    @classmethod
    def visit(cls, path: Path) -> "BlockStore":
        """Open the store in ``path`` to care for it, beside whoever uses it, with the limits that
        they use. Makes none. Raises as ``open``.
        """
        return cls(acquire(StoreConfig(path), None, None, Care()))

    @staticmethod
    def inspect(path: Path, min_free_bytes: int = 0) -> StoreView:
        """Look at a store, also while others use it, without creating or changing anything.

        ``min_free_bytes`` is what it says when the store does not know with what it was opened. An
        index that is damaged is a StoreIndexError: opening the store makes it anew.

        Raises StoreLocationError, StoreFormatError and StoreIndexError.
        """
        with opening:
            return look(path, min_free_bytes, index_of(path))

    def _store(self) -> OpenStore:
        if self._opened is None:
            raise StoreIndexError(f"the store {self.path} is closed")
        self._opened.check()
        return self._opened

    def put(self, namespace: Namespace, objects: Sequence[StoreObject]) -> PutResult:
        """Store objects, parents before children; durable on return. Payloads are borrowed until
        then.

        What is there already is not written again. A KV object whose parent is neither there nor in
        ``objects`` is dropped (but for ``block_index`` 0), and with it the block's other parts. Of
        a parent's tails the most recent few are kept.
        Evicts to make room; never what is pinned, nor the blocks that these follow. What does not
        fit even then is dropped from the end.

        Raises StoreFullError when nothing could be written for want of room, StoreIOError for other
        failures of the filesystem (nothing is deleted because of them), ValueError for hashes,
        ranks or payloads that can't be.
        """
        results: list[PutResult] = []
        self.put_each(namespace, [objects], results.append)
        return results[0]

    def put_each(
        self,
        namespace: Namespace,
        batches: Iterable[Sequence[StoreObject]],
        done: Callable[[PutResult], None],
    ) -> None:
        """As a ``put`` of each batch in turn, but quicker: while one is made durable, the next is
        digested and written.

        A batch is taken while the one before it is not durable yet, so it may be one more than
        those whose results are known. ``done`` is called on this thread as soon as a batch is
        durable, in their order, and must not write to the store. What is raised ends it: the
        batches that ``done`` was not called for may be stored, or not. Where processors are few,
        this thread keeps to half of them meanwhile.
        """
        store = self._store()
        store.writer.put_each(namespace, batches, done)
        store.measure()

    def find(
        self, namespace_id: bytes, blocks: Sequence[BlockHash], parts: Sequence[Part]
    ) -> Found:
        """What is there: one dict per block, in one transaction, without payload I/O.

        Nothing of a namespace that is hidden.
        """
        with self._store().index.read() as catalog:
            return catalog.find(namespace_id, blocks, parts)

    def tails(
        self, namespace_id: bytes, parents: Sequence[BlockHash]
    ) -> list[list[dict[Part, Entry]]]:
        """For each of ``parents``: what is there of the tails that follow it, in no order.

        A tail's entries give its hash and its number of tokens: whether a prompt goes on with it,
        the hash tells.
        """
        with self._store().index.read() as catalog:
            return [tails_of(catalog, namespace_id, parent) for parent in parents]

    def find_next(
        self,
        namespace_id: bytes,
        blocks: Sequence[BlockHash],
        parts: Sequence[Part],
        parents: Sequence[BlockHash],
    ) -> tuple[Found, list[list[dict[Part, Entry]]]]:
        """``find`` of ``blocks`` and ``tails`` of ``parents`` in one transaction."""
        with self._store().index.read() as catalog:
            found = catalog.find(namespace_id, blocks, parts)
            return found, [tails_of(catalog, namespace_id, parent) for parent in parents]

    def pin(self, entries: Iterable[Entry]) -> Pin:
        """Protect the blocks of these entries from eviction by this process until the pin is
        released.
        """
        return self._store().pins.pin(entries)

    def read(
        self,
        entries: Sequence[Entry],
        stop: Stop = never,
        memory_bytes: int = 64 * MIB,
    ) -> Iterator[Payload]:
        """Stream verified payloads in the order of ``entries``; the consumer releases each.

        Threads read ahead within ``memory_bytes``, which unreleased payloads count against.
        ``stop`` is asked often, on the consumer's thread, and ends the stream early. Closing the
        iterator ends the threads and frees the rest.

        Raises, when its turn comes: CorruptBlock (the object is now quarantined), ObjectMissing
        (evicted since ``find``, or encrypted with another key), StoreIOError (nothing is deleted).
        """
        store = self._store()
        ahead = ReadAhead(
            entries,
            files=store.files,
            path_of=store.segments.path,
            pool=store.pool,
            memory_bytes=memory_bytes,
            stop=stop,
            cipher=store.cipher,
            meter=store.meter,
        )
        try:
            for item in ahead:
                if isinstance(item, Failure):
                    error = store.failed(item)
                    # Damage is rarely alone: what is known of now is made good by the next put.
                    for other in ahead.also_corrupt():
                        store.failed(other)
                    raise error from item.error
                yield item
        finally:
            ahead.close()

    def discard(self, namespace_id: bytes, blocks: Sequence[BlockHash], reason: str) -> int:
        """Delete all parts of blocks that are whole and failed all the same when they were used;
        how many objects went. To whoever reads them they are misses.

        Raises StoreIndexError and StoreIOError.
        """
        return discard(self._store(), namespace_id, blocks, reason)

    def reading(self) -> Reading:
        """What ``read`` has read so far, in this process, and in how much time."""
        return self._store().meter.read()

    def read_speed(self) -> float | None:
        """Read a little of what is there, past the page cache: bytes per second, None if there is
        too little to tell. Takes a fraction of a second, longer on a slow disk.
        """
        store = self._store()
        return read_speed(store.location.segments, store.files, store.pool, _PROBE_BYTES)

    def touch(
        self,
        namespace_id: bytes,
        block: BlockHash,
        window_blocks: int = 1,
        ahead_s: float = 0.0,
    ) -> None:
        """Note that a prefix that ends with ``block`` was used: its parts, and the last
        ``window_blocks`` windows. They have rank 0 from then on, and go as if that had been
        ``ahead_s`` later; so does a block that was evicted and is put again soon.

        Takes microseconds and no I/O: it is written with the next put, or at close. The blocks
        before it need no touch, for they are kept as long as it is.
        """
        self._store().touched.add(namespace_id, block, window_blocks, ahead_s)

    def note(self, key: str) -> bytes | None:
        """A small fact that ``set_note`` remembered, of this store; None if there is none."""
        with self._store().index.read() as catalog:
            return catalog.note(_note_key(key))

    def set_note(self, key: str, value: bytes) -> None:
        """Remember a small fact, such as a model file's digest, durably."""
        self.change_note(key, lambda _: value)

    def change_note(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace a small fact by what ``change`` makes of it, durably, in one transaction: other
        processes see it before or after. The new one.
        """
        raw = _note_key(key)

        def work(catalog: Catalog) -> bytes:
            value = change(catalog.note(raw))
            catalog.set_note(raw, value)
            return value

        return self._store().index.write(work)

    def namespaces(self) -> list[NamespaceInfo]:
        """All namespaces, the most recently used first."""
        store = self._store()
        store.write_touches()
        with store.index.read() as catalog:
            return namespace_infos(catalog)

    def recent(self, most: int) -> RecentBlocks:
        """Up to ``most`` blocks, the most recently used with all before them, in one transaction.

        Costs what it returns, not what there is; uses that were not written yet are not known.
        """
        with self._store().index.read() as catalog:
            return recent_blocks(catalog, most)

    def invalidate(self, namespace_id: bytes, reason: str) -> bool:
        """Hide a namespace: from now on nothing of it is found, and nothing is added, by any
        process; False if there is no such one.

        Nothing is deleted; ``reinstate`` undoes it. ``reason`` is for people, up to 1,000
        characters of it are kept.
        """
        return self._store().hide(namespace_id, reason)

    def reinstate(self, namespace_id: bytes) -> bool:
        """Show a hidden namespace again; False if there is no such one."""
        return self._store().hide(namespace_id, None)

    @staticmethod
    def plan_gc(
        path: Path,
        target_bytes: int | None = None,
        max_age_s: float | None = None,
        min_free_bytes: int = 0,
    ) -> Plan:
        """What ``gc`` would do, without changing anything, also while others use the store.

        Raises StoreLocationError, StoreFormatError and StoreIndexError.
        """
        with opening, looked_at(path, index_of(path)) as (location, index, catalog):
            limits = Limits(location.quota_bytes, min_free_bytes, max_age_s)
            return plan(catalog, index, location, limits, target_bytes)

    def gc(
        self,
        target_bytes: int | None = None,
        max_age_s: float | None = None,
        progress: Progress = no_progress,
    ) -> Plan:
        """Evict what was not used for ``max_age_s``, then as much as the limits and
        ``target_bytes`` ask for; free what nothing names. What was done.

        Other threads and processes go on meanwhile. ``progress`` is told bytes done and to do.
        """
        try:
            return collect(self._store(), target_bytes, max_age_s, progress)
        except OSError as error:
            raise store_error(error, "the store was collected") from error

    def purge(self, namespace_id: bytes | None = None, progress: Progress = no_progress) -> Purged:
        """Delete every object of a namespace, or of all of them, pinned or not; also while others
        use the store, to whom they are misses.

        A hidden namespace stays hidden. ``progress`` is told objects done and to do.
        """
        return purge(self._store(), namespace_id, progress)

    def verify(
        self,
        fix: bool = False,
        progress: Progress = no_progress,
        stop: Stop = never,
    ) -> VerifyReport:
        """Read everything and compare it with what was written; also while others use the store.

        Without ``fix`` nothing is changed. With it, damaged objects go to quarantine, objects whose
        file is gone are forgotten, and damaged headers of segments are written anew. An object that
        the filesystem fails to give is counted and left alone. ``progress`` is told bytes done and
        to do; ``stop`` is asked often and ends it early. Memory is bounded to 64 MiB, or the
        largest object.

        Raises StoreIOError and StoreIndexError when it can't go on.
        """
        return Scrub(self._store(), fix=fix, progress=progress, stop=stop).run()

    @staticmethod
    def repair(
        path: Path,
        progress: Progress = no_progress,
        *,
        anew: bool = False,
        files: Files | None = None,
    ) -> RepairReport:
        """Look through all of the index; make it anew from the segments if it is damaged (or if
        ``anew`` says so), and name what it lacks if it is not.

        Waits for another repair. Beside processes that have the store open a sound index is
        completed; one that would have to be replaced is a StoreIndexError that says so. An index
        that was replaced is kept in ``index.damaged``; its notes, and when blocks were used, are
        lost. ``progress`` is told how much is done and to do.

        Raises StoreLocationError, StoreFormatError (there is no store), StoreIndexError and
        StoreIOError.
        """
        return repair(path, progress, anew=anew, files=files)

    @staticmethod
    def remove(path: Path) -> Purged | None:
        """Delete all files of a store, and nothing else; None, and nothing is done, if somebody has
        it open: then ``purge`` empties it.

        Raises StoreLocationError, StoreFormatError (there is no store) and StoreIOError.
        """
        return remove(path)

    def usage(self) -> Usage:
        """What the store takes now; walks the directory."""
        store = self._store()
        limits = store.room.limits
        with store.index.read() as catalog:
            return usage_of(catalog, store.location, limits.min_free_bytes, limits.quota_bytes)

    def describe(self) -> dict[str, str | int]:
        """For ``/health`` and benches: how segment bytes are read, and the limits."""
        store = self._store()
        return {
            "reads": store.reads(),
            "path": str(self.path),
            "quota_bytes": store.room.limits.quota_bytes,
            "min_free_bytes": store.room.limits.min_free_bytes,
            "codec": store.writer.codec,
            "pinned_blocks": len(store.pins),
            "key_id": "" if store.cipher is None else store.cipher.key_id.hex(),
        }

    def close(self) -> None:
        """Let go of it; may be called twice. The last handle of a process leaves no thread and no
        open file.
        """
        opened, self._opened = self._opened, None
        if opened is not None:
            release(opened)

    def __enter__(self) -> "BlockStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _note_key(key: str) -> bytes:
    raw = key.encode()
    return raw if len(raw) <= _MAX_NOTE_KEY_BYTES else b"blake3:" + blake3(raw).hexdigest().encode()

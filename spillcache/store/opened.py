"""A directory's store as one process has it open, once, however many ``BlockStore`` handles there
are.
"""

import logging
import os
from pathlib import Path

from spillcache.config import MIB, StoreConfig, expanded, format_size
from spillcache.errors import CorruptBlock, ObjectMissing, StoreError, StoreIndexError, StoreIOError
from spillcache.metrics import Metrics
from spillcache.store.appender import Appender
from spillcache.store.auto_codec import AutoCodec
from spillcache.store.buffers import BufferPool
from spillcache.store.catalog import Catalog, Place
from spillcache.store.cipher import read_key
from spillcache.store.disk_speed import read_speed
from spillcache.store.files import Files, store_error
from spillcache.store.format import PAGE_BYTES, padded
from spillcache.store.hidden import hide_again, write_hidden
from spillcache.store.index import Index
from spillcache.store.index_opening import Care, open_index
from spillcache.store.index_sum import write_sum
from spillcache.store.location import (
    DAMAGED,
    SETTINGS,
    Location,
    open_location,
)
from spillcache.store.pins import Pins
from spillcache.store.progress import Progress, no_progress
from spillcache.store.quarantine import Quarantine, quarantine_bytes
from spillcache.store.read_meter import ReadMeter
from spillcache.store.reader import Failure, ReadAhead
from spillcache.store.rebuild import Rebuild
from spillcache.store.room import Limits, Room
from spillcache.store.rows import Entry
from spillcache.store.segments import Segments, segment_bytes
from spillcache.store.tenancy import Tenancy
from spillcache.store.throttle import ThrottledFiles
from spillcache.store.touches import Touches, apply
from spillcache.store.view import LIMITS_NOTE, directory_bytes, noted_limits, opening, pack_limits
from spillcache.store.writer import Writer

_POOL_BYTES = 64 * MIB
_WARM_BUFFERS, _WARM_BYTES = 6, 8 * MIB

log = logging.getLogger("spillcache.store")

_Identity = tuple[int, int]
_open: dict[_Identity, "OpenStore"] = {}


class OpenStore:
    """Everything that is open: the index, the own segment, buffers, pins. Any thread; ``opening``
    guards its life.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        location: Location,
        config: StoreConfig,
        *,
        files: Files,
        metrics: Metrics | None,
        care: Care | None,
    ) -> None:
        """Takes ``tenancy`` over, if it succeeds."""
        self._tenancy = tenancy
        self.location = location
        self.files = files
        self.metrics = metrics
        self.handles = 0
        self.pid = os.getpid()
        self.cipher = None if config.key_file is None else read_key(config.key_file)
        """The key that is given, if one is."""
        self._met_locked = False
        own = care is None
        care = care or Care()
        try:
            self.index = open_index(location, tenancy, care)
        except OSError as error:
            raise store_error(error, "the index was looked through") from error
        try:
            limits = Limits(location.quota_bytes, config.min_free_bytes, config.max_age_s)
            self._furnish(config, limits if own else self._noted_limits())
            self._recover(care)
        except BaseException:
            self.index.close()
            raise

    def _noted_limits(self) -> Limits:
        """Those of the processes that use the store, for one that only cares for it."""
        with self.index.read() as catalog:
            return Limits(self.location.quota_bytes, *noted_limits(catalog))

    def _furnish(self, config: StoreConfig, limits: Limits) -> None:
        """Make the parts, which hold on to each other; nothing is read or written yet."""
        location, files, metrics = self.location, self.files, self.metrics
        self.pool = BufferPool(_POOL_BYTES)
        self.pins = Pins()
        self.meter = ReadMeter()
        """Of what ``BlockStore.read`` reads."""
        self.touched = Touches()
        self.segments = Segments(location.segments, files, self.index)
        self.quarantine = Quarantine(location.quarantine, quarantine_bytes(location.quota_bytes))
        self.room = Room(
            location,
            limits,
            files=files,
            index=self.index,
            segments=self.segments,
            pins=self.pins,
            touched=self.touched,
            metrics=metrics,
        )
        appender = Appender(
            self.segments,
            files,
            self.pool,
            store_id=location.store_id,
            size_bytes=segment_bytes(location.quota_bytes),
        )
        self.writer = Writer(
            appender,
            segments=self.segments,
            files=files,
            index=self.index,
            room=self.room,
            codec=config.codec,
            cipher=self.cipher,
            auto=AutoCodec(self._note, self._set_note, self._read_speed),
        )

    def _recover(self, care: Care) -> None:
        # The first restore after a start is the one that counts: it must not wait for fresh pages.
        self.pool.warm(_WARM_BUFFERS, _WARM_BYTES)
        try:
            self._probe()
            if self._tenancy.is_alone:
                # Before anything is named anew, so that no kill can show it.
                hide_again(self.index, self.location)
            unknown = self.segments.recover()
            if unknown and self._tenancy.is_alone:
                care.named += self.rebuild(care.progress).adopt(unknown)
            self._tenancy.share()
            self._note_quarantine(self.quarantine.allocated_bytes())
            self.room.set_aside_bytes = directory_bytes(self.location.path / DAMAGED)
            self.room.shrink()
        except OSError as error:
            raise store_error(error, "the cache directory was opened") from error
        self.measure()

    def _probe(self) -> None:
        page = self.pool.take(PAGE_BYTES)
        try:
            self.files.probe(self.location.path / SETTINGS, page.view[:PAGE_BYTES])
        finally:
            self.pool.give(page)

    def note_limits(self, config: StoreConfig) -> None:
        """Remember what the store was last opened with, for commands that care for it meanwhile."""
        now = pack_limits(config.min_free_bytes, config.max_age_s)
        try:
            with self.index.read() as catalog:
                known = catalog.note(LIMITS_NOTE)
            if now != known:
                self.index.write(lambda catalog: catalog.set_note(LIMITS_NOTE, now))
        except StoreError as error:  # a full filesystem is no reason not to open
            log.warning("the limits were not noted: %s", error)

    def rebuild(self, progress: Progress = no_progress) -> Rebuild:
        """What names records that the index does not know."""
        parts = (self.segments, self.files, self.index, self.pool)
        return Rebuild(*parts, self.location.store_id, progress)

    def _note(self, key: str) -> bytes | None:
        with self.index.read() as catalog:
            return catalog.note(key.encode())

    def _set_note(self, key: str, value: bytes) -> None:
        self.index.write(lambda catalog: catalog.set_note(key.encode(), value))

    def _read_speed(self) -> float | None:
        return read_speed(self.location.segments, self.files, self.pool)

    def reads(self) -> str:
        """How segment bytes are read."""
        return "direct" if self.files.direct else "buffered+dontneed"

    def measure(self) -> None:
        """Bring the gauge of allocated bytes up to date."""
        if self.metrics is not None:
            with self.index.read() as catalog:
                self.metrics.disk_bytes.set(self.room.used_bytes(catalog))

    def write_touches(self) -> None:
        """Write the uses that are only noted so far."""
        uses = self.touched.snapshot()
        if uses:
            self.index.write(lambda catalog: apply(catalog, uses))
            self.touched.forget(uses)

    def failed(self, failure: Failure) -> StoreError:
        """What to raise for an entry that could not be read; a record that is really damaged is
        quarantined.
        """
        entry = failure.entry
        name = f"{entry.part.name.lower()} of block {entry.block.hex()[:16]}"
        if failure.kind in ("io", "internal", "locked"):
            return self._unread(failure, name)
        with self.index.read() as catalog:
            now = catalog.current(entry)
        if not entry.same_place(now):
            return ObjectMissing(f"{name} was evicted before it was read")
        if failure.kind == "missing":
            return self._missing(failure, name)
        again = self.reread(entry)
        if again is None:
            return StoreIOError(f"{name} was read wrong once, and right then; nothing was deleted")
        return self._corrupt(again, name) if again.kind == "corrupt" else self.failed(again)

    def _unread(self, failure: Failure, name: str) -> StoreError:
        """For what says nothing of the record: it stays as it is."""
        if failure.kind == "io" and isinstance(failure.error, OSError):
            return store_error(failure.error, f"{name} was read")
        if failure.kind != "locked":
            return StoreIOError(f"{name} could not be read: {failure.reason}")
        if not self._met_locked:
            self._met_locked = True
            log.warning("%s: %s; such blocks are computed again", name, failure.reason)
        return ObjectMissing(f"{name}: {failure.reason}")

    def _missing(self, failure: Failure, name: str) -> StoreError:
        """Somebody removed a segment's file: what lay in it must not be found again."""
        try:
            self.segments.lose(failure.entry)
        except OSError as error:
            return store_error(error, f"{name} was read")
        return ObjectMissing(f"{name} is gone, for its segment's file is ({failure.reason})")

    def _corrupt(self, failure: Failure, name: str) -> StoreError:
        if not self.condemn(failure):
            return ObjectMissing(f"{name} was evicted before it was read")
        return CorruptBlock(
            f"{name} is damaged on disk ({failure.reason}); it was moved to quarantine and will be "
            "computed again"
        )

    def reread(self, entry: Entry) -> Failure | None:
        """Read an object once more: what is wrong with it, or None. Memory or a cable may have
        lied the first time, and what is condemned is lost.
        """
        ahead = ReadAhead(
            [entry],
            files=self.files,
            path_of=self.segments.path,
            pool=self.pool,
            memory_bytes=0,
            stop=lambda: False,
            cipher=self.cipher,
        )
        try:
            item = next(iter(ahead))
        finally:
            ahead.close()
        if isinstance(item, Failure):
            return item
        item.release()
        return None

    def condemn(self, failure: Failure) -> bool:
        """Forget a damaged object, keep its bytes for inspection, free its place; False if it was
        gone already.
        """
        entry, record = failure.entry, failure.record

        def forget(catalog: Catalog) -> list[Place]:
            now = catalog.current(entry)
            if now is None or not now.same_place(entry):
                return []
            # Until it is measured, so that nobody else takes the room that it needs.
            catalog.meta.quarantined += padded(len(record))
            return catalog.remove(now)

        places = self.index.write(forget)
        if places:
            # In this order the two never count against the quota together.
            self.segments.free(places)
            kept = self.quarantine.keep(entry, memoryview(record), failure.reason)
            self._note_quarantine(kept)
            self._tell(failure)
        return bool(places)

    def _tell(self, failure: Failure) -> None:
        entry = failure.entry
        if self.metrics is not None:
            self.metrics.corrupt_objects.inc()
        log.error(
            "corrupt object quarantined part=%s block=%s segment=%d offset=%d reason=%s",
            entry.part.name.lower(),
            entry.block.hex(),
            entry.segment,
            entry.offset,
            failure.reason,
        )

    def _note_quarantine(self, allocated_bytes: int) -> None:
        def work(catalog: Catalog) -> None:
            catalog.meta.quarantined = allocated_bytes

        self.index.write(work)

    def hide(self, namespace_id: bytes, reason: str | None) -> bool:
        """See ``BlockStore.invalidate`` and ``reinstate``."""

        def work(catalog: Catalog) -> bool:
            if not catalog.hide(namespace_id, reason):
                return False
            write_hidden(catalog, self.location)
            return True

        try:
            return self.index.write(work)
        except OSError as error:
            raise store_error(error, "a namespace was hidden or shown") from error

    def clear_quarantine(self) -> None:
        """Delete the records that failed verification."""
        self.quarantine.clear()
        self._note_quarantine(self.quarantine.allocated_bytes())

    def check(self) -> None:
        """Raise StoreIndexError in a forked child: an LMDB environment can't be used there."""
        if self.pid != os.getpid():
            raise StoreIndexError(
                "a store can't be used across a fork; open it in the child, from a new process"
            )

    def close(self) -> None:
        """Write what is noted, seal the own segment, close the index; every step is tried."""
        if self.pid != os.getpid():
            return
        well = False
        try:
            self.write_touches()
            self.writer.close()
            well = True
        except (StoreError, OSError) as error:
            log.warning("closing the store: %s", error)
        finally:
            self.pool.close()
            self.index.close()
            self._leave(well=well)

    def _leave(self, *, well: bool) -> None:
        try:
            self._tenancy.end((lambda: write_sum(self.location.path)) if well else None)
        except OSError as error:
            log.warning("leaving the store: %s", error)


def acquire(
    config: StoreConfig, metrics: Metrics | None, files: Files | None, care: Care | None = None
) -> OpenStore:
    """The process's store of ``config.path``, opened if it is not; ``release`` it. Raises as
    ``BlockStore.open``.

    With ``care``, no store is made, and the limits are those that it is used with.
    """
    with opening:
        location = open_location(config.path, config.quota_bytes, make=care is None)
        identity = _identity(location.path)
        store = _open.get(identity)
        if store is None or store.pid != os.getpid():
            store = _enter(config, metrics, files or _files(config), care)
            if care is None:
                store.note_limits(config)
            _open[identity] = store
        elif care is None:
            limits = Limits(location.quota_bytes, config.min_free_bytes, config.max_age_s)
            store.room.limits = limits
            store.room.shrink()
        store.handles += 1
        return store


def _enter(
    config: StoreConfig, metrics: Metrics | None, files: Files, care: Care | None
) -> OpenStore:
    try:
        tenancy = Tenancy(expanded(config.path))
    except OSError as error:
        raise store_error(error, "the cache directory was locked") from error
    try:
        # Again, for somebody may have deleted it while this process waited to come in.
        location = open_location(config.path, config.quota_bytes, make=care is None)
        return OpenStore(tenancy, location, config, files=files, metrics=metrics, care=care)
    except BaseException:
        tenancy.end()
        raise


def _files(config: StoreConfig) -> Files:
    if config.throttle_bytes_s is None:
        return Files(direct=config.direct_io)
    log.warning("reads are throttled to %s per second", format_size(config.throttle_bytes_s))
    return ThrottledFiles(config.throttle_bytes_s, direct=config.direct_io)


def release(store: OpenStore) -> None:
    """Give it back; the last one closes it."""
    with opening:
        store.handles -= 1
        if not store.handles:
            for identity, each in list(_open.items()):
                if each is store:
                    del _open[identity]
            store.close()


def index_of(path: Path) -> Index | None:
    """The index of ``path`` if this process has it open; hold ``opening`` while it is used."""
    try:
        store = _open.get(_identity(expanded(path)))
    except OSError:
        return None
    return store.index if store is not None and store.pid == os.getpid() else None


def _identity(path: Path) -> _Identity:
    found = path.stat()
    return found.st_dev, found.st_ino

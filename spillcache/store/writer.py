"""Putting objects: reserve, append, sync, then one index transaction that names them.

Group commit: many objects, one sync, one transaction. While a group is synced and named, the next
one is digested and appended. One put at a time per process; other processes have their own segment
and meet only in the index.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from spillcache.chain import HASH_BYTES
from spillcache.config import MIB, Codec
from spillcache.errors import StoreFullError, StoreIndexError
from spillcache.namespace import ID_BYTES, Namespace
from spillcache.processors import Apart
from spillcache.state import Buffer, Part
from spillcache.store import codec as codecs
from spillcache.store.appender import Appender
from spillcache.store.auto_codec import AutoCodec
from spillcache.store.catalog import Catalog
from spillcache.store.cipher import Cipher
from spillcache.store.files import Files, is_no_space, store_error
from spillcache.store.flight import Flight
from spillcache.store.format import (
    MAX_PAYLOAD_BYTES,
    PAGE_BYTES,
    check_tail,
    namespace_record,
)
from spillcache.store.index import Index
from spillcache.store.naming import Naming
from spillcache.store.objects import PutResult, StoreObject
from spillcache.store.outgoing import Outgoing
from spillcache.store.put_job import Committed, PutJob
from spillcache.store.room import NoRoom, Room, index_bytes
from spillcache.store.rows import is_present, object_key
from spillcache.store.segments import Segments
from spillcache.store.tails import drop_tails, trim_tails

_GROUP_BYTES = 80 * MIB
"""With headers and padding: 64 MiB of payloads from 64 KiB on."""
_ATTEMPTS = 3
"""At a group, where the filesystem is full: after each something is evicted."""
_MAX_COUNT = 1 << 32

Done = Callable[[PutResult], None]

log = logging.getLogger("spillcache.store")


class Writer:
    """The write side of a store in one process; any thread, one at a time."""

    def __init__(
        self,
        appender: Appender,
        *,
        segments: Segments,
        files: Files,
        index: Index,
        room: Room,
        codec: Codec,
        auto: AutoCodec,
        cipher: Cipher | None = None,
    ) -> None:
        self._appender = appender
        self._segments = segments
        self._files = files
        self._index = index
        self._room = room
        self.codec: Codec = codec
        self._auto = auto
        self._cipher = cipher
        self._lock = threading.Lock()
        self._flights: deque[Flight] = deque()
        """What was appended and is not known to be named: two at most, and only within a put."""
        self._jobs: list[PutJob] = []
        """Of the current put, those that are not told: what they name is not evicted meanwhile."""
        self._torn = False
        """Whether an append failed, so that what lies behind the segment's end is unknown."""
        self._apart: Apart | None = None
        """Of the current put: who digests and who commits keep to the same processors, for they
        take the interpreter's lock from each other, and who writes to others.
        """

    def put_each(
        self, namespace: Namespace, batches: Iterable[Sequence[StoreObject]], done: Done
    ) -> None:
        """See ``BlockStore.put_each``."""
        with self._lock, Apart() as self._apart:
            try:
                for objects, more in _with_more(batches):
                    self._jobs.append(job := PutJob(namespace, objects))
                    self._put(job, objects, done, more=more)
                self._land(done)
            except OSError as error:
                raise store_error(error, "objects were written") from error
            finally:
                self._jobs.clear()
                if self._flights or self._torn:
                    self._give_up()

    def close(self) -> None:
        """Seal the own segment."""
        with self._lock:
            self._appender.seal()

    def _put(self, job: PutJob, objects: Sequence[StoreObject], done: Done, *, more: bool) -> None:
        """``more``: another batch follows."""
        _check(objects)
        wanted = self._missing(job, objects)
        for group, is_last in self._groups(job, wanted, done):
            self._send(job, group, done, more=more or not is_last)
        job.sent = True
        if not self._is_in_air(job):
            self._land(done)  # results come in the order of the batches
            self._tell(job, done)

    def _missing(self, job: PutJob, objects: Sequence[StoreObject]) -> dict[bytes, StoreObject]:
        """The objects that are not there yet, each once, by their keys."""
        namespace_id = job.namespace.id
        keys = [object_key(namespace_id, item.block, item.part) for item in objects]
        with self._index.read() as catalog:
            if catalog.is_hidden(namespace_id):
                for item in objects:
                    job.drop(item)
                return {}
            rows = map(catalog.row, keys)
            wanted: dict[bytes, StoreObject] = {}
            for key, row, item in zip(keys, rows, objects, strict=True):
                if not is_present(row):
                    wanted.setdefault(key, item)
        job.present += len(objects) - len(wanted)
        return wanted

    def _groups(
        self, job: PutJob, wanted: dict[bytes, StoreObject], done: Done
    ) -> Iterator[tuple[list[Outgoing], bool]]:
        """Records to be committed together, within one segment and not too many bytes; and whether
        they are the last.
        """
        group: list[Outgoing] = []
        size = most = 0
        for key, item in wanted.items():
            if job.hangs_on_dropped(item):
                job.drop(item)
                continue
            record = self._encode(key, item)
            if group and size + record.size > most:
                yield group, False
                group, size = [], 0
            if not group:
                if record.size > self._appender.room() and not self._appender.is_fresh:
                    self._land(done)
                    self._appender.seal()
                most = min(_GROUP_BYTES, self._appender.room())
            group.append(record)
            size += record.size
        if group:
            yield group, True

    def _encode(self, key: bytes, item: StoreObject) -> Outgoing:
        payload = memoryview(item.payload).cast("B")
        size = len(payload)
        chosen = self.codec
        if chosen == "auto":
            chosen = self._auto.choose(key[:ID_BYTES], item.part, payload)
        if chosen == "raw":
            return Outgoing(key, item, size, codecs.CodecId.RAW, payload, self._cipher)
        return Outgoing(key, item, size, *codecs.encode(chosen, payload), self._cipher)

    # One group: appended, then committed, and at last counted.

    def _send(self, job: PutJob, group: list[Outgoing], done: Done, *, more: bool) -> None:
        """Append a group and commit it; aside, if ``more`` is to be appended meanwhile."""
        try:
            flight = self._launch(job, group, more=more)
        except OSError as error:
            self._land(done)  # what went before is not to blame
            self._give_up()
            self._write_alone(job, group, error)
            return
        self._land(done, but=flight)
        if flight is not None and flight in self._flights:
            flight.commit(self._commit, aside=more)
            if not more:
                self._land(done)

    def _launch(self, job: PutJob, group: list[Outgoing], *, more: bool = False) -> Flight | None:
        """Reserve room for a group, or for as much of it as fits, and append that; None when
        nothing fits. ``more`` follows: see ``Appender.write``. Raises OSError.
        """
        fitting = self._reserve(job, group)
        flight: Flight | None = None
        if fitting:
            namespace, segment = job.namespace, self._appender.begin()
            flight = Flight(job, fitting, segment, self._need(namespace, fitting))
            introduce = not self._appender.has_noted(namespace.id)
            pieces = _pieces(namespace if introduce else None, fitting)
            self._torn = True
            size = None if more else flight.need_bytes
            flight.staging, offsets = self._appender.write(pieces, size, apart=self._apart)
            self._torn = False
            self._appender.noted(namespace.id)
            for record, offset in zip(fitting, offsets[introduce:], strict=True):
                record.segment, record.offset = segment, offset
            flight.end = offsets[-1] + fitting[-1].size
            self._appender.keep(flight.end)
            self._flights.append(flight)
        for record in group[len(fitting) :]:
            job.drop(record.source)
            job.no_room = True
        return flight

    def _reserve(self, job: PutJob, group: list[Outgoing]) -> list[Outgoing]:
        """Promise space to the longest beginning of ``group`` that fits."""
        while group:
            segment = self._appender.begin()
            need = self._need(job.namespace, group)
            try:
                self._room.reserve(segment, need, len(group), self._is_spared)
                break
            except NoRoom as no_room:
                group = _fitting(group, no_room.available_bytes - need + _sizes(group))
        return group

    def _need(self, namespace: Namespace, group: list[Outgoing]) -> int:
        extra = PAGE_BYTES if self._appender.is_fresh else 0
        if not self._appender.has_noted(namespace.id):
            extra += len(namespace_record(namespace, 0))
        return _sizes(group) + extra

    def _land(self, done: Done, but: Flight | None = None) -> None:
        """Wait for what is being committed, all ``but`` the one that was just appended, and count
        it.
        """
        while self._flights and self._flights[0] is not but:
            flight = self._flights[0]
            try:
                committed = flight.wait()
            except OSError as error:
                # What was appended behind it lies in the same segment, which is given up.
                again = list(self._flights)
                self._give_up()
                for each in again:
                    self._write_alone(each.job, each.group, error if each is flight else None)
                    self._tell_if_complete(each.job, done)
                return
            self._flights.popleft()
            self._count(flight, committed)
            self._tell_if_complete(flight.job, done)

    def _count(self, flight: Flight, committed: Committed) -> None:
        self._room.wrote(committed.clock, _sizes(committed.written))
        self._segments.free(committed.dead)
        flight.job.count(committed)

    def _tell_if_complete(self, job: PutJob, done: Done) -> None:
        if job.sent and not self._is_in_air(job):
            self._tell(job, done)

    def _tell(self, job: PutJob, done: Done) -> None:
        """Tell ``done`` what became of a batch, all of which has landed."""
        self._jobs.remove(job)
        if job.no_room and not job.written:
            raise StoreFullError(
                "the cache on disk has no room for what is to be stored, even after eviction; "
                "raise --cache-disk-size, or free space on the filesystem"
            )
        done(job.result())

    def _is_spared(self, block: bytes) -> bool:
        """Whether a block (namespace id and hash) must not be evicted for the current put."""
        return any(block in job.spared for job in self._jobs)

    def _is_in_air(self, job: PutJob) -> bool:
        return any(flight.job is job for flight in self._flights)

    def _write_alone(
        self, job: PutJob, group: Sequence[Outgoing], error: OSError | None = None
    ) -> None:
        """A group, from its append to its count, while nothing else is in the air. A full
        filesystem is answered by eviction; other errors are raised. ``error``: what a first
        attempt met.
        """
        for _ in range(_ATTEMPTS - (error is not None)):
            if error is not None:
                self._make_free(group, error)
            try:
                flight = self._launch(job, list(group))
                if flight is not None:
                    flight.commit(self._commit, aside=False)
                    committed = flight.wait()
                    self._flights.remove(flight)
                    self._count(flight, committed)
                return
            except OSError as another:
                self._give_up()
                error = another
        if error is not None:
            raise error

    def _make_free(self, group: Sequence[Outgoing], error: OSError) -> None:
        """Evict as much as ``group`` takes; raises ``error`` where that is no help."""
        if not is_no_space(error):
            raise error
        freed = self._room.make_free(_sizes(group), self._is_spared)
        log.warning("the filesystem is full; evicted %d bytes to go on", freed)
        if not freed:
            raise error

    def _give_up(self) -> None:
        """Forget what is in the air, and the segment that it lies in."""
        while self._flights:
            self._flights.pop().close()
        self._torn = False
        self._appender.abandon()

    def _commit(self, flight: Flight) -> Committed:
        """Name a group once it is durable. On any thread, but one at a time."""
        namespace, segment, group = flight.job.namespace, flight.segment, flight.group

        def work(catalog: Catalog) -> Committed:
            row = catalog.segment(segment)
            if row is None:
                raise StoreIndexError(f"segment {segment} was removed while it was written")
            done = Committed(catalog.tick())
            catalog.use_namespace(namespace, done.clock)
            naming = Naming(catalog, self._room.ahead_ns)
            for record in group:
                _admit(naming, record, done)
            naming.finish()
            for place in done.dead:
                catalog.add_freeing(place)
            for parent in {r.source.parent for r in done.written if r.source.tail}:
                done.dead += trim_tails(catalog, namespace.id, parent)
            for source in (r.source for r in done.written if r.source.outgrows):
                done.dead += drop_tails(catalog, namespace.id, source.parent, source.outgrows)
            # Last, so that the device works while the rows are made: what is named is durable when
            # the transaction is.
            flight.sync()
            row.committed_end = flight.end
            catalog.reserve(segment, -flight.need_bytes - index_bytes(len(group)))
            catalog.measure(segment, self._files.allocated_at(self._segments.path(segment)))
            return done

        return self._index.write(work)


def _with_more(
    batches: Iterable[Sequence[StoreObject]],
) -> Iterator[tuple[Sequence[StoreObject], bool]]:
    """Each batch, and whether another follows."""
    following = iter(batches)
    batch = next(following, None)
    while batch is not None:
        after = next(following, None)
        yield batch, after is not None
        batch = after


def _admit(naming: Naming, record: Outgoing, done: Committed) -> None:
    """Name one record, unless another process was quicker, or what it hangs on is gone."""
    if naming.has(record.key):
        done.present += 1
    elif _is_orphan(naming, record, done):
        done.dropped.append(record)
    else:
        done.written.append(record)
        naming.add(record)
        return
    done.dead.append(record.place)


def _is_orphan(naming: Naming, record: Outgoing, done: Committed) -> bool:
    if record.parent_key:
        return not naming.has(record.parent_key)
    block = record.source.block
    return any(r.source.part is Part.KV and r.source.block == block for r in done.dropped)


def _pieces(
    introduced: Namespace | None, group: Sequence[Outgoing]
) -> Iterator[tuple[Buffer, ...]]:
    if introduced is not None:
        yield (namespace_record(introduced, time.time_ns()),)
    for record in group:
        yield record.pieces()


def _sizes(group: Sequence[Outgoing]) -> int:
    return sum(record.size for record in group)


def _fitting(group: list[Outgoing], available_bytes: int) -> list[Outgoing]:
    """The longest beginning that takes no more than that; always shorter than ``group``."""
    fitting: list[Outgoing] = []
    for record in group[:-1]:
        available_bytes -= record.size
        if available_bytes < 0:
            break
        fitting.append(record)
    return fitting


def _check(objects: Sequence[StoreObject]) -> None:
    for item in objects:
        if not len(item.block) == len(item.parent) == HASH_BYTES:
            raise ValueError(f"block hashes have {HASH_BYTES} bytes")
        if not 0 <= item.rank <= 255:
            raise ValueError("a rank lies in 0 … 255")
        if not (0 <= item.block_index < _MAX_COUNT and 0 <= item.token_count < _MAX_COUNT):
            raise ValueError("a block's index and its number of tokens have 32 bits")
        if item.tail:
            check_tail(item.parent, item.block, item.token_count, item.tail)
        payload = memoryview(item.payload)
        if not payload.c_contiguous or payload.nbytes > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a payload is at most {MAX_PAYLOAD_BYTES} contiguous bytes")

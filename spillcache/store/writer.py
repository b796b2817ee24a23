"""Putting objects: reserve, append, sync, then one index transaction that names them.

Group commit: many objects, one sync, one transaction. One put at a time per process; other
processes have their own segment and meet only in the index.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spillcache.chain import HASH_BYTES, BlockHash
from spillcache.config import MIB, Codec
from spillcache.errors import StoreFullError, StoreIndexError
from spillcache.namespace import ID_BYTES, Namespace
from spillcache.state import Buffer, Part
from spillcache.store import codec as codecs
from spillcache.store.appender import Appender
from spillcache.store.auto_codec import AutoCodec
from spillcache.store.catalog import Catalog, Place
from spillcache.store.cipher import NO_KEY, OVERHEAD_BYTES, Cipher
from spillcache.store.files import Files, is_no_space, store_error
from spillcache.store.format import (
    DIGEST_BYTES,
    MAX_PAYLOAD_BYTES,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    RecordClass,
    bound_bytes,
    check_tail,
    namespace_record,
    padded,
    payload_digest,
    record_header,
)
from spillcache.store.index import Index
from spillcache.store.naming import Naming
from spillcache.store.objects import PutResult, StoreObject
from spillcache.store.room import NoRoom, Room, index_bytes
from spillcache.store.rows import is_present, object_key, pack_row
from spillcache.store.segments import Segments
from spillcache.store.tails import drop_tails, trim_tails

_GROUP_BYTES = 80 * MIB
"""With headers and padding: 64 MiB of payloads from 64 KiB on."""
_FULL_RETRIES = 2
_MAX_COUNT = 1 << 32
_NO_DIGEST = bytes(DIGEST_BYTES)

log = logging.getLogger("spillcache.store")


class _Record:
    """An object on its way to disk. Each of its methods runs thousands of times in a put."""

    __slots__ = (
        *("cipher", "codec", "key", "namespace_id", "offset", "parent_key", "raw_bytes"),
        *("segment", "size"),
        *("source", "stored", "stored_bytes", "written_ns"),
    )

    def __init__(  # noqa: PLR0917 - names cost time
        self,
        key: bytes,
        source: StoreObject,
        raw_bytes: int,
        codec: codecs.CodecId,
        stored: Buffer,
        cipher: Cipher | None,
    ) -> None:
        self.namespace_id = key[:ID_BYTES]
        self.source = source
        self.key = key
        self.parent_key = b""
        if source.block_index and source.part is Part.KV:
            self.parent_key = object_key(self.namespace_id, source.parent, Part.KV)
        self.codec = codec
        self.stored = stored
        self.cipher = cipher
        self.raw_bytes = raw_bytes
        self.written_ns = time.time_ns()
        tail_bytes = len(source.tail)
        self.stored_bytes = len(stored)
        """What the payload takes; with a tail's tokens, if they are encrypted together."""
        if cipher is not None:
            self.stored_bytes += tail_bytes + OVERHEAD_BYTES
            tail_bytes = 0
        self.size = padded(RECORD_HEADER_BYTES + tail_bytes + self.stored_bytes)
        """In the segment, header and padding included."""
        self.segment = self.offset = 0
        """Where it lies, once it is written."""

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place(self.segment, self.offset, self.size)

    def pieces(self) -> tuple[Buffer, ...]:
        """Header, a tail's tokens and payload; the payload is encrypted and digested here, while
        bytes before it are written.
        """
        tail, cipher = self.source.tail, self.cipher
        if cipher is None:
            head = self._header(payload_digest(tail, self.stored), NO_KEY)
            return (head, tail, self.stored) if tail else (head, self.stored)
        head = self._header(_NO_DIGEST, cipher.key_id)
        plain = b"".join((tail, self.stored)) if tail else self.stored
        nonce, stored = cipher.encrypt(plain, bound_bytes(head))
        return self._header(payload_digest(nonce, stored), cipher.key_id), nonce, stored

    def _header(self, digest: bytes, key_id: bytes) -> bytes:
        source = self.source
        return record_header(
            self._class,
            source.part,
            self.codec,
            source.rank,
            len(source.tail) // TOKEN_BYTES,
            self.namespace_id,
            source.block,
            source.parent,
            source.block_index,
            source.token_count,
            self.raw_bytes,
            self.stored_bytes,
            self.written_ns,
            digest,
            key_id,
        )

    @property
    def _class(self) -> RecordClass:
        return RecordClass.TAIL if self.source.tail else RecordClass.BLOCK

    def row(self, last_use: int, children: int) -> bytes:
        """The value of its row in the index."""
        source = self.source
        return pack_row(
            self.segment,
            self.offset,
            self.stored_bytes,
            self.raw_bytes,
            last_use,
            source.parent,
            source.block_index,
            source.token_count,
            len(source.tail) // TOKEN_BYTES,
            children,
            self.codec,
            source.rank,
            self._class,
            self.cipher is not None,
        )


@dataclass(slots=True)
class _Tally:
    """What became of a put so far."""

    written: int = 0
    present: int = 0
    dropped: int = 0
    written_bytes: int = 0
    no_room: bool = False
    dropped_blocks: set[BlockHash] = field(default_factory=set)
    """Blocks of which a part was dropped."""
    without_kv: set[BlockHash] = field(default_factory=set)
    """Those whose KV was: what hangs on them is dropped, too."""

    def drop(self, item: StoreObject) -> None:
        self.dropped += 1
        self.dropped_blocks.add(item.block)
        if item.part is Part.KV:
            self.without_kv.add(item.block)

    def hangs_on_dropped(self, item: StoreObject) -> bool:
        if item.part is Part.KV:
            return item.parent in self.without_kv
        return item.block in self.without_kv


@dataclass(slots=True)
class _Commit:
    """What one transaction did with a group."""

    clock: int
    written: list[_Record] = field(default_factory=list)
    present: int = 0
    dropped: list[_Record] = field(default_factory=list)
    dead: list[Place] = field(default_factory=list)


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

    def put(self, namespace: Namespace, objects: Sequence[StoreObject]) -> PutResult:
        """See ``BlockStore.put``."""
        _check(objects)
        with self._lock:
            tally = _Tally()
            wanted = self._missing(namespace.id, objects, tally)
            spared = {namespace.id + item.block for item in objects}
            spared.update(namespace.id + item.parent for item in objects)
            try:
                for group in self._groups(wanted, tally):
                    self._write(namespace, group, spared, tally)
            except OSError as error:
                raise store_error(error, "objects were written") from error
        if tally.no_room and not tally.written:
            raise StoreFullError(
                "the cache on disk has no room for what is to be stored, even after eviction; "
                "raise --cache-disk-size, or free space on the filesystem"
            )
        return PutResult(
            tally.written,
            tally.present,
            tally.dropped,
            tally.written_bytes,
            frozenset(tally.dropped_blocks),
        )

    def close(self) -> None:
        """Seal the own segment."""
        with self._lock:
            self._appender.seal()

    def _missing(
        self, namespace_id: bytes, objects: Sequence[StoreObject], tally: _Tally
    ) -> dict[bytes, StoreObject]:
        """The objects that are not there yet, each once, by their keys."""
        keys = [object_key(namespace_id, item.block, item.part) for item in objects]
        with self._index.read() as catalog:
            if catalog.is_hidden(namespace_id):
                for item in objects:
                    tally.drop(item)
                return {}
            rows = map(catalog.row, keys)
            wanted: dict[bytes, StoreObject] = {}
            for key, row, item in zip(keys, rows, objects, strict=True):
                if not is_present(row):
                    wanted.setdefault(key, item)
        tally.present += len(objects) - len(wanted)
        return wanted

    def _groups(self, wanted: dict[bytes, StoreObject], tally: _Tally) -> Iterator[list[_Record]]:
        """Records to be committed together: within one segment, and not too many bytes."""
        group: list[_Record] = []
        size = most = 0
        for key, item in wanted.items():
            if tally.without_kv and tally.hangs_on_dropped(item):
                tally.drop(item)
                continue
            record = self._encode(key, item)
            if group and size + record.size > most:
                yield group
                group, size = [], 0
            if not group:
                if record.size > self._appender.room() and not self._appender.is_fresh:
                    self._appender.seal()
                most = min(_GROUP_BYTES, self._appender.room())
            group.append(record)
            size += record.size
        if group:
            yield group

    def _encode(self, key: bytes, item: StoreObject) -> _Record:
        payload = memoryview(item.payload).cast("B")
        size = len(payload)
        chosen = self.codec
        if chosen == "auto":
            chosen = self._auto.choose(key[:ID_BYTES], item.part, payload)
        if chosen == "raw":
            return _Record(key, item, size, codecs.CodecId.RAW, payload, self._cipher)
        return _Record(key, item, size, *codecs.encode(chosen, payload), self._cipher)

    def _write(
        self, namespace: Namespace, group: list[_Record], spared: set[bytes], tally: _Tally
    ) -> None:
        """One group: room, bytes, names. A full filesystem is answered by eviction; other errors
        are raised.
        """
        fitting: list[_Record] = []
        for retries in range(_FULL_RETRIES, -1, -1):
            try:
                fitting = self._reserve(namespace, group, spared)
                if fitting:
                    self._append(namespace, fitting, tally)
                break
            except OSError as error:
                self._appender.abandon()
                if not is_no_space(error) or not retries:
                    raise
                freed = self._room.make_free(_sizes(group), spared.__contains__)
                log.warning("the filesystem is full; evicted %d bytes to go on", freed)
                if not freed:
                    raise
        for record in group[len(fitting) :]:
            tally.drop(record.source)
            tally.no_room = True

    def _reserve(
        self, namespace: Namespace, group: list[_Record], spared: set[bytes]
    ) -> list[_Record]:
        """Promise space to the longest beginning of ``group`` that fits."""
        while group:
            segment = self._appender.begin()
            need = self._need(namespace, group)
            try:
                self._room.reserve(segment, need, len(group), spared.__contains__)
                break
            except NoRoom as no_room:
                group = _fitting(group, no_room.available_bytes - need + _sizes(group))
        return group

    def _need(self, namespace: Namespace, group: list[_Record]) -> int:
        extra = PAGE_BYTES if self._appender.is_fresh else 0
        if not self._appender.has_noted(namespace.id):
            extra += len(namespace_record(namespace, 0))
        return _sizes(group) + extra

    def _append(self, namespace: Namespace, group: list[_Record], tally: _Tally) -> None:
        segment = self._appender.begin()
        need = self._need(namespace, group)
        introduce = not self._appender.has_noted(namespace.id)
        try:
            pieces = _pieces(namespace if introduce else None, group)
            offsets = self._appender.write(pieces, need)
            offsets = offsets[introduce:]
            for record, offset in zip(group, offsets, strict=True):
                record.segment, record.offset = segment, offset
            end = offsets[-1] + group[-1].size
            done = self._commit(namespace, segment, group, need=need, end=end)
        except BaseException:
            self._appender.abandon()
            raise
        self._appender.keep(end)
        self._appender.noted(namespace.id)
        self._room.wrote(done.clock, sum(record.size for record in done.written))
        self._segments.free(done.dead)
        tally.written += len(done.written)
        tally.written_bytes += sum(record.size for record in done.written)
        tally.present += done.present
        for record in done.dropped:
            tally.drop(record.source)

    def _commit(
        self,
        namespace: Namespace,
        segment: int,
        group: list[_Record],
        *,
        need: int,
        end: int,
    ) -> _Commit:
        def work(catalog: Catalog) -> _Commit:
            row = catalog.segment(segment)
            if row is None:
                raise StoreIndexError(f"segment {segment} was removed while it was written")
            done = _Commit(catalog.tick())
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
            self._appender.sync()
            row.committed_end = end
            catalog.reserve(segment, -need - index_bytes(len(group)))
            catalog.measure(segment, self._files.allocated_at(self._segments.path(segment)))
            return done

        return self._index.write(work)


def _admit(naming: Naming, record: _Record, done: _Commit) -> None:
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


def _is_orphan(naming: Naming, record: _Record, done: _Commit) -> bool:
    if record.parent_key:
        return not naming.has(record.parent_key)
    block = record.source.block
    return any(r.source.part is Part.KV and r.source.block == block for r in done.dropped)


def _pieces(introduced: Namespace | None, group: Sequence[_Record]) -> Iterator[tuple[Buffer, ...]]:
    if introduced is not None:
        yield (namespace_record(introduced, time.time_ns()),)
    for record in group:
        yield record.pieces()


def _sizes(group: Sequence[_Record]) -> int:
    return sum(record.size for record in group)


def _fitting(group: list[_Record], available_bytes: int) -> list[_Record]:
    """The longest beginning that takes no more than that; always shorter than ``group``."""
    fitting: list[_Record] = []
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

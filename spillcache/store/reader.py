"""Reading objects ahead, in long reads, verified before anybody sees a byte.

Neighbouring records are read in one go into aligned, pooled buffers by a few threads; each record's
header is checked against the key and the index, and the payload against its BLAKE3, before it is
handed over in order.
"""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spillcache.config import KIB, MIB
from spillcache.store import codec as codecs
from spillcache.store.buffers import AlignedBuffer, BufferPool, rounded
from spillcache.store.files import Files, read_fully
from spillcache.store.format import FormatError, RecordHeader, padded, payload_digest
from spillcache.store.rows import Entry

READ_THREADS = 4
_LONGEST_READ_BYTES = 8 * MIB
_SHORTEST_READ_BYTES = MIB
_SLACK_BYTES = MIB
"""A read may be this much longer than the longest, so that it ends with a whole record."""
_LARGEST_GAP_BYTES = 128 * KIB
"""Reading over a gap costs less than another read."""
_POLL_S = 0.02
_JOIN_S = 10.0

log = logging.getLogger("spillcache.store")


class _Lease:
    """The buffers of one read, given back to the pool when nobody uses them any more."""

    def __init__(self, pool: BufferPool, on_free: Callable[[], None]) -> None:
        self._pool = pool
        self._on_free = on_free
        self._lock = threading.Lock()
        self._buffers: list[AlignedBuffer] = []
        self._users = 1
        self._shared = False

    def take(self, size_bytes: int) -> AlignedBuffer:
        buffer = self._pool.take(size_bytes)
        self._buffers.append(buffer)
        return buffer

    def hold(self) -> None:
        with self._lock:
            self._users += 1

    def drop(self, *, still_seen: bool = False) -> None:
        """``still_seen``: somebody kept a view; then the memory is left to them and never used
        again.
        """
        with self._lock:
            self._users -= 1
            self._shared |= still_seen
            last = self._users == 0
        if last:
            if not self._shared:
                for buffer in self._buffers:
                    self._pool.give(buffer)
            self._buffers.clear()
            self._on_free()


class Payload:
    """A verified payload. The caller owns ``view`` until ``release``, on any thread; then it is
    invalid.

    A view that was made of it and is still alive at ``release`` stays valid: its memory isn't used
    again.
    """

    __slots__ = ("_lease", "_memory", "entry", "view")

    def __init__(self, entry: Entry, lease: _Lease, buffer: AlignedBuffer, start: int) -> None:
        lease.hold()
        array = buffer.array[start : start + entry.raw_bytes]
        self.entry = entry
        self.view = memoryview(array)  # type: ignore[arg-type]
        """The raw bytes, as the engine gave them."""
        self._lease: _Lease | None = lease
        self._memory = weakref.ref(array)

    def release(self) -> None:
        """Give the memory back; may be called twice."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            self.view.release()
        except BufferError:
            lease.drop(still_seen=True)
        else:
            lease.drop(still_seen=self._memory() is not None)

    def __del__(self) -> None:
        self.release()


@dataclass(slots=True)
class Failure:
    """Why an entry could not be read."""

    entry: Entry
    kind: Literal["corrupt", "missing", "io", "internal"]
    reason: str
    error: BaseException | None = None
    record: bytes = b""
    """What was read, if it is corrupt."""


@dataclass(slots=True)
class Run:
    """Entries that one read gets."""

    segment: int
    start: int
    end: int
    entries: list[Entry] = field(default_factory=list)
    decoded_bytes: int = 0
    items: deque[Payload | Failure] | None = None
    """None until it is loaded."""

    @property
    def memory_bytes(self) -> int:
        """What loading it takes, before anything of it is released."""
        decoded = rounded(self.decoded_bytes) if self.decoded_bytes else 0
        return rounded(self.end - self.start) + decoded

    def takes(self, entry: Entry, longest_bytes: int) -> bool:
        """Whether ``entry`` is read along."""
        end = entry.offset + entry.record_bytes
        return (
            entry.segment == self.segment
            and self.end <= entry.offset <= self.end + _LARGEST_GAP_BYTES
            and end - self.start <= longest_bytes + _SLACK_BYTES
            and self.end - self.start < longest_bytes
        )

    def add(self, entry: Entry) -> None:
        """Read ``entry`` along."""
        self.entries.append(entry)
        self.end = entry.offset + entry.record_bytes
        if entry.codec != codecs.CodecId.RAW:
            self.decoded_bytes += entry.raw_bytes


def plan_runs(entries: Sequence[Entry]) -> list[Run]:
    """The reads that get ``entries``, in order; the first is short, so that its objects are there
    soon.
    """
    total = sum(entry.record_bytes for entry in entries)
    share = total // (4 * READ_THREADS)
    usual = min(max(share, _SHORTEST_READ_BYTES), _LONGEST_READ_BYTES)
    runs: list[Run] = []
    for entry in entries:
        longest = usual if len(runs) > 1 else _SHORTEST_READ_BYTES
        if not runs or not runs[-1].takes(entry, longest):
            runs.append(Run(entry.segment, entry.offset, entry.offset))
        runs[-1].add(entry)
    return runs


def verify(record: memoryview, entry: Entry) -> memoryview:
    """The stored payload in a record's bytes, if it is what the index says it is; raises
    FormatError.
    """
    header = RecordHeader.parse(record)
    if (header.namespace_id, header.block, header.parent) != (
        entry.namespace_id,
        entry.block,
        entry.parent,
    ):
        raise FormatError("the record is another object's")
    found = (header.part, header.record_class, header.codec, header.block_index, header.token_count)
    known = (entry.part, entry.record_class, entry.codec, entry.block_index, entry.token_count)
    if found != known:
        raise FormatError("the record's fields are not those in the index")
    lengths = (header.raw_bytes, header.stored_bytes, header.tail_tokens)
    if lengths != (entry.raw_bytes, entry.stored_bytes, entry.tail_tokens):
        raise FormatError("the record's lengths are not those in the index")
    start = header.payload_offset
    if len(record) < start + header.stored_bytes:
        raise FormatError("the segment ends within the record")
    stored = record[start : start + header.stored_bytes]
    tail = record[start - 4 * header.tail_tokens : start]
    if payload_digest(tail, stored) != header.digest:
        raise FormatError("the payload's digest is wrong")
    return stored


class ReadAhead:
    """One stream of payloads: threads that load runs ahead, within a memory budget, and one
    consumer.

    A run that the consumer waits for is loaded even if the budget is used up (by payloads that the
    consumer has not released), so that the stream can't stand still.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        files: Files,
        path_of: Callable[[int], Path],
        pool: BufferPool,
        memory_bytes: int,
        stop: Callable[[], bool],
    ) -> None:
        self._runs = plan_runs(entries)
        self._files = files
        self._path_of = path_of
        self._pool = pool
        self._memory_bytes = memory_bytes
        self._stop = stop
        self._changed = threading.Condition()
        self._next = 0
        self._wanted = 0
        self._in_use = 0
        self._closed = False
        self._fd_lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"spillcache-read-{n}", daemon=True)
            for n in range(min(READ_THREADS, len(self._runs)))
        ]

    def __iter__(self) -> Iterator[Payload | Failure]:
        """In order; ends early when ``stop`` says so. The consumer owns what it gets; ``close``
        frees the rest.
        """
        for thread in self._threads:
            thread.start()
        for number, run in enumerate(self._runs):
            if not self._await(number):
                return
            while run.items:
                if self._stop():
                    return
                yield run.items.popleft()

    def _await(self, number: int) -> bool:
        """Wait until a run is loaded; False when the consumer wants to stop."""
        with self._changed:
            self._wanted = number
            self._changed.notify_all()
            while self._runs[number].items is None:
                self._changed.wait(_POLL_S)
                if self._stop():
                    return False
        return True

    def close(self) -> None:
        """Stop the threads, close files, release what was not handed over. On the consumer's
        thread; any number of times.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    log.error("%s hangs in a read of %s", thread.name, self._path_of(0).parent)
        for run in self._runs:
            for item in run.items or ():
                if isinstance(item, Payload):
                    item.release()
            run.items = deque()
        with self._fd_lock:
            while self._fds:
                self._files.close(self._fds.popitem()[1])

    def _work(self) -> None:
        while (run := self._take_run()) is not None:
            lease = _Lease(self._pool, lambda size=run.memory_bytes: self._freed(size))  # type: ignore[misc]
            try:
                items = self._load(run, lease)
            except FileNotFoundError as error:
                items = [Failure(entry, "missing", str(error)) for entry in run.entries]
            except OSError as error:
                items = [Failure(entry, "io", str(error), error) for entry in run.entries]
            except (
                BaseException
            ) as error:  # a thread must not die unnoticed: the consumer raises it
                items = [Failure(entry, "internal", repr(error), error) for entry in run.entries]
            lease.drop()
            with self._changed:
                run.items = deque(items)
                self._changed.notify_all()

    def _take_run(self) -> Run | None:
        with self._changed:
            while not self._closed and self._next < len(self._runs):
                run = self._runs[self._next]
                within = self._in_use + run.memory_bytes <= self._memory_bytes
                if within or self._next <= self._wanted:
                    self._next += 1
                    self._in_use += run.memory_bytes
                    return run
                self._changed.wait()
        return None

    def _freed(self, size_bytes: int) -> None:
        with self._changed:
            self._in_use -= size_bytes
            self._changed.notify_all()

    def _fd(self, segment: int) -> int:
        with self._fd_lock:
            if segment not in self._fds:
                self._fds[segment] = self._files.open(self._path_of(segment))
            return self._fds[segment]

    def _load(self, run: Run, lease: _Lease) -> list[Payload | Failure]:
        fd = self._fd(run.segment)
        # Never allocate for more than is there, whatever the index says.
        length = min(run.end, padded(self._files.size(fd))) - run.start
        buffer = lease.take(max(length, 0))
        count = read_fully(self._files, fd, buffer.view[: max(length, 0)], run.start)
        decoded = lease.take(run.decoded_bytes) if run.decoded_bytes else None
        items: list[Payload | Failure] = []
        used = 0
        for entry in run.entries:
            start = entry.offset - run.start
            record = buffer.view[start : max(start, min(start + entry.record_bytes, count))]
            try:
                stored = verify(record, entry)
                if entry.codec == codecs.CodecId.RAW or decoded is None:
                    items.append(Payload(entry, lease, buffer, start + entry.payload_offset))
                else:
                    target = decoded.view[used : used + entry.raw_bytes]
                    codecs.decode_into(entry.codec, stored, target)
                    items.append(Payload(entry, lease, decoded, used))
                    used += entry.raw_bytes
            except (FormatError, codecs.CodecError) as error:
                items.append(Failure(entry, "corrupt", str(error), record=bytes(record)))
        return items

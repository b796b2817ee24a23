"""Reading objects ahead, in long reads, verified before anybody sees a byte.

Neighbouring records are read in one go into aligned, pooled buffers by a few threads; each record's
header is checked against the key and the index, and the payload against its BLAKE3, before it is
handed over in order.
"""

import logging
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spillcache.config import KIB, MIB
from spillcache.processors import keep_to_half
from spillcache.state import Buffer
from spillcache.store import codec as codecs
from spillcache.store.buffers import AlignedBuffer, BufferPool, rounded
from spillcache.store.cipher import KEY_ID_BYTES, Cipher, CipherError, WrongKey
from spillcache.store.files import Files, read_fully
from spillcache.store.format import (
    KEY_ID_OFFSET,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    FormatError,
    bound_bytes,
    padded,
)
from spillcache.store.read_meter import ReadMeter
from spillcache.store.record import check_tokens, verify
from spillcache.store.rows import Entry

READ_THREADS = 4
VERIFY_THREADS = 2
"""Apart from those that read, so that the device always has something to do."""
_SMALL_BYTES = 256 * KIB
"""Two threads that verify smaller records wait more for the interpreter's lock than they share."""
_LONGEST_READ_BYTES = 8 * MIB
"""But for a record that is longer."""
_SHORTEST_READ_BYTES = MIB
_LARGEST_GAP_BYTES = 128 * KIB
"""Reading over a gap costs less than another read."""
_POLL_S = 0.02
_JOIN_S = 10.0
_WHERE = struct.Struct("<QQQQ48xI4xBxxB")
"""Of a row: segment, offset, stored and raw length, tail tokens, codec, whether it is encrypted."""

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
    kind: Literal["corrupt", "missing", "io", "locked", "internal"]
    """Locked: it is whole, but encrypted with a key that is not ours."""
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
    places: list[tuple[int, int]] = field(default_factory=list)
    """Where each entry's record begins, counted from ``start``, and its length."""
    decoded_bytes: int = 0
    items: deque[Payload | Failure] | None = None
    """None until it is loaded."""

    @property
    def memory_bytes(self) -> int:
        """What loading it takes, before anything of it is released."""
        decoded = rounded(self.decoded_bytes) if self.decoded_bytes else 0
        return rounded(self.end - self.start) + decoded


@dataclass(slots=True)
class _Fetched:
    """A run whose bytes were read and not yet verified."""

    number: int
    lease: _Lease
    buffer: AlignedBuffer
    count: int
    """How many bytes came."""


def plan_runs(entries: Sequence[Entry]) -> list[Run]:
    """The reads that get ``entries``, in order; the first are short, so that their objects are
    there soon.
    """
    where = [_WHERE.unpack_from(entry.value) for entry in entries]
    share = sum(stored_bytes for _, _, stored_bytes, *_ in where) // (4 * READ_THREADS)
    usual = min(max(share, _SHORTEST_READ_BYTES), _LONGEST_READ_BYTES)
    longest = _SHORTEST_READ_BYTES
    runs: list[Run] = []
    run = Run(-1, 0, 0)
    for entry, (segment, offset, stored_bytes, raw_bytes, tail_tokens, codec, encrypted) in zip(
        entries, where, strict=True
    ):
        tail_bytes = 0 if encrypted else TOKEN_BYTES * tail_tokens
        length = padded(RECORD_HEADER_BYTES + tail_bytes + stored_bytes)
        end = offset + length
        if (
            segment != run.segment
            or not run.end <= offset <= run.end + _LARGEST_GAP_BYTES
            or end - run.start > longest
        ):
            longest = usual if len(runs) > 1 else _SHORTEST_READ_BYTES
            run = Run(segment, offset, offset)
            runs.append(run)
        run.entries.append(entry)
        run.places.append((offset - run.start, length))
        run.end = end
        if codec or encrypted:
            run.decoded_bytes += raw_bytes
    return runs


def _are_small(runs: Sequence[Run]) -> bool:
    """Whether verifying a record takes so little that a second thread would be in the way."""
    size = sum(run.end - run.start for run in runs)
    coded = any(run.decoded_bytes for run in runs)
    return not coded and size < _SMALL_BYTES * sum(len(run.entries) for run in runs)


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
        cipher: Cipher | None = None,
        meter: ReadMeter | None = None,
    ) -> None:
        self._runs = plan_runs(entries)
        self._meter = meter or ReadMeter()
        self._files = files
        self._path_of = path_of
        self._pool = pool
        self._memory_bytes = memory_bytes
        self._stop = stop
        self._cipher = cipher
        self._lock = threading.Lock()
        # One each, so that nobody is woken for what others wait for.
        self._loaded = threading.Condition(self._lock)
        self._roomy = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._next = 0
        self._wanted = 0
        self._in_use = 0
        self._closed = False
        self._fd_lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._fetched: list[_Fetched] = []
        self._reading = min(READ_THREADS, len(self._runs))
        """Threads that may still fetch something."""
        most = 1 if _are_small(self._runs) else VERIFY_THREADS
        self._verifiers = min(most, len(self._runs))
        self._threads = [
            threading.Thread(target=self._read, name=f"spillcache-read-{n}", daemon=True)
            for n in range(self._reading)
        ] + [
            threading.Thread(
                target=self._verify, args=(n,), name=f"spillcache-verify-{n}", daemon=True
            )
            for n in range(self._verifiers)
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
        with self._lock:
            self._wanted = number
            self._roomy.notify()
            while self._runs[number].items is None:
                self._loaded.wait(_POLL_S)
                if self._stop():
                    return False
        return True

    def also_corrupt(self) -> list[Failure]:
        """What else was found damaged so far, ahead of the consumer."""
        with self._lock:
            items = [item for run in self._runs for item in run.items or ()]
        return [item for item in items if isinstance(item, Failure) and item.kind == "corrupt"]

    def close(self) -> None:
        """Stop the threads, close files, release what was not handed over. On the consumer's
        thread; any number of times.
        """
        with self._lock:
            self._closed = True
            self._roomy.notify_all()
            self._ready.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    log.error("%s hangs in a read of %s", thread.name, self._path_of(0).parent)
        while self._fetched:
            self._fetched.pop().lease.drop()
        for run in self._runs:
            for item in run.items or ():
                if isinstance(item, Payload):
                    item.release()
            run.items = deque()
        with self._fd_lock:
            while self._fds:
                segment, fd = self._fds.popitem()
                try:
                    self._files.close(fd)
                except OSError as error:  # all that was wanted of it was read
                    log.warning("segment %d was not closed well: %s", segment, error)

    def _read(self) -> None:
        while (number := self._take_run()) is not None:
            run = self._runs[number]
            lease = _Lease(self._pool, lambda size=run.memory_bytes: self._freed(size))  # type: ignore[misc]
            try:
                buffer, count = self._fetch(run, lease)
            except (
                BaseException
            ) as error:  # a thread must not die unnoticed: the consumer raises it
                self._done(run, lease, _failures(run, error))
                continue
            with self._lock:
                self._fetched.append(_Fetched(number, lease, buffer, count))
                self._ready.notify()
        with self._lock:
            self._reading -= 1
            self._ready.notify_all()

    def _take_run(self) -> int | None:
        with self._lock:
            while not self._closed and self._next < len(self._runs):
                needed = self._runs[self._next].memory_bytes
                within = self._in_use + needed <= self._memory_bytes
                if within or self._next <= self._wanted:
                    self._next += 1
                    self._in_use += needed
                    # There may be room for another.
                    self._roomy.notify()
                    return self._next - 1
                self._roomy.wait()
            # Nor is there anything left for the others.
            self._roomy.notify()
        return None

    def _verify(self, number: int) -> None:
        if self._verifiers > 1:
            keep_to_half(number)
        while (fetched := self._take_fetched()) is not None:
            run, lease = self._runs[fetched.number], fetched.lease
            try:
                items = self._verified(run, lease, fetched.buffer, fetched.count)
            except BaseException as error:  # as above
                items = _failures(run, error)
            self._done(run, lease, items)

    def _take_fetched(self) -> _Fetched | None:
        with self._lock:
            while not self._closed and (self._fetched or self._reading):
                if self._fetched:
                    first = min(self._fetched, key=lambda each: each.number)
                    self._fetched.remove(first)
                    return first
                self._ready.wait()
        return None

    def _done(self, run: Run, lease: _Lease, items: list[Payload | Failure]) -> None:
        lease.drop()
        with self._lock:
            run.items = deque(items)
            self._loaded.notify()

    def _freed(self, size_bytes: int) -> None:
        with self._lock:
            self._in_use -= size_bytes
            self._roomy.notify()

    def _fd(self, segment: int) -> int:
        with self._fd_lock:
            if segment not in self._fds:
                self._fds[segment] = self._files.open(self._path_of(segment))
            return self._fds[segment]

    def _fetch(self, run: Run, lease: _Lease) -> tuple[AlignedBuffer, int]:
        """Read a run's bytes: where they are, and how many came."""
        asked, count = run.end - run.start, 0
        self._meter.began(asked)
        try:
            fd = self._fd(run.segment)
            # Never allocate for more than is there, whatever the index says.
            length = max(min(run.end, padded(self._files.size(fd))) - run.start, 0)
            buffer = lease.take(length)
            count = read_fully(self._files, fd, buffer.view[:length], run.start)
        finally:
            self._meter.ended(asked, count)
        return buffer, count

    def _verified(
        self, run: Run, lease: _Lease, buffer: AlignedBuffer, count: int
    ) -> list[Payload | Failure]:
        """What is to be handed over for a run's bytes, of which ``count`` came."""
        decoded: _Decoded | None = None
        items: list[Payload | Failure] = []
        for entry, (start, length) in zip(run.entries, run.places, strict=True):
            record = buffer.view[start : max(start, min(start + length, count))]
            try:
                stored = verify(record, entry)
                if entry.codec == codecs.CodecId.RAW and not entry.encrypted:
                    items.append(Payload(entry, lease, buffer, start + entry.payload_offset))
                else:
                    decoded = decoded or _Decoded(run, lease)
                    items.append(decoded.payload(entry, self._decrypted(entry, record, stored)))
            except WrongKey as error:
                items.append(Failure(entry, "locked", str(error), error))
            except (FormatError, CipherError, codecs.CodecError) as error:
                items.append(Failure(entry, "corrupt", str(error), record=bytes(record)))
        return items

    def _decrypted(self, entry: Entry, record: memoryview, stored: memoryview) -> Buffer:
        """The stored payload as its codec left it; raises WrongKey and CipherError."""
        if not entry.encrypted:
            return stored
        head = bytes(record[:RECORD_HEADER_BYTES])
        key_id = head[KEY_ID_OFFSET : KEY_ID_OFFSET + KEY_ID_BYTES]
        if self._cipher is None or key_id != self._cipher.key_id:
            raise WrongKey(f"it is encrypted with the key {key_id.hex()}, which is not given")
        plain = memoryview(self._cipher.decrypt(stored, bound_bytes(head)))
        tail_end = TOKEN_BYTES * entry.tail_tokens
        check_tokens(entry, plain[:tail_end])
        return plain[tail_end:]


class _Decoded:
    """The payloads of a run that are not stored as they are, one after the other."""

    def __init__(self, run: Run, lease: _Lease) -> None:
        self._lease = lease
        self._buffer = lease.take(run.decoded_bytes)
        self._used = 0

    def payload(self, entry: Entry, stored: Buffer) -> Payload:
        """Decode one; raises CodecError."""
        start = self._used
        codecs.decode_into(entry.codec, stored, self._buffer.view[start : start + entry.raw_bytes])
        self._used += entry.raw_bytes
        return Payload(entry, self._lease, self._buffer, start)


def _failures(run: Run, error: BaseException) -> list[Payload | Failure]:
    if isinstance(error, FileNotFoundError):
        return [Failure(entry, "missing", str(error)) for entry in run.entries]
    if isinstance(error, OSError):
        return [Failure(entry, "io", str(error), error) for entry in run.entries]
    return [Failure(entry, "internal", repr(error), error) for entry in run.entries]

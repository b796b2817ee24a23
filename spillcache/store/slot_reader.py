"""Reads a slot file and believes nothing of it: every length is compared with the bytes that are
left before memory is taken, and every byte is covered by a digest or must be zero.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from spillcache.chain import BlockHash, Chain, chain_root
from spillcache.config import MIB
from spillcache.errors import SlotFileInvalid, SlotFileIOError, SlotFileMissing
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.cipher import NO_KEY, Cipher, CipherError
from spillcache.store.files import Files, read_fully
from spillcache.store.format import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    FormatError,
    RecordClass,
    RecordHeader,
    bound_bytes,
    padded,
)
from spillcache.store.slot_format import (
    NAMESPACE_BYTES_MAX,
    PRIVATE,
    SALTED,
    SlotHeader,
    part_header,
    record_bytes_max,
)
from spillcache.store.slot_state import Payloads, Run, SlotState
from spillcache.store.slot_stretch import Stretch, stretch_bytes
from spillcache.store.steps import Steps

READS = 4
"""Threads that read."""
RUN_BYTES = 8 * MIB
"""Of blocks that are read again, so many bytes are handed out at a time."""
_READING = "the slot file was read; the slot is as it was"
_AGAIN = "the slot file was read again"
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR)


class _Noted(NamedTuple):
    """A record that was verified: where it is, and its header."""

    block: int
    part: Part
    at: int
    head: bytes


class SlotFileReader:
    """A context manager: opened on entry, closed on exit. One thread; the disk is read by others.

    Raises SlotFileMissing, SlotFileInvalid and SlotFileIOError.
    """

    def __init__(
        self, files: Files, path: Path, steps: Callable[[], Steps], cipher: Cipher | None = None
    ) -> None:
        self.header: SlotHeader
        self.namespace: Namespace
        self._files = files
        self._path = path
        self._cipher = cipher
        self._steps = [steps() for _ in range(READS)]
        self._fd: int | None = None
        self._stopped = False

    def __enter__(self) -> "SlotFileReader":
        try:
            self._steps[0].do(self._open, _READING)
            self._read_front()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading and close the file, once the reads that hang have come back, if ever."""
        self._stopped = True
        first, *others = self._steps
        for each in others:
            each.close(_nothing)
        # A read that hangs still has the file; then it stays open.
        first.close(_nothing if any(each.hangs for each in self._steps) else self._close)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)

    # The front: what must be known before memory is taken.

    def _open(self) -> None:
        try:
            self._fd = self._files.open(self._path)
        except FileNotFoundError as error:
            if os.path.lexists(self._path):
                raise _invalid("it is no regular file") from error
            raise SlotFileMissing(
                f"there is no slot file {self._path.name}", param="filename"
            ) from error
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise _invalid("it is a link, or no regular file") from error
            raise
        found = os.fstat(self._fd)
        if found.st_nlink != 1:
            raise _invalid("the file has another name somewhere")
        self._size = found.st_size

    def _read_front(self) -> None:
        """The header and the namespace."""
        size = min(self._size // PAGE_BYTES * PAGE_BYTES, padded(2 * NAMESPACE_BYTES_MAX))
        front = AlignedBuffer(max(size, PAGE_BYTES), huge=False)
        self._steps[0].do(lambda: self._fill(front.view[:size], 0), _READING)
        try:
            self.header = SlotHeader.parse(front.view[:size])
            if self.header.file_bytes != self._size:
                raise FormatError(
                    f"it has {self._size} bytes and should have {self.header.file_bytes}"
                )
            view = front.view[:size]
            records = _Records(lambda start, stop: view[start:stop], PAGE_BYTES, size, size)
            header, payload = records.next()
            if header.record_class != RecordClass.NAMESPACE:
                raise FormatError("the namespace is missing")
            if len(payload) != self.header.namespace_bytes:
                raise FormatError("the namespace has another length")
            self.namespace = Namespace.decode(bytes(payload))
        except ValueError as error:
            raise _invalid(str(error)) from error

    def _fill(self, view: memoryview, offset: int) -> None:
        if self._stopped or self._fd is None:
            return
        if read_fully(self._files, self._fd, view, offset) != len(view):
            raise OSError(errno.EIO, "the file ended early")

    # All of it.

    def memory_bytes(self, part_bytes: Mapping[Part, int]) -> int:
        """The least memory that ``load`` can do with: not more than the file's bytes."""
        view = self._view_bytes(part_bytes)
        return min(self.header.file_bytes, stretch_bytes(view, 2 * (RUN_BYTES + view)))

    def _view_bytes(self, part_bytes: Mapping[Part, int]) -> int:
        """The largest record, or one block's, if they are more together."""
        header = self.header
        tokens = record_bytes_max(TOKEN_BYTES * header.tokens, header.block_tokens)
        block = sum(record_bytes_max(size, header.block_tokens) for size in part_bytes.values())
        return max(tokens, block, record_bytes_max(NAMESPACE_BYTES_MAX, header.block_tokens))

    def load(
        self, part_bytes: Mapping[Part, int], memory: AlignedBuffer, *, fresh: bool = False
    ) -> SlotState:
        """Read and verify everything. ``part_bytes``: the largest payload of each part that there
        may be; others are refused.

        ``memory``: of the whole file, or at least ``memory_bytes``; then blocks are read again, by
        ``SlotState.runs``. ``fresh``: nobody used it before. It is the state's from now on, also
        when this fails: a read that hangs may still write to it.
        """
        header, whole = self.header, memory.size >= self.header.file_bytes
        stretch = self._stretch(memory, part_bytes, 0, _READING, fresh=fresh)
        noted: list[_Noted] = []
        blocks: list[Payloads] = [{} for _ in range(-(-header.tokens // header.block_tokens))]
        parts: list[set[Part]] = [set() for _ in blocks]
        try:
            most = self._view_bytes(part_bytes)
            records = _Records(stretch.view, PAGE_BYTES, header.file_bytes, most)
            records.next()
            chain = self._chain(records)
            last = (-1, 0)
            for _ in range(header.parts):
                stretch.release(records.at)
                record, payload = self._take_part(records, chain, last, part_bytes)
                last = record[:2]
                parts[record.block].add(record.part)
                if whole:
                    blocks[record.block][record.part] = payload
                else:
                    noted.append(record)
            if records.at != header.file_bytes:
                raise FormatError("something follows the last record")
            if records.digest.digest() != header.records_digest:
                raise FormatError("its records are not those that were written together")
        except (ValueError, CipherError) as error:
            raise _invalid(str(error)) from error

        def again() -> Iterator[Run]:
            start = noted[0].at if noted else header.file_bytes
            stretch = self._stretch(memory, part_bytes, start, _AGAIN)
            return self._again(stretch, noted, len(blocks))

        return SlotState(
            chain,
            [frozenset(each) for each in parts],
            header.tokens,
            bool(header.flags & PRIVATE),
            header.file_bytes,
            memory,
            (lambda: iter([(0, blocks)])) if whole else again,
        )

    def _stretch(
        self,
        memory: AlignedBuffer,
        part_bytes: Mapping[Part, int],
        start: int,
        doing: str,
        *,
        fresh: bool = False,
    ) -> Stretch:
        view_bytes = self._view_bytes(part_bytes)
        return Stretch(
            self._fill, self._steps, memory, self.header.file_bytes,
            doing=doing, view_bytes=view_bytes, start=start, fresh=fresh,
        )  # fmt: skip

    def _again(self, stretch: Stretch, noted: Sequence[_Noted], count: int) -> Iterator[Run]:
        """Runs of ``count`` blocks that were verified, each record the same as it was then."""
        todo, ends = deque(noted), deque[int]()
        first, run, start, end = 0, list[Payloads](), 0, 0
        for block in range(count):
            run.append({})
            while todo and todo[0].block == block:
                record = todo.popleft()
                run[-1][record.part], end = self._same(stretch, record)
            if end - start >= RUN_BYTES or block == count - 1:
                yield first, run
                ends.append(end)
                if len(ends) > 1:  # the run before this one is done with
                    stretch.release(ends.popleft())
                first, run, start = block + 1, [], end

    def _same(self, stretch: Stretch, record: _Noted) -> tuple[memoryview, int]:
        """A record's payload, and its end; raises SlotFileIOError."""
        header = RecordHeader.parse(record.head)
        start, stop, size = _bounds(header)
        view = stretch.view(record.at, record.at + size)
        content = view[start:stop]
        if view[:start] != record.head or blake3(content).digest() != header.digest:
            raise SlotFileIOError("the slot file was changed while it was read")
        plain = self._opened(header, content)
        return plain[TOKEN_BYTES * header.tail_tokens :], record.at + size

    def _chain(self, records: "_Records") -> Chain:
        """The tokens, under the names that they give to the blocks."""
        header = self.header
        head, stored = records.next()
        payload = self._opened(head, stored)
        if head.record_class != RecordClass.TOKENS or len(payload) != TOKEN_BYTES * header.tokens:
            raise FormatError("the tokens are missing, or another number of them")
        if not header.flags & SALTED and header.root != chain_root(self.namespace.digest):
            raise FormatError("its root is not the namespace's")
        chain = Chain(self.namespace, header.block_tokens)
        chain.root = BlockHash(header.root)
        chain.extend(np.frombuffer(payload, "<u4").astype(np.uint32))
        return chain

    def _take_part(
        self,
        records: "_Records",
        chain: Chain,
        last: tuple[int, int],
        part_bytes: Mapping[Part, int],
    ) -> tuple[_Noted, memoryview]:
        """The next record, and its payload; ``last``: block and part of the one before."""
        at = records.at
        found, stored = records.next()
        index, number = found.block_index, found.part
        if number not in part_bytes or last >= (index, number):
            raise FormatError("a record that does not belong there")
        if index * chain.block_tokens >= len(chain):
            raise FormatError("a record that does not belong there")
        part = Part(number)
        if found.raw_bytes > part_bytes[part] or found.codec:
            raise FormatError("a record that is larger than its part can be, or is encoded")
        wanted = part_header(chain, index, part, found.raw_bytes, self.header.key_id)
        wanted.written_ns, wanted.digest, wanted.rank = found.written_ns, found.digest, found.rank
        if found != wanted:
            raise FormatError("a record of another block")
        plain = self._opened(found, stored)
        tail_bytes = TOKEN_BYTES * found.tail_tokens
        tail = chain.tail_tokens(index, found.tail_tokens).astype("<u4").tobytes()
        if plain[:tail_bytes] != tail:
            raise FormatError("the tail's tokens are others")
        return _Noted(index, part, at, found.encode()), plain[tail_bytes:]

    def _opened(self, header: RecordHeader, stored: memoryview) -> memoryview:
        """Tail tokens and payload, decrypted in their place."""
        if header.key_id != self.header.key_id:
            raise FormatError("a record under another key")
        if header.key_id == NO_KEY:
            return stored
        if self._cipher is None or self._cipher.key_id != header.key_id:
            raise FormatError("it is encrypted with a key that this server does not have")
        plain = self._cipher.decrypt(stored, bound_bytes(header.encode()))
        stored[: len(plain)] = plain
        return stored[: len(plain)]


class _Records:
    """The records in a file's bytes, one after another, each verified before it is handed out."""

    def __init__(
        self, view: Callable[[int, int], memoryview], at: int, size: int, most_bytes: int
    ) -> None:
        """``view``: the bytes between two places; ``most_bytes``: what it can give at once."""
        self._view = view
        self._size = size
        self._most = most_bytes
        self.at = at
        self.digest = blake3()

    def next(self) -> tuple[RecordHeader, memoryview]:
        """The next record's header, and its bytes after that but for the padding; raises
        FormatError.
        """
        header = RecordHeader.parse(self._bytes(RECORD_HEADER_BYTES))
        start, stop, end = _bounds(header)
        if end > self._most:
            raise FormatError("a record that is larger than its part can be")
        record = self._bytes(end)
        if blake3(record[start:stop]).digest() != header.digest:
            raise FormatError("a record's digest is wrong")
        if bytes(record[stop:end]) != bytes(end - stop):
            raise FormatError("a record is followed by something")
        self.digest.update(record[:start])
        self.at += end
        return header, record[start:stop]

    def _bytes(self, count: int) -> memoryview:
        if self.at + count > self._size:
            raise FormatError("the file ends within a record")
        return self._view(self.at, self.at + count)


def _bounds(header: RecordHeader) -> tuple[int, int, int]:
    """Where what a record holds begins and ends, and where it ends itself."""
    plain = header.tail_tokens if header.key_id == NO_KEY else 0
    stop = RECORD_HEADER_BYTES + TOKEN_BYTES * plain + header.stored_bytes
    return RECORD_HEADER_BYTES, stop, header.record_bytes


def _invalid(problem: str) -> SlotFileInvalid:
    return SlotFileInvalid(
        f"the slot file can't be used: {problem}; the slot is as it was", param="filename"
    )


def _nothing() -> None:
    return

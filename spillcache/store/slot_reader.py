"""Reads a slot file whole, and believes nothing of it: every length is compared with the bytes that
are left before memory is taken, and every byte is covered by a digest or must be zero.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3

from spillcache.chain import BlockHash, Chain, chain_root
from spillcache.config import MIB
from spillcache.errors import SlotFileInvalid, SlotFileMissing
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
)
from spillcache.store.steps import Step, Steps

READ_BYTES = 8 * MIB
"""The most that one call reads."""
READS = 2
"""Reads in flight; as many threads."""
_READING = "the slot file was read; the slot is as it was"
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR)


@dataclass(slots=True)
class SlotState:
    """What a slot file holds, verified. The payloads are views of memory that it owns."""

    chain: Chain
    parts: list[dict[Part, memoryview]]
    """Of every whole block, and of the tail, if there is one."""
    tokens: int
    private: bool
    file_bytes: int
    memory: AlignedBuffer = field(repr=False)

    @property
    def tail_tokens(self) -> int:
        """How many tokens follow the last whole block."""
        return self.tokens % self.chain.block_tokens

    def with_headroom(self, payload: memoryview, count: int) -> memoryview:
        """A payload of ``parts`` with ``count`` bytes before it that nobody needs any more: they
        were its record's header.
        """
        start = np.frombuffer(payload, np.uint8).ctypes.data - self.memory.array.ctypes.data
        return self.memory.view[start - count : start + len(payload)]


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
        front = AlignedBuffer(max(size, PAGE_BYTES))
        self._steps[0].do(lambda: self._fill(front.view[:size], 0), _READING)
        try:
            self.header = SlotHeader.parse(front.view[:size])
            if self.header.file_bytes != self._size:
                raise FormatError(
                    f"it has {self._size} bytes and should have {self.header.file_bytes}"
                )
            records = _Records(front.view[:size], PAGE_BYTES, size)
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

    def load(self, part_bytes: dict[Part, int]) -> SlotState:
        """Read and verify everything. ``part_bytes``: the largest payload of each part that there
        may be; others are refused.
        """
        header = self.header
        memory = AlignedBuffer(header.file_bytes)
        view = memory.view[: header.file_bytes]
        try:
            records = _Records(view, PAGE_BYTES, header.file_bytes, self._arrive(memory))
            records.next()
            chain = self._chain(records)
            parts: list[dict[Part, memoryview]] = [
                {} for _ in range(-(-header.tokens // header.block_tokens))
            ]
            for _ in range(header.parts):
                self._take_part(records, chain, parts, part_bytes)
            if records.at != header.file_bytes:
                raise FormatError("something follows the last record")
            if records.digest.digest() != header.records_digest:
                raise FormatError("its records are not those that were written together")
        except (ValueError, CipherError) as error:
            raise _invalid(str(error)) from error
        private = bool(header.flags & PRIVATE)
        return SlotState(chain, parts, header.tokens, private, header.file_bytes, memory)

    def _arrive(self, memory: AlignedBuffer) -> Iterator[int]:
        """Read on, a few pieces ahead: how far the bytes have come, each time that more have."""
        size, at = self.header.file_bytes, 0
        reads: deque[tuple[int, Step[None]]] = deque()
        count = 0
        while at < size or reads:
            while at < size and len(reads) < 2 * READS:
                stop = min(at + READ_BYTES, size)
                reads.append((stop, self._begin(self._steps[count % READS], memory, at, stop)))
                at, count = stop, count + 1
            stop, read = reads.popleft()
            read.wait()
            yield stop

    def _begin(self, steps: Steps, memory: AlignedBuffer, at: int, stop: int) -> Step[None]:
        def read() -> None:
            # A read into memory that is not there yet would wait for it page by page.
            memory.array[at:stop:PAGE_BYTES] = 0
            self._fill(memory.view[at:stop], at)

        return steps.begin(read, _READING)

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
        parts: list[dict[Part, memoryview]],
        part_bytes: dict[Part, int],
    ) -> None:
        found, stored = records.next()
        index, number = found.block_index, found.part
        if index >= len(parts) or number not in part_bytes or number in parts[index]:
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
        parts[index][part] = plain[tail_bytes:]

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
        self, view: memoryview, at: int, size: int, arriving: Iterator[int] | None = None
    ) -> None:
        """``arriving``: how far the bytes have come; None: all are there."""
        self._view = view
        self._size = size
        self._arriving = arriving
        self._there = size if arriving is None else 0
        self.at = at
        self.digest = blake3()

    def next(self) -> tuple[RecordHeader, memoryview]:
        """The next record's header, and its bytes after that but for the padding; raises
        FormatError.
        """
        start = self.at + RECORD_HEADER_BYTES
        head = self._bytes(self.at, start)
        header = RecordHeader.parse(head)
        plain = header.tail_tokens if header.key_id == NO_KEY else 0
        stop = start + TOKEN_BYTES * plain + header.stored_bytes
        end = self.at + header.record_bytes
        content = self._bytes(start, stop)
        if blake3(content).digest() != header.digest:
            raise FormatError("a record's digest is wrong")
        if bytes(self._bytes(stop, end)) != bytes(end - stop):
            raise FormatError("a record is followed by something")
        self.digest.update(head)
        self.at = end
        return header, content

    def _bytes(self, start: int, stop: int) -> memoryview:
        if stop > self._size:
            raise FormatError("the file ends within a record")
        while self._there < stop and self._arriving is not None:
            self._there = next(self._arriving)
        return self._view[start:stop]


def _invalid(problem: str) -> SlotFileInvalid:
    return SlotFileInvalid(
        f"the slot file can't be used: {problem}; the slot is as it was", param="filename"
    )


def _nothing() -> None:
    return

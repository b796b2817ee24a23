"""Writes a slot file: beside its name, durably, and only then under it.

The steps are called one after another, each on any thread, but ``seal``, which may run beside
``write`` of another piece. Those that touch the disk raise OSError.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from spillcache.chain import Chain
from spillcache.config import MIB
from spillcache.state import HEADROOM_BYTES, Buffer, Part
from spillcache.store.buffers import AlignedBuffer, BufferPool
from spillcache.store.cipher import NO_KEY, Cipher
from spillcache.store.files import Files, write_fully
from spillcache.store.format import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    RecordClass,
    RecordHeader,
    bound_bytes,
    namespace_record,
)
from spillcache.store.slot_format import SlotHeader, part_header, record_bytes_max, tokens_header
from spillcache.store.slot_temporary import create_temporary

CALL_BYTES = 16 * MIB
"""The most that one call writes."""
PIECE_BYTES = 4 * MIB
"""So much is filled, digested and written in turns, or one block, if that is larger."""


@dataclass(slots=True)
class _Record:
    """One in a piece, from its byte ``at`` on."""

    at: int
    header: RecordHeader
    contents: tuple[Buffer, ...] = ()
    """What it holds, as long as that is not in the piece."""


class Piece:
    """Records in an aligned buffer, on their way into the file. Its owner fills it; ``seal`` makes
    the headers, and copies in what was left for later.
    """

    def __init__(self, least_bytes: int, pool: BufferPool | None = None) -> None:
        """``least_bytes``: one record of that many bytes must fit. ``pool``: whose buffer it is."""
        size = max(PIECE_BYTES, least_bytes)
        self.buffer = pool.take(size) if pool is not None else AlignedBuffer(size)
        self.used = 0
        self.records: list[_Record] = []
        self.holds = ExitStack()
        """Closed when all has been copied in: whoever needs what is copied later is held by it."""

    @property
    def room_bytes(self) -> int:
        """What records may still take of the file."""
        return self.buffer.size - self.used

    def fits(self, size_bytes: int) -> bool:
        """Whether records that take so much of the file still fit."""
        return size_bytes <= self.room_bytes

    def add(self, header: RecordHeader, *contents: Buffer, later: bool = False) -> None:
        """Copy a record's tail tokens and payload in; the caller keeps its buffers. ``later``: not
        now, but when ``copy`` is called, until which they must stay as they are.
        """
        record = _Record(self.used, header, contents)
        self.records.append(record)
        self.used += header.record_bytes
        if not later:
            self._copy(record)

    def copy(self) -> None:
        """Copy in what was left for later; may run beside the digests."""
        for record in self.records:
            self._copy(record)

    def _copy(self, record: _Record) -> None:
        at = record.at + RECORD_HEADER_BYTES
        for content in record.contents:
            # By numpy, which lets other threads go on meanwhile: the disk must not wait.
            self.buffer.array[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += len(content)
        record.contents = ()

    def clear(self) -> None:
        """Make it empty again."""
        self.holds.close()
        self.used = 0
        self.records.clear()


class SlotFileWriter:
    """See the module. Owns its temporary file until ``publish`` and the thread that copies, and
    needs ``abandon`` at the end in any case: until then the file is locked.
    """

    def __init__(
        self, files: Files, path: Path, chain: Chain, flags: int, cipher: Cipher | None = None
    ) -> None:
        """``chain``: the slot's, which does not change meanwhile."""
        self.path = path
        self._files = files
        self._chain = chain
        self._flags = flags
        self._cipher = cipher
        self._key_id = cipher.key_id if cipher is not None else NO_KEY
        self._copier = ThreadPoolExecutor(1, "spillcache-slot-copy")
        self._temporary: Path | None = None
        self._fd: int | None = None
        self._old: int | None = None
        """The file that had the name."""
        self._at = PAGE_BYTES
        self._parts = 0
        self._digest = blake3()
        self._encoding_bytes = len(chain.namespace.encode())

    @property
    def size(self) -> int:
        """Bytes that were written so far."""
        return self._at

    # What goes into a piece.

    @property
    def front_bytes(self) -> int:
        """What ``add_front`` may take in a piece."""
        chain = self._chain
        tokens = record_bytes_max(TOKEN_BYTES * len(chain), chain.block_tokens)
        return record_bytes_max(self._encoding_bytes, chain.block_tokens) + tokens

    def add_front(self, piece: Piece) -> None:
        """Put the records of the namespace and the tokens into the first piece, which is empty."""
        namespace = namespace_record(self._chain.namespace, time.time_ns())
        piece.buffer.view[: len(namespace)] = namespace
        piece.used = len(namespace)
        self._digest.update(namespace[:RECORD_HEADER_BYTES])
        tokens = self._chain.tokens.astype("<u4").tobytes()
        piece.add(tokens_header(self._chain, self._key_id), tokens)

    def add(
        self, piece: Piece, block: int, part: Part, payload: Buffer, *, later: bool = False
    ) -> None:
        """Copy one part of a block, or of the chain's tail, into ``piece``; blocks ascend.
        ``later``: ``seal`` does; then ``piece.holds`` must see to it that it stays.
        """
        header = part_header(self._chain, block, part, len(payload), self._key_id)
        tail = b""
        if header.tail_tokens:
            tail = self._chain.tail_tokens(block, header.tail_tokens).astype("<u4").tobytes()
        piece.add(header, tail, payload, later=later)

    def add_run(
        self, piece: Piece, block: int, blocks: int, fill: Callable[[memoryview], int]
    ) -> bool:
        """As ``add``, of the kv of a run of whole blocks that ``fill`` writes itself: it is given
        the rest of the piece, from ``HEADROOM_BYTES`` before the payload on, and returns the
        payload's bytes, or 0 if it can't.
        """
        start = piece.used + RECORD_HEADER_BYTES - HEADROOM_BYTES
        size = fill(piece.buffer.view[start:])
        if size:
            header = part_header(self._chain, block, Part.KV, size, self._key_id, blocks=blocks)
            piece.records.append(_Record(piece.used, header))
            piece.used += header.record_bytes
        return size > 0

    def seal(self, piece: Piece) -> None:
        """Copy in what was left for later, let go of what is held for that, encrypt and digest; in
        the order in which pieces are written. The copies are made by a thread, beside the digests,
        unless it is the copy that is encrypted.
        """
        if self._cipher is not None:
            piece.copy()  # and what follows has nothing to do
        copied = self._copier.submit(piece.copy)
        try:
            self._digest_records(piece)
        finally:
            copied.result()
        piece.holds.close()

    def _digest_records(self, piece: Piece) -> None:
        view = piece.buffer.view
        for record in piece.records:
            at, header = record.at, record.header
            start = at + RECORD_HEADER_BYTES
            stop = start + TOKEN_BYTES * header.tail_tokens + header.raw_bytes
            if self._cipher is not None:
                bound = bound_bytes(header.encode())
                for each in self._cipher.encrypt(bytes(view[start:stop]), bound):
                    view[start : start + len(each)] = each
                    start += len(each)
                start, stop = at + RECORD_HEADER_BYTES, start
            digest = blake3()
            for content in record.contents or (view[start:stop],):  # wherever it is now
                digest.update(content)
            header.digest = digest.digest()
            head = header.encode()
            view[at : at + RECORD_HEADER_BYTES] = head
            view[stop : at + header.record_bytes] = bytes(at + header.record_bytes - stop)
            self._digest.update(head)
            self._parts += header.record_class != RecordClass.TOKENS

    # The disk.

    def begin(self) -> None:
        """Make the temporary file, which only its owner may read."""
        self._temporary, self._fd = create_temporary(self._files, self.path.parent)

    def write(self, piece: Piece) -> None:
        """Append a sealed piece."""
        self._write(piece.buffer.view[: piece.used], self._at)
        self._at += piece.used

    def _write(self, view: memoryview, offset: int) -> None:
        assert self._fd is not None  # noqa: S101 - begin was called
        for at in range(0, len(view), CALL_BYTES):
            write_fully(self._files, self._fd, view[at : at + CALL_BYTES], offset + at)
        if not self._files.direct:
            self._files.forget(self._fd, offset, len(view))

    def flush(self) -> int:
        """Write the header and return when all is on the device: the file's bytes."""
        assert self._fd is not None  # noqa: S101 - begin was called
        header = SlotHeader(
            flags=self._flags,
            block_tokens=self._chain.block_tokens,
            tokens=len(self._chain),
            parts=self._parts,
            file_bytes=self._at,
            created_ns=time.time_ns(),
            namespace_bytes=self._encoding_bytes,
            root=self._chain.root,
            records_digest=self._digest.digest(),
            key_id=self._key_id,
        )
        page = AlignedBuffer(PAGE_BYTES, huge=False)
        page.array[:PAGE_BYTES] = np.frombuffer(header.encode(), np.uint8)
        self._write(page.view[:PAGE_BYTES], 0)
        self._files.sync(self._fd)
        return self._at

    def publish(self) -> None:
        """Give the file its name; an older one of that name is gone, and its space is free when
        ``abandon`` is done.
        """
        assert self._temporary is not None  # noqa: S101 - begin was called
        # A large file's space takes a while to be freed, which the new one need not wait for.
        with contextlib.suppress(OSError):
            self._old = self._files.open(self.path)
        self._files.rename(self._temporary, self.path)

    def settle(self) -> None:
        """Return when the name is on the device."""
        self._files.sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Remove the temporary file, if it is still there, and let go of its lock, and of the file
        that had the name; never raises OSError.
        """
        self._copier.shutdown(wait=False)
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._files.unlink(self._temporary)
        fds, self._fd, self._old = (self._fd, self._old), None, None
        for fd in fds:
            if fd is not None:
                with contextlib.suppress(OSError):
                    self._files.close(fd)

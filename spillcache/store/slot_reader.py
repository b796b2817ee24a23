"""Reads a slot file and believes nothing of it: every length is compared with the bytes that are
left before memory is taken, and every byte is covered by a digest or must be zero.
"""

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from spillcache.chain import BlockHash, Chain, chain_root
from spillcache.errors import SlotFileMissing
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.cipher import NO_KEY, Cipher, CipherError
from spillcache.store.files import Files, read_fully
from spillcache.store.format import (
    PAGE_BYTES,
    TOKEN_BYTES,
    FormatError,
    RecordClass,
    RecordHeader,
    bound_bytes,
    padded,
)
from spillcache.store.slot_blocks import READING, SlotBlocks, held_bytes, invalid
from spillcache.store.slot_format import (
    NAMESPACE_BYTES_MAX,
    PRIVATE,
    RUN_BYTES_MAX,
    SALTED,
    SlotHeader,
    record_bytes_max,
)
from spillcache.store.slot_records import Records
from spillcache.store.slot_state import SlotState
from spillcache.store.slot_stretch import Stretch, stretch_bytes
from spillcache.store.steps import Steps

READS = 4
"""Threads that read."""
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR)


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
            self._steps[0].do(self._open, READING)
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
                raise invalid("it is no regular file") from error
            raise SlotFileMissing(
                f"there is no slot file {self._path.name}", param="filename"
            ) from error
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise invalid("it is a link, or no regular file") from error
            raise
        found = os.fstat(self._fd)
        if found.st_nlink != 1:
            raise invalid("the file has another name somewhere")
        self._size = found.st_size

    def _read_front(self) -> None:
        """The header and the namespace."""
        size = min(self._size // PAGE_BYTES * PAGE_BYTES, padded(2 * NAMESPACE_BYTES_MAX))
        front = AlignedBuffer(max(size, PAGE_BYTES), huge=False)
        self._steps[0].do(lambda: self._fill(front.view[:size], 0), READING)
        try:
            self.header = SlotHeader.parse(front.view[:size])
            if self.header.file_bytes != self._size:
                raise FormatError(
                    f"it has {self._size} bytes and should have {self.header.file_bytes}"
                )
            view = front.view[:size]
            self._front = Records(
                lambda start, stop: view[start:stop], PAGE_BYTES, size, size, blake3()
            )
            header, payload = self._front.next()
            if header.record_class != RecordClass.NAMESPACE:
                raise FormatError("the namespace is missing")
            if len(payload) != self.header.namespace_bytes:
                raise FormatError("the namespace has another length")
            self.namespace = Namespace.decode(bytes(payload))
        except ValueError as error:
            raise invalid(str(error)) from error

    def _fill(self, view: memoryview, offset: int) -> None:
        if self._stopped or self._fd is None:
            return
        if read_fully(self._files, self._fd, view, offset) != len(view):
            raise OSError(errno.EIO, "the file ended early")

    # What comes after it.

    def memory_bytes(self, part_bytes: Mapping[Part, int]) -> int:
        """The least memory that ``state`` can do with: not more than the file's bytes."""
        view = self._view_bytes(part_bytes)
        return min(self.header.file_bytes, stretch_bytes(view, held_bytes(view)))

    def _view_bytes(self, part_bytes: Mapping[Part, int]) -> int:
        """The most that a record takes, or one block's together."""
        header = self.header
        tokens = record_bytes_max(TOKEN_BYTES * header.tokens, header.block_tokens)
        block = sum(record_bytes_max(size, header.block_tokens) for size in part_bytes.values())
        run = record_bytes_max(RUN_BYTES_MAX, header.block_tokens)
        return max(tokens, block, run)

    def state(self, part_bytes: Mapping[Part, int], memory: AlignedBuffer) -> SlotState:
        """The file's tokens, read and verified, and its blocks, which are still to be.
        ``part_bytes``: the largest payload of each part that there may be; others are refused.

        ``memory``: at least ``memory_bytes``. It is the state's from now on, also when this fails:
        a read that hangs may still write to it.
        """
        header, view_bytes = self.header, self._view_bytes(part_bytes)

        def begin(doing: str, at: int, digest: blake3) -> tuple[Stretch, Records]:
            stretch = Stretch(
                self._fill, self._steps, memory, header.file_bytes,
                doing=doing, view_bytes=view_bytes, start=at,
            )  # fmt: skip
            return stretch, Records(stretch.view, at, header.file_bytes, view_bytes, digest.copy())

        stretch, records = begin(READING, self._front.at, self._front.digest)
        try:
            chain = self._chain(records)
        except (ValueError, CipherError) as error:
            raise invalid(str(error)) from error
        again = partial(begin, at=records.at, digest=records.digest.copy())
        blocks = SlotBlocks(
            header, chain, part_bytes, begun=(stretch, records), again=again, opened=self._opened
        )
        return SlotState(
            chain, header.tokens, bool(header.flags & PRIVATE), header.file_bytes, memory,
            blocks.runs,
        )  # fmt: skip

    def _chain(self, records: Records) -> Chain:
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


def _nothing() -> None:
    return

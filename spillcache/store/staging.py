"""Bytes on their way into a file: copied into aligned buffers, which a thread writes while the next
one is filled, so that the device never waits for a copy or a digest.
"""

import errno
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from spillcache.config import KIB, MIB
from spillcache.processors import Apart
from spillcache.state import Buffer
from spillcache.store.buffers import AlignedBuffer, BufferPool
from spillcache.store.files import Files, write_fully
from spillcache.store.format import PAGE_BYTES, padded

_BUFFERS = 4
_BUFFER_BYTES = 6 * MIB
_SMALL_BYTES = 256 * KIB
"""Of a record that is copied with the interpreter's lock held: to give it back and wait for it
takes longer than the copy.
"""
_ZEROS = memoryview(bytes(PAGE_BYTES))
_FIRST_BYTES = 2 * MIB
"""The first write is short, so that the device has something to do at once."""
_LAST_BYTES = MIB
"""The last ones become shorter, down to this, so that little is left to write when all is there:
where that is waited for, and not while more is appended.
"""


class Staging:
    """One stream of bytes to one place in one file. One user, on one thread at a time.

    What fits into a buffer is written on the user's thread; more than that, on a thread that ends
    with the stream.
    """

    def __init__(
        self,
        files: Files,
        fd: int,
        pool: BufferPool,
        offset: int,
        size_bytes: int | None,
        *,
        apart: Apart | None = None,
    ) -> None:
        """``size_bytes``: about how much will come; None: nobody will wait for its end alone.
        ``apart``: the user's; the thread keeps away from it.
        """
        self._apart = apart
        self._files = files
        self._fd = fd
        self._pool = pool
        self._at = self._start = offset
        self._end = None if size_bytes is None else offset + size_bytes
        self._buffers = [pool.take(_BUFFER_BYTES)]
        self._buffer = self._buffers[0]
        self._limit = _FIRST_BYTES
        self._filled = 0
        self._thread: threading.Thread | None = None
        self._todo: SimpleQueue[tuple[AlignedBuffer, int, int] | None] = SimpleQueue()
        self._free: SimpleQueue[AlignedBuffer] = SimpleQueue()
        self._error: BaseException | None = None
        self._closed = False

    @property
    def offset(self) -> int:
        """Where the next byte goes in the file."""
        return self._at + self._filled

    def add(self, pieces: Sequence[Buffer]) -> int:
        """Copy a record in, and zeros up to the next page, and say where it begins in the file;
        ``pieces`` may be changed afterwards. Raises the OSError of an earlier write.
        """
        at, view, start = self._filled, self._buffer.view, self._at + self._filled
        size = sum(map(len, pieces))
        end = padded(at + size)
        if size > _SMALL_BYTES or end > self._limit:
            self._add_long(pieces)
            return start
        for piece in pieces:
            stop = at + len(piece)
            view[at:stop] = piece
            at = stop
        view[at:end] = _ZEROS[: end - at]
        self._filled = end
        return start

    def _add_long(self, pieces: Sequence[Buffer]) -> None:
        """NumPy copies without holding the interpreter's lock, so that decoding goes on
        meanwhile.
        """
        for piece in pieces:
            source = np.frombuffer(piece, dtype=np.uint8)
            done, size = 0, len(source)
            while done < size:
                if self._filled == self._limit:
                    self._turn_over()
                count = min(size - done, self._limit - self._filled)
                start = self._filled
                self._buffer.array[start : start + count] = source[done : done + count]
                self._filled += count
                done += count
        # A buffer is whole pages, so this never overflows it.
        end = padded(self._filled)
        self._buffer.array[self._filled : end] = 0
        self._filled = end

    def _turn_over(self) -> None:
        """Have the buffer written and go on in another."""
        self._todo.put((self._buffer, self._filled, self._at))
        if self._thread is None:
            # It finds something to do at once, and so never waits for the interpreter's lock
            # while this thread makes digests.
            thread = threading.Thread(target=self._write, name="spillcache-write", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            self._thread = thread
        self._at += self._filled
        self._filled = 0
        self._limit = self._next_bytes()
        if len(self._buffers) < _BUFFERS:
            self._buffer = self._pool.take(_BUFFER_BYTES)
            self._buffers.append(self._buffer)
        else:
            self._buffer = self._free.get()
        if self._error is not None:
            raise self._error

    def _next_bytes(self) -> int:
        """Of the write after those that were handed over."""
        if self._end is None:
            return _BUFFER_BYTES
        return padded(min(max((self._end - self._at) // 2, _LAST_BYTES), _BUFFER_BYTES))

    def _write(self) -> None:
        if self._apart is not None:
            self._apart.cross()
        while (todo := self._todo.get()) is not None:
            buffer, length, at = todo
            try:
                if self._error is None and not self._closed:
                    write_fully(self._files, self._fd, buffer.view[:length], at)
            except BaseException as error:  # raised on the user's thread
                self._error = error
            self._free.put(buffer)
        self._sync()

    def _sync(self) -> None:
        try:
            if self._error is None and not self._closed:
                self._files.sync(self._fd)
        except BaseException as error:  # raised on the user's thread
            self._error = error

    def end(self) -> None:
        """Nothing more is added: a long stream's last bytes go their way while the user does
        something else.
        """
        if self._thread is not None:
            self._todo.put((self._buffer, self._filled, self._at))
            self._todo.put(None)

    def finish(self) -> None:
        """Return when all bytes are on the device; after ``end``. Raises OSError: what is there is
        then unknown.
        """
        if self._thread is None:
            write_fully(self._files, self._fd, self._buffer.view[: self._filled], self._at)
            self._files.sync(self._fd)
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._files.direct:
            self._files.forget(self._fd, self._start, self.offset - self._start)

    def close(self) -> None:
        """Give the buffers back, when nobody uses them any more; may be called at any time, twice
        too.
        """
        self._closed = True
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
        while self._buffers:
            self._pool.give(self._buffers.pop())

"""Blobs from which llama.cpp reads blocks: several blocks as one, the next one joined by a thread
while the last is read.
"""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from spillcache.config import MIB
from spillcache.engine.llama_sections import HEADER_BYTES, NO_CELLS, Bytes, header
from spillcache.engine.llama_state import LlamaState
from spillcache.processors import Apart
from spillcache.state import BlockState, Buffer, Part

BLOB_BYTES = 8 * MIB
"""The most that llama.cpp gets at once, or one block, if that is larger: each time it looks through
all its cells. The first of several is a quarter: nothing else is done while it is joined.
"""


class LlamaBlobs:
    """See the module. Engine's thread. Owns two buffers, which stay, and the thread."""

    def __init__(self, state: LlamaState) -> None:
        self._state = state
        self._buffers = [np.empty(0, np.uint8)] * 2
        self._joiner = ThreadPoolExecutor(1, "spillcache-join")
        self._joiner.submit(lambda: None)  # so that its thread is there, or the start fails

    def of(
        self, states: Sequence[BlockState], first: int, others: int, apart: Apart
    ) -> Generator[tuple[int, memoryview], None, None]:
        """Blobs with all of ``states``, in order, each of blocks with the same parts, and the
        sequence that it is for: the ``first`` or ``others``. A blob is valid until the next; who
        breaks off closes the iterator, and only then are ``states`` not read any more. ``apart``:
        the caller's; the thread that joins keeps away from it.
        """
        runs = _runs(states)
        target, blob = first, self._join(0, first, runs[0])
        if len(runs) > 1:
            self._joiner.submit(apart.cross)
        for number, run in enumerate(runs[1:], 1):
            ahead = self._joiner.submit(self._join, number % 2, others, run)
            try:
                yield target, blob
            finally:
                wait((ahead,))
            target, blob = others, ahead.result()
        yield target, blob

    def close(self) -> None:
        """End the thread."""
        self._joiner.shutdown()

    def _join(self, place: int, sequence: int, states: Sequence[BlockState]) -> memoryview:
        """One blob with all ``states``, in a buffer."""
        state, out = self._state, self._buffer(place, sum(map(_size, states)))
        at = _put(out, 0, header(sequence))
        if state.kv is not None:
            at += state.kv.join([each[Part.KV] for each in states], out[at:])
        if state.recurrent is not None:
            at = _put(out, at, state.recurrent.empty)
        elif state.window is not None:
            if Part.WINDOW in states[0]:
                at += state.window.join([each[Part.WINDOW] for each in states], out[at:])
            else:
                at = _put(out, at, NO_CELLS)
        return out[:at].data

    def _buffer(self, place: int, size: int) -> Bytes:
        """Room for ``size`` bytes of blocks, and what is around them."""
        extra = HEADER_BYTES + len(self._state.nothing_more)
        if len(self._buffers[place]) < size + extra:
            self._buffers[place] = np.empty(max(size, BLOB_BYTES) + extra, np.uint8)
        return self._buffers[place]


def _size(state: BlockState) -> int:
    return sum(len(payload) for part, payload in state.items() if part is not Part.BOUNDARY)


def _runs(states: Sequence[BlockState]) -> list[Sequence[BlockState]]:
    """``states``, in runs of one blob each."""
    sizes = [_size(state) for state in states]
    most = BLOB_BYTES if sum(sizes) <= BLOB_BYTES else BLOB_BYTES // 4
    runs, begin, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > begin and (total + size > most or states[at].keys() != states[begin].keys()):
            runs.append(states[begin:at])
            begin, total, most = at, 0, BLOB_BYTES
        total += size
    return [*runs, states[begin:]]


def _put(out: Bytes, at: int, content: Buffer) -> int:
    """Copy ``content`` in: where it ends."""
    end = at + len(content)
    out[at:end] = np.frombuffer(content, np.uint8)
    return end

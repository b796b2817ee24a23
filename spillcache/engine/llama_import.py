"""Blocks' attention state on its way into a sequence: llama.cpp replaces a whole one by what it
reads, so only what comes first goes straight there, and the rest through the spare sequence.
Engine's thread.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice

from spillcache.engine.llama_blobs import LlamaBlobs
from spillcache.engine.llama_memory import PARTIAL_ONLY, LlamaMemory
from spillcache.engine.llama_sections import HEADER_BYTES, NO_CELLS, Placeholder, header
from spillcache.engine.llama_state import LlamaState
from spillcache.processors import Apart
from spillcache.state import BlockState


class LlamaImport:
    """Appends blocks to the sequences of one context."""

    def __init__(
        self, memory: LlamaMemory, state: LlamaState, spare: int, *, ring: int, call_tokens: int
    ) -> None:
        """``ring``: the context's window cells; ``call_tokens``: the most that one call takes."""
        self._memory = memory
        self._blobs = LlamaBlobs(state)
        self._blank = state.blank
        self._spare = spare
        self.ring = ring
        self._call_tokens = call_tokens

    def close(self) -> None:
        """End the thread that joins."""
        self._blobs.close()

    def append(
        self,
        sequence: int,
        start: int,
        states: Sequence[BlockState],
        *,
        lay_out: int = 0,
        memory: memoryview | None = None,
    ) -> None:
        """Append blocks that were checked at position ``start``. ``lay_out``: as
        ``lay_out_windows`` of that position, if it is not 0. ``memory``: room for a blob's header
        and the one section that there is, so that nothing need be copied.

        Raises StateRejected.
        """
        if lay_out and start:
            self.lay_out_windows(sequence, lay_out)
        target = self._spare if start else sequence
        if memory is not None:
            memory[:HEADER_BYTES] = header(target)
            self._take(sequence, [(target, memory)])
            return
        with (
            Apart() as apart,
            closing(self._blobs.of(states, target, self._spare, apart)) as blobs,
        ):
            # What goes straight into the sequence replaces all that is there.
            self._take(sequence, islice(blobs, 1))
            if lay_out and not start:
                self.lay_out_windows(sequence, lay_out)
            self._take(sequence, blobs)

    def _take(self, sequence: int, blobs: Iterable[tuple[int, memoryview]]) -> None:
        """Read ``blobs`` into their sequences, and append those that are not ``sequence``'s own."""
        try:
            for target, blob in blobs:
                self._memory.set(target, blob, len(blob))
                if target != sequence:
                    self._memory.copy(target, sequence)
        finally:  # what was half written must not be in the next block
            self._memory.drop(self._spare)

    def lay_out_windows(self, sequence: int, start: int) -> None:
        """Have the windows from ``start`` on, the first that are there, lie in the cells where a
        cold run would have put them, and the cells before them in use. Raises StateRejected.

        Window cells are taken in a ring: what came more than a round earlier has left no trace.
        """
        blank = self._blank
        assert blank is not None  # noqa: S101 - there are windows
        size, ring = blank.layout.cells, self.ring
        if start < ring or ring % size:
            for at in range(0, start, self._call_tokens):
                self._blank_out(sequence, blank, at, min(at + self._call_tokens, start))
            return
        turn = start // ring * ring
        # The latest round, up to where the next block goes; then what the round before has left of
        # the ring, but for that block's cells: freed, they are taken next.
        for first, last, kept in ((turn, start, turn), (start - ring, turn, start - ring + size)):
            if first < last:
                self._blank_out(sequence, blank, first, last, kept)

    def own_windows(self, sequence: int, starts: Sequence[int], stop: int) -> None:
        """Have a fork's windows of the blocks at ``starts``, up to ``stop``, lie in cells of its
        own, and forget what is older there. Raises StateRejected.

        llama.cpp takes a window's cell again when it is out of sight, but not one that two
        sequences share: two that began alike would hold all of the ring that they share.
        """
        # One by one, for llama.cpp leaves out what is out of sight at the end of what it exports.
        sections = []
        for start, end in zip(starts, [*starts[1:], stop], strict=True):
            self._memory.copy(sequence, self._spare, start, end)
            try:
                size = self._memory.partial_size(self._spare)
                blob = self._memory.read(self._spare, size, 0, PARTIAL_ONLY)
                sections.append(bytes(blob[HEADER_BYTES:]))
            finally:
                self._memory.drop(self._spare)
        sections = [section for section in sections if len(section) > len(NO_CELLS)]
        if sections:
            self._memory.write(sequence, (header(sequence), sections[0]), PARTIAL_ONLY)
        for section in sections[1:]:
            try:
                self._memory.write(self._spare, (header(self._spare), section), PARTIAL_ONLY)
                self._memory.copy(self._spare, sequence)
            finally:
                self._memory.drop(self._spare)

    def _blank_out(
        self, sequence: int, blank: Placeholder, first: int, last: int, kept: int = 0
    ) -> None:
        """Append placeholders of the positions ``first`` … ``last`` - 1, of which those from
        ``kept`` on stay.
        """
        blob = blank.blob(header(self._spare), first, last - first)
        try:
            self._memory.set(self._spare, blob, len(blob))
            self._memory.copy(self._spare, sequence, max(first, kept), last)
        finally:
            self._memory.drop(self._spare)

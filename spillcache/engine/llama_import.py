"""Blocks' attention state on its way into a sequence: llama.cpp replaces a whole one by what it
reads, so only what comes first goes straight there, and the rest through the spare sequence.
Engine's thread.
"""

from collections.abc import Sequence

from spillcache.engine.llama_memory import LlamaMemory
from spillcache.engine.llama_sections import HEADER_BYTES, NO_CELLS, Placeholder, header
from spillcache.engine.llama_state import LlamaState
from spillcache.state import BlockState, Buffer, Part


class LlamaImport:
    """Appends blocks to the sequences of one context."""

    def __init__(
        self, memory: LlamaMemory, state: LlamaState, spare: int, *, ring: int, call_tokens: int
    ) -> None:
        """``ring``: the context's window cells; ``call_tokens``: the most that one call takes."""
        self._memory = memory
        self._state = state
        self._spare = spare
        self._ring = ring
        self._call_tokens = call_tokens

    def append(
        self,
        sequence: int,
        start: int,
        states: Sequence[BlockState],
        memory: memoryview | None = None,
    ) -> None:
        """Append blocks that were checked, all with the same parts, at position ``start``.
        ``memory``: room for a blob's header and the one section that there is, so that nothing need
        be copied.

        Raises StateRejected.
        """
        if start == 0:
            self._set(sequence, states, memory)
            return
        try:
            self._set(self._spare, states, memory)
            self._memory.copy(self._spare, sequence)
        finally:  # what was half written must not be in the next block
            self._memory.drop(self._spare)

    def _set(self, sequence: int, states: Sequence[BlockState], memory: memoryview | None) -> None:
        """Replace a sequence by ``states``."""
        if memory is None:
            self._memory.write(sequence, self._pieces(sequence, states))
        else:
            memory[:HEADER_BYTES] = header(sequence)
            self._memory.set(sequence, memory, len(memory))

    def _pieces(self, sequence: int, states: Sequence[BlockState]) -> list[Buffer]:
        """Of one blob with all ``states``."""
        state = self._state
        pieces: list[Buffer] = [header(sequence)]
        if state.kv is not None:
            pieces += state.kv.joined([each[Part.KV] for each in states])
        if state.recurrent is not None:
            pieces.append(state.recurrent.empty)
        elif state.window is not None:
            windows = [each[Part.WINDOW] for each in states if Part.WINDOW in each]
            pieces += state.window.joined(windows) if windows else [NO_CELLS]
        return pieces

    def lay_out_windows(self, sequence: int, start: int, blank: Placeholder) -> None:
        """Have the windows from ``start`` on, the first that are there, lie in the cells where a
        cold run would have put them, and the cells before them in use. Raises StateRejected.

        Window cells are taken in a ring: what came more than a round earlier has left no trace.
        """
        size, ring = blank.layout.cells, self._ring
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

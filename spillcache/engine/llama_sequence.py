"""What must be remembered of a llama.cpp sequence, because llama.cpp accepts its absence silently.
Positions are numbers of tokens.
"""

from dataclasses import dataclass

from spillcache.errors import StateRejected

NO_BOUNDARY = -1


@dataclass(slots=True)
class LlamaSequence:
    """See the module. Engine's thread."""

    length: int = 0
    windows_from: int = 0
    """Positions below hold placeholders, not windows."""
    boundary_at: int = 0
    """Recurrent state is the one after this many positions; NO_BOUNDARY: there is none."""
    window_at: int = 0
    """Placeholders are there up to here, where a first block with its window is still to come; 0:
    none is expected.
    """

    def lay_out(self, start: int, windows: int, stop: int) -> int:
        """Up to where placeholders must be laid out before blocks at ``start`` … ``stop``, whose
        windows begin at ``windows``; 0: there is nothing to be done.

        Raises StateRejected where they were to begin elsewhere.
        """
        if self.window_at:
            if windows > self.window_at or (windows < stop and windows != self.window_at):
                raise StateRejected(f"windows are to begin at position {self.window_at}")
            return 0
        begin = windows < stop and (windows > start or self.windows_from == start)
        return windows if begin else 0

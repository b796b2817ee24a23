"""The batch that every decode call of one context reuses."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillcache.engine.base import Chunk


class LlamaBatch:
    """A ``llama_batch`` over numpy arrays, so that filling it is a few array copies.

    ``rows`` maps a sequence to the batch index of its last token, where that token's logits were
    asked for.
    """

    def __init__(self, api: Any, capacity: int) -> None:
        self.rows: dict[int, int] = {}
        self._capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._sequence = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        # llama.cpp wants, per token, a pointer to its sequence ids: all point into one array.
        base, width = self._sequence.ctypes.data, self._sequence.itemsize
        self._pointers = np.arange(base, base + capacity * width, width, dtype=np.uintp)
        self.native = api.llama_batch()
        self.native.embd = None
        for name, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._count),
            ("seq_id", self._pointers),
            ("logits", self._logits),
        ):
            kind = dict(type(self.native)._fields_)[name]
            setattr(self.native, name, ctypes.cast(array.ctypes.data, kind))

    def fill(self, chunks: Sequence[Chunk], starts: Sequence[int]) -> None:
        """Lay out ``chunks``, whose first tokens take the positions ``starts``.

        Raises ValueError, with nothing changed, when they are more than ``capacity`` tokens.
        """
        size = sum(len(chunk.tokens) for chunk in chunks)
        if size > self._capacity:  # numpy would cut off a slice, and C read beyond the arrays
            raise ValueError(f"a call of {size} tokens, and at most {self._capacity} fit")
        self.rows = {}
        at = 0
        for chunk, start in zip(chunks, starts, strict=True):
            end = at + len(chunk.tokens)
            self._token[at:end] = chunk.tokens
            self._pos[at:end] = np.arange(start, start + len(chunk.tokens))
            self._sequence[at:end] = chunk.sequence
            self._logits[at:end] = 0
            if chunk.logits:
                self._logits[end - 1] = 1
                self.rows[chunk.sequence] = end - 1
            at = end
        self.native.n_tokens = at

"""How llama.cpp lays out a sequence's state, as far as we must know it (docs/format.md, "llama.cpp
payloads").

A blob is an 8-byte header and one or two sections. We never rewrite attention rows; we read the
layout of a section once to check later ones, to make window placeholders, and to make an empty
recurrent section. Little-endian throughout:

    header    u32 magic | i32 sequence
    KV        u32 streams (1) | u32 cells
              per cell: i32 position, u32 sequences (1), [3 × i32 with M-RoPE], i32 sequence
              u32 v_trans | u32 layers | [u32 k_rotation, u32 v_rotation in state format 4]
              per layer K: i32 type, u64 row bytes, cells × row
              per layer V: the same, or transposed:
              i32 type, u32 element bytes, u32 rows, rows × cells × element
    recurrent u32 cells | per cell: i32 position, u32 sequences (0) | u32 s_trans | u32 layers
              records: i32 type, u64 row bytes, cells × row

Source: llama.cpp, src/llama-kv-cache.cpp and src/llama-memory-recurrent.cpp, checked by experiment
on state formats 3, 4.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np

from spillcache.errors import StateRejected
from spillcache.state import Buffer

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
MAGIC = 0xAF143CD8
HEADER_BYTES = 8
_CELLS_AT = 8
_U32X2, _ROW, _TRANSPOSED = struct.Struct("<II"), struct.Struct("<iQ"), struct.Struct("<iII")


def header(sequence: int) -> bytes:
    """A blob's first 8 bytes."""
    return struct.pack("<Ii", MAGIC, sequence)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layout of one KV section: all of it is fixed for a context and a count of cells."""

    cells: int
    cell_bytes: int
    v_trans: bool
    layers: int
    state_format: int
    rotation: tuple[int, int]
    data: tuple[tuple[int, int], ...]
    """(offset, bytes) of every run of rows."""
    size: int

    def of(self, cells: int) -> "KVLayout":
        """The layout of the same context's section of another number of cells."""
        if cells == self.cells:
            return self
        at = _CELLS_AT + cells * self.cell_bytes + (8 if self.state_format < 4 else 16)
        data = []
        for _, size in self.data:
            size_of = size // self.cells * cells
            data.append((at + 12, size_of))
            at += 12 + size_of
        return replace(self, cells=cells, data=tuple(data), size=at)

    def positions(self, section: Buffer) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        """The cells' positions, as stored in ``section``."""
        words = np.frombuffer(section, "<i4", self.cells * self.cell_bytes // 4, _CELLS_AT)
        return words.reshape(self.cells, self.cell_bytes // 4)[:, 0]

    def in_order(self, section: Buffer, start: int) -> bool:
        """Whether the cells are those from position ``start`` on, one after another."""
        wanted = np.arange(start, start + self.cells, dtype=np.int32)
        return bool((self.positions(section) == wanted).all())

    def check(self, section: Buffer, start: int, stop: int) -> None:
        """Raise StateRejected unless ``section`` has this layout and holds the cells start … stop -
        1.
        """
        if len(section) != self.size:
            raise StateRejected(f"a KV section of {len(section)} bytes, not {self.size}")
        if _U32X2.unpack_from(section, 0) != (1, self.cells):
            raise StateRejected("a KV section with another number of cells")
        found = _U32X2.unpack_from(section, _CELLS_AT + self.cells * self.cell_bytes)
        if found != (int(self.v_trans), self.layers):
            raise StateRejected("a KV section with another layout")
        found_at, wanted = self.positions(section), np.arange(start, stop, dtype=np.int32)
        # In order, as a rule: only what was exported around the end of the cells is not.
        in_order = len(wanted) == self.cells and bool((found_at == wanted).all())
        if not in_order and not np.array_equal(np.sort(found_at), wanted):
            raise StateRejected("a KV section of other positions")

    def join(self, sections: Sequence[Buffer], out: Bytes) -> int:
        """Write one section with the cells of all ``sections``, in their order, to the beginning of
        ``out``: its bytes. Other threads of the interpreter go on meanwhile.

        Several not for transposed V, where it is each row that would have to be joined.
        """
        arrays = [np.frombuffer(section, np.uint8) for section in sections]
        first = arrays[0]
        if len(arrays) == 1:
            out[: len(first)] = first
            return len(first)
        whole = self.of(self.cells * len(arrays))
        out[:_CELLS_AT] = np.frombuffer(_U32X2.pack(1, whole.cells), np.uint8)
        at = end = _CELLS_AT
        for (start, size), (begin, count) in zip(self._runs(), whole._runs(), strict=True):
            out[end:begin] = first[at:start]
            at, end = start + size, begin + count
            np.concatenate([array[start:at] for array in arrays], out=out[begin:end])
        return whole.size

    def _runs(self) -> Sequence[tuple[int, int]]:
        """(offset, bytes) of all that grows with the cells."""
        return (_CELLS_AT, self.cells * self.cell_bytes), *self.data

    def split(self, section: Buffer, count: int) -> list[bytes]:
        """The reverse of ``join``: copies of the ``count`` sections of which ``section`` has the
        cells, in their order; raises StateRejected if they are in another.
        """
        whole, view = self.of(self.cells * count), memoryview(section).cast("B")
        found = whole.positions(section)
        if not (np.diff(found) == 1).all():
            raise StateRejected("a KV section whose positions are not in order")
        cells, at = self.cells * self.cell_bytes, _CELLS_AT
        head = _U32X2.pack(1, self.cells)
        shares: list[list[Buffer]] = [
            [head, view[at + n * cells : at + (n + 1) * cells]] for n in range(count)
        ]
        at += count * cells
        for (offset, _), (_, size) in zip(whole.data, self.data, strict=True):
            for n, share in enumerate(shares):
                rows = offset + n * size
                share += [view[at:offset], view[rows : rows + size]]
            at = offset + count * size
        return [b"".join(share) for share in shares]

    def zeroed(self, section: Buffer) -> bytearray:
        """A copy of ``section`` whose rows are all zero."""
        out = bytearray(section)
        for offset, size in self.data:
            out[offset : offset + size] = bytes(size)
        return out


def parse_kv(section: Buffer, extra_words: int) -> KVLayout | None:
    """The layout of a KV section, or None if it is not one that we know.

    ``extra_words``: 32-bit words per cell beyond the usual (3 with M-RoPE). The state format (3 or
    4) is the one under which the section's length comes out exactly.
    """
    for state_format in (3, 4):
        try:
            layout = _parse_kv(section, extra_words, state_format)
        except struct.error:
            continue
        if layout is not None and layout.size == len(section):
            return layout
    return None


def _parse_kv(section: Buffer, extra_words: int, state_format: int) -> KVLayout | None:
    streams, cells = _U32X2.unpack_from(section, 0)
    cell_bytes = 12 + 4 * extra_words
    at = _CELLS_AT + cells * cell_bytes
    v_trans, layers = _U32X2.unpack_from(section, at)
    if streams != 1 or v_trans > 1 or layers > 4096:
        return None
    at += 8
    rotation = (0, 0)
    if state_format >= 4:
        rotation = _U32X2.unpack_from(section, at)
        at += 8
    data: list[tuple[int, int]] = []
    for transposed in (False, bool(v_trans)):
        for _ in range(layers):
            if transposed:
                _, element, rows = _TRANSPOSED.unpack_from(section, at)
                size = rows * cells * element
            else:
                _, row = _ROW.unpack_from(section, at)
                size = cells * row
            data.append((at + 12, size))
            at += 12 + size
            if at > len(section):
                return None
    return KVLayout(
        cells, cell_bytes, bool(v_trans), layers, state_format, rotation, tuple(data), at
    )


NO_CELLS = struct.pack("<II", 1, 0)
"""An attention section of one stream without cells."""
_KEPT_BLOBS = 4
_BLANK_BEFORE = HEADER_BYTES + len(NO_CELLS)


class Placeholder:
    """Blobs of window cells with zero rows and no kv: only positions are written anew.

    Such cells are masked anyway; they keep the cell layout, and so the bits, of a cold run. Rows
    are anonymous memory that is never written: all their pages are the kernel's one page of zeros,
    which takes neither memory nor, when copied, much time.
    """

    def __init__(self, layout: KVLayout, section: Buffer) -> None:
        self.layout = layout
        self._section = bytes(section)
        self._blobs: dict[int, mmap] = {}

    def blob(self, head: bytes, start: int, cells: int) -> mmap:
        """``head`` and ``cells`` window cells of the positions from ``start`` on; ours, valid until
        the next call.
        """
        layout = self.layout.of(cells)
        blob = self._blobs.pop(cells, None) or self._made(layout)
        self._blobs[cells] = blob
        if len(self._blobs) > _KEPT_BLOBS:
            del self._blobs[next(iter(self._blobs))]
        blob[: len(head)] = head
        layout.positions(memoryview(blob)[_BLANK_BEFORE:])[:] = np.arange(start, start + cells)
        return blob

    def _made(self, layout: KVLayout) -> mmap:
        flags = MAP_PRIVATE | MAP_ANONYMOUS
        blob = mmap(-1, _BLANK_BEFORE + layout.size, flags)
        blob[HEADER_BYTES:_BLANK_BEFORE] = NO_CELLS
        section, known, at = memoryview(blob)[_BLANK_BEFORE:], self._section, _CELLS_AT
        cell = known[at : at + layout.cell_bytes]
        cells_end, known_end = (at + x.cells * x.cell_bytes for x in (layout, self.layout))
        section[:at] = _U32X2.pack(1, layout.cells)
        section[at:cells_end] = cell * layout.cells
        # What lies between rows, and between the cells and the first rows, is the same.
        for (rows, size), (known_rows, known_size) in zip(
            layout.data, self.layout.data, strict=True
        ):
            section[cells_end:rows] = known[known_end:known_rows]
            cells_end, known_end = rows + size, known_rows + known_size
        return blob


@dataclass(frozen=True, slots=True)
class RecurrentLayout:
    """The layout of a recurrent section with one cell."""

    empty: bytes
    """The same section with no cell: the records' headers without data."""
    data: tuple[tuple[int, int], ...]
    size: int

    def check(self, section: Buffer, position: int) -> None:
        """Raise StateRejected unless ``section`` is one cell of this layout, at ``position``."""
        if len(section) != self.size:
            raise StateRejected(f"a recurrent state of {len(section)} bytes, not {self.size}")
        cells, found = struct.unpack_from("<Ii", section, 0)
        if cells != 1 or found != position:
            raise StateRejected("a recurrent state of another position")

    def zeroed(self, section: Buffer) -> bytearray:
        """A copy of ``section`` whose rows are all zero."""
        out = bytearray(section)
        for offset, size in self.data:
            out[offset : offset + size] = bytes(size)
        return out


def parse_recurrent(section: Buffer) -> RecurrentLayout | None:
    """The layout of a recurrent section with one cell, or None if it is not one that we know."""
    try:
        cells, _position, sequences, s_trans, layers = struct.unpack_from("<IiIII", section, 0)
        if (cells, sequences) != (1, 0) or layers > 4096:
            return None
        empty, data, at = bytearray(struct.pack("<III", 0, s_trans, layers)), [], 20
        while at < len(section):
            kind, row = _ROW.unpack_from(section, at)
            empty += _ROW.pack(kind, row)
            data.append((at + 12, row))
            at += 12 + row
    except struct.error:
        return None
    return RecurrentLayout(bytes(empty), tuple(data), at) if at == len(section) else None

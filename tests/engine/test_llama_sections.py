"""Small sections, byte by byte, as docs/format.md describes them."""

import struct
from pathlib import Path

import numpy as np
import pytest

from spillcache.engine.llama_sections import (
    NO_CELLS,
    KVLayout,
    Placeholder,
    header,
    parse_kv,
    parse_recurrent,
)
from spillcache.engine.llama_state import LlamaState
from spillcache.errors import StateRejected
from spillcache.state import Buffer, Part

# Two cells at 6 and 7, one layer, K rows of 4 bytes, V rows of 2: state format 3.
GOLDEN = bytes.fromhex(
    "01000000 02000000"  # streams, cells
    "06000000 01000000 00000000"  # position, sequences, sequence
    "07000000 01000000 00000000"
    "00000000 01000000"  # V as rows, layers
    "01000000 0400000000000000 a0a1a2a3 b0b1b2b3"  # K: type f16, row bytes, rows
    "01000000 0200000000000000 c0c1 d0d1"  # V
)
# The same with state format 4: two words of rotation after the layers.
GOLDEN_4 = GOLDEN[:40] + bytes.fromhex("40000000 80000000") + GOLDEN[40:]
# Transposed V: type, element bytes 2, one row; then cells × element.
GOLDEN_TRANSPOSED = (
    GOLDEN[:32]
    + bytes.fromhex("01000000 01000000")
    + GOLDEN[40:60]
    + bytes.fromhex("01000000 02000000 01000000 c0c1 d0d1")
)
# Three words more per cell with M-RoPE: x, y, token.
GOLDEN_MULTI = (
    GOLDEN[:8]
    + bytes.fromhex("06000000 01000000 06000000 06000000 00000000 00000000")
    + bytes.fromhex("07000000 01000000 07000000 07000000 00000000 00000000")
    + GOLDEN[32:]
)
# One cell at 63, two records of 4 and 2 bytes.
RECURRENT = bytes.fromhex(
    "01000000 3f000000 00000000"  # cells, position, sequences
    "00000000 02000000"  # transposed, layers
    "00000000 0400000000000000 a0a1a2a3"
    "00000000 0200000000000000 b0b1"
)


def parsed(section: bytes, extra_words: int = 0) -> KVLayout:
    layout = parse_kv(section, extra_words)
    assert layout is not None
    return layout


def patched(section: bytes, at: int, *words: int) -> bytes:
    out = bytearray(section)
    struct.pack_into(f"<{len(words)}I", out, at, *words)
    return bytes(out)


def test_a_header_is_golden() -> None:
    assert header(3).hex() == "d83c14af03000000"
    assert header(-1).hex() == "d83c14afffffffff"


def test_state_format_3() -> None:
    layout = parsed(GOLDEN)
    assert (layout.cells, layout.cell_bytes, layout.layers) == (2, 12, 1)
    assert (layout.state_format, layout.rotation, layout.v_trans) == (3, (0, 0), False)
    assert layout.size == len(GOLDEN)
    assert [GOLDEN[at : at + size].hex() for at, size in layout.data] == [
        "a0a1a2a3b0b1b2b3",
        "c0c1d0d1",
    ]
    assert layout.positions(GOLDEN).tolist() == [6, 7]
    layout.check(GOLDEN, 6, 8)
    layout.check(memoryview(bytearray(GOLDEN)), 6, 8)


def test_state_format_4() -> None:
    layout = parsed(GOLDEN_4)
    assert (layout.state_format, layout.rotation) == (4, (0x40, 0x80))
    assert [GOLDEN_4[at : at + size].hex() for at, size in layout.data] == [
        "a0a1a2a3b0b1b2b3",
        "c0c1d0d1",
    ]
    layout.check(GOLDEN_4, 6, 8)
    with pytest.raises(StateRejected):
        layout.check(GOLDEN, 6, 8)


def test_transposed_v() -> None:
    layout = parsed(GOLDEN_TRANSPOSED)
    assert (layout.v_trans, layout.state_format) == (True, 3)
    at, size = layout.data[1]
    assert GOLDEN_TRANSPOSED[at : at + size].hex() == "c0c1d0d1"
    layout.check(GOLDEN_TRANSPOSED, 6, 8)
    with pytest.raises(StateRejected, match="another layout"):
        layout.check(patched(GOLDEN_TRANSPOSED, 32, 0), 6, 8)


def test_words_of_m_rope() -> None:
    layout = parsed(GOLDEN_MULTI, 3)
    assert layout.cell_bytes == 24
    assert layout.positions(GOLDEN_MULTI).tolist() == [6, 7]
    layout.check(GOLDEN_MULTI, 6, 8)
    assert parse_kv(GOLDEN_MULTI, 0) is None
    assert parse_kv(GOLDEN, 3) is None


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_4, GOLDEN_TRANSPOSED])
def test_other_bytes_are_no_layout(golden: bytes) -> None:
    for cut in range(len(golden)):
        assert parse_kv(golden[:cut], 0) is None, cut
    assert parse_kv(golden + b"\0", 0) is None
    assert parse_kv(patched(golden, 0, 2), 0) is None, "streams"
    assert parse_kv(patched(golden, 4, 1), 0) is None, "cells"
    assert parse_kv(patched(golden, 4, 0x7FFFFFFF), 0) is None
    assert parse_kv(patched(golden, 32, 2), 0) is None, "neither rows nor transposed"
    assert parse_kv(patched(golden, 36, 2), 0) is None, "layers"
    assert parse_kv(patched(golden, 36, 0xFFFFFFFF), 0) is None
    assert parse_kv(patched(golden, 44 + 8 * (golden is GOLDEN_4), 0xFFFFFFFF), 0) is None


@pytest.mark.parametrize(
    ("at", "word", "message"),
    [
        (0, 2, "number of cells"),
        (4, 3, "number of cells"),
        (8, 5, "other positions"),
        (8, 7, "other positions"),
        (20, 0xFFFFFFFF, "other positions"),
        (32, 1, "another layout"),
        (36, 2, "another layout"),
    ],
)
def test_a_section_with_another_head_is_refused(at: int, word: int, message: str) -> None:
    with pytest.raises(StateRejected, match=message):
        parsed(GOLDEN).check(patched(GOLDEN, at, word), 6, 8)


def test_cells_may_lie_in_any_order() -> None:
    swapped = patched(patched(GOLDEN, 8, 7), 20, 6)
    parsed(GOLDEN).check(swapped, 6, 8)


@pytest.mark.parametrize(("start", "stop"), [(5, 7), (7, 9), (6, 7), (6, 9), (0, 2)])
def test_other_positions_are_refused(start: int, stop: int) -> None:
    with pytest.raises(StateRejected, match="other positions"):
        parsed(GOLDEN).check(GOLDEN, start, stop)


@pytest.mark.parametrize("bad", [b"", GOLDEN[:-1], GOLDEN + b"\0", GOLDEN * 2])
def test_another_length_is_refused(bad: bytes) -> None:
    with pytest.raises(StateRejected, match=f"of {len(bad)} bytes, not {len(GOLDEN)}"):
        parsed(GOLDEN).check(bad, 6, 8)


@pytest.mark.parametrize("cells", [1, 2, 5])
@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_4, GOLDEN_TRANSPOSED])
def test_the_layout_of_other_cells(golden: bytes, cells: int) -> None:
    """The same as if it had been read from a section of so many cells."""
    layout = parsed(golden)
    scaled = bytearray(golden[:8]) + b"".join(
        struct.pack("<iII", 6 + n, 1, 0) for n in range(cells)
    )
    struct.pack_into("<I", scaled, 4, cells)
    at = 8 + 2 * 12
    for offset, size in layout.data:
        scaled += golden[at:offset] + bytes(size // 2 * cells)
        at = offset + size
    assert layout.of(cells) == parsed(bytes(scaled))
    layout.of(cells).check(bytes(scaled), 6, 6 + cells)
    with pytest.raises(StateRejected):
        layout.of(cells + 1).check(bytes(scaled), 6, 6 + cells)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_4, GOLDEN_TRANSPOSED])
def test_zeroed_rows_keep_their_heads(golden: bytes) -> None:
    layout = parsed(golden)
    zeroed = layout.zeroed(golden)
    layout.check(zeroed, 6, 8)
    assert parsed(bytes(zeroed)) == layout
    changed = [at for at, (old, new) in enumerate(zip(golden, zeroed, strict=True)) if old != new]
    assert changed == [at for start, size in layout.data for at in range(start, start + size)]
    assert not any(zeroed[at] for at in changed)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_4, GOLDEN_TRANSPOSED])
def test_a_placeholder_is_renumbered_for_every_use(golden: bytes) -> None:
    layout = parsed(golden)
    placeholder = Placeholder(layout, golden)
    for start, cells in ((0, 2), (100, 6), (6, 2), (7, 1), (3, 6)):
        blob = placeholder.blob(b"12345678", start, cells)
        assert blob[:16] == b"12345678" + NO_CELLS
        section = blob[16:]
        assert parsed(section) == layout.of(cells)
        layout.of(cells).check(section, start, start + cells)
        for at, size in layout.of(cells).data:
            assert not any(section[at : at + size])
    assert placeholder.blob(b"12345678", 6, 2)[16:] == layout.zeroed(golden)
    assert golden.find(b"\xa0\xa1") > 0, "the section that it was made from is untouched"


def test_a_placeholder_with_m_rope_keeps_the_other_words() -> None:
    layout = parsed(GOLDEN_MULTI, 3)
    section = Placeholder(layout, GOLDEN_MULTI).blob(b"12345678", 50, 2)[16:]
    assert layout.positions(section).tolist() == [50, 51]
    assert section[12:32] == GOLDEN_MULTI[12:32]


def test_the_rows_of_a_placeholder_take_no_memory() -> None:
    section = GOLDEN[:40] + b"".join(
        struct.pack("<iQ", 1, 1 << 20) + bytes(2 << 20) for _ in range(2)
    )
    blob = Placeholder(parsed(section), section).blob(b"12345678", 0, 16)
    rows = memoryview(blob)[1 << 20 : 15 << 20]
    before = resident_bytes()
    assert not any(rows[at] for at in range(0, len(rows), 512))
    assert resident_bytes() - before < 1 << 20


def resident_bytes() -> int:
    """What this process takes; the kernel's page of zeros does not count."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


def joined(layout: KVLayout, *sections: Buffer) -> bytes:
    out = np.full(len(sections) * layout.size, 0xEE, np.uint8)
    return bytes(out[: layout.join(sections, out)])


@pytest.mark.parametrize(("golden", "extra"), [(GOLDEN, 0), (GOLDEN_4, 0), (GOLDEN_MULTI, 3)])
def test_joined_sections_are_one_with_all_their_cells(golden: bytes, extra: int) -> None:
    layout = parsed(golden, extra)
    later = patched(golden, 8, 8)
    later = patched(later, 8 + layout.cell_bytes, 9)
    rows = layout.data[0][0]
    later = later[:rows] + bytes.fromhex("e0e1e2e3 f0f1f2f3") + later[rows + 8 :]
    section = joined(layout, golden, memoryview(later))
    assert parsed(section, extra) == layout.of(4)
    layout.of(4).check(section, 6, 10)
    k, v = (section[at : at + size].hex(" ") for at, size in layout.of(4).data)
    assert k == bytes.fromhex("a0a1a2a3 b0b1b2b3 e0e1e2e3 f0f1f2f3").hex(" ")
    assert v == bytes.fromhex("c0c1 d0d1 c0c1 d0d1").hex(" ")
    assert layout.split(section, 2) == [golden, later]
    assert layout.of(4).in_order(section, 6)
    assert not layout.of(4).in_order(section, 7)
    assert not layout.of(4).in_order(joined(layout, later, golden), 6)
    assert joined(layout, later) == later


# Recurrent sections.


def test_a_recurrent_section() -> None:
    layout = parse_recurrent(RECURRENT)
    assert layout is not None
    assert layout.size == len(RECURRENT)
    assert [RECURRENT[at : at + size].hex() for at, size in layout.data] == ["a0a1a2a3", "b0b1"]
    assert layout.empty.hex() == (
        "00000000" + "00000000" + "02000000" + "00000000" + "0400000000000000" + "00000000"
        "0200000000000000"
    )
    layout.check(RECURRENT, 63)
    zeroed = layout.zeroed(RECURRENT)
    layout.check(zeroed, 63)
    assert bytes(zeroed).hex() == RECURRENT.hex().replace("a0a1a2a3", "0" * 8).replace(
        "b0b1", "0" * 4
    )


@pytest.mark.parametrize(
    ("bad", "position", "message"),
    [
        (RECURRENT[:-1], 63, "37 bytes, not|bytes, not"),
        (RECURRENT + b"\0", 63, "bytes, not"),
        (b"", 63, "0 bytes, not"),
        (RECURRENT, 62, "another position"),
        (RECURRENT, 64, "another position"),
        (patched(RECURRENT, 0, 0), 63, "another position"),
        (patched(RECURRENT, 0, 2), 63, "another position"),
    ],
)
def test_another_recurrent_state_is_refused(bad: bytes, position: int, message: str) -> None:
    layout = parse_recurrent(RECURRENT)
    assert layout is not None
    with pytest.raises(StateRejected, match=message):
        layout.check(bad, position)


def test_other_bytes_are_no_recurrent_layout() -> None:
    record = 12 + 4
    for cut in range(len(RECURRENT)):
        if cut not in (20, 20 + record):  # there a record ends: its length says nothing
            assert parse_recurrent(RECURRENT[:cut]) is None, cut
    assert parse_recurrent(RECURRENT + b"\0") is None
    assert parse_recurrent(patched(RECURRENT, 0, 2)) is None
    assert parse_recurrent(patched(RECURRENT, 8, 1)) is None
    assert parse_recurrent(patched(RECURRENT, 16, 5000)) is None
    assert parse_recurrent(patched(RECURRENT, 24, 0xFFFFFFFF)) is None


# What a context's state is made of.


def read(blob: bytes, second: int, **changes: object) -> LlamaState:
    options = {
        "recurrent": False,
        "hybrid": False,
        "extra_words": 0,
        "window_tokens": 0,
        "block_tokens": 2,
    }
    return LlamaState.read(blob, second, **options | changes)  # type: ignore[arg-type]


def test_plain_state() -> None:
    state = read(header(1) + GOLDEN_4, 8)
    assert (state.problem, state.window, state.recurrent) == ("", None, None)
    assert (state.state_format, state.rotation, state.v_trans) == (4, (0x40, 0x80), False)
    assert state.geometry(2, 8).parts == (Part.KV,)
    assert read(header(1) + GOLDEN_TRANSPOSED, 8).v_trans


def test_window_state() -> None:
    state = read(header(1) + GOLDEN + GOLDEN, 8 + len(GOLDEN), window_tokens=3)
    assert state.blank is not None
    geometry = state.geometry(2, 8)
    assert (geometry.window_blocks, geometry.has_boundary) == (2, False)
    assert set(geometry.parts) == {Part.KV, Part.WINDOW}


def test_hybrid_state_has_boundaries_no_larger_than_the_blocks_between() -> None:
    state = read(header(1) + GOLDEN + RECURRENT, 8 + len(RECURRENT), hybrid=True)
    assert state.recurrent is not None
    assert state.geometry(2, 8).boundary_stride == 4, "at a call's end"
    assert state.geometry(2, 2).boundary_stride == -(-len(RECURRENT) // len(GOLDEN)) == 1
    large = read(header(1) + GOLDEN + RECURRENT, 8 + len(RECURRENT), hybrid=True)
    assert large.geometry(2, 6).boundary_stride == 3


def test_recurrent_state() -> None:
    blob = header(1) + RECURRENT
    state = read(blob, len(blob), recurrent=True)
    assert (state.state_format, state.rotation, state.v_trans) == (0, (0, 0), False)
    geometry = state.geometry(2, 8)
    assert (geometry.has_kv, geometry.has_boundary, geometry.boundary_stride) == (False, True, 32)


BAD = GOLDEN[:-1]


@pytest.mark.parametrize(
    ("blob", "second", "changes"),
    [
        (BAD, 8, {}),
        (GOLDEN, 8, {"block_tokens": 4}),
        (RECURRENT[:-1], 7 + len(RECURRENT), {"recurrent": True}),
        (GOLDEN + RECURRENT[:-1], 7 + len(RECURRENT), {"hybrid": True}),
        (GOLDEN + BAD, 8 + len(BAD), {"window_tokens": 3}),
        (GOLDEN + GOLDEN, 8 + len(GOLDEN), {"window_tokens": 0}),
        (b"", 8, {}),
    ],
    ids=["kv", "cells", "recurrent", "hybrid", "window", "a window of nothing", "nothing"],
)
def test_what_is_not_known_is_a_problem_and_nothing_else(
    blob: bytes, second: int, changes: dict[str, object]
) -> None:
    state = read(header(1) + blob, second, **changes)
    assert "does not know" in state.problem
    assert state.geometry(2, 8).parts == ()


def test_spoilt_state_is_the_same_with_zero_rows() -> None:
    state = read(header(1) + GOLDEN + RECURRENT, 8 + len(RECURRENT), hybrid=True)
    assert state.kv is not None
    assert state.recurrent is not None
    spoilt = state.spoiled({Part.KV: GOLDEN, Part.BOUNDARY: RECURRENT, Part.WINDOW: b"none"})
    assert spoilt == {
        Part.KV: state.kv.zeroed(GOLDEN),
        Part.BOUNDARY: state.recurrent.zeroed(RECURRENT),
    }
    assert np.frombuffer(spoilt[Part.KV], np.uint8).sum() < np.frombuffer(GOLDEN, np.uint8).sum()

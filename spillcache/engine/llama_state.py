"""What a llama.cpp context's state is made of, read once from one exported block."""

from collections.abc import Mapping
from dataclasses import dataclass

from spillcache.engine.llama_sections import (
    HEADER_BYTES,
    NO_CELLS,
    KVLayout,
    Placeholder,
    RecurrentLayout,
    parse_kv,
    parse_recurrent,
)
from spillcache.state import BlockState, Buffer, Geometry, Part

RECURRENT_STRIDE_BLOCKS = 32
"""Where there is no kv to compare with: a boundary every 2,048 tokens."""


@dataclass(frozen=True)
class LlamaState:
    """The layouts of a block's sections; ``problem`` says why state can't be moved, if so."""

    kv: KVLayout | None = None
    window: KVLayout | None = None
    recurrent: RecurrentLayout | None = None
    window_tokens: int = 0
    blank: Placeholder | None = None
    problem: str = ""

    @classmethod
    def read(
        cls,
        blob: bytes,
        second_bytes: int,
        *,
        recurrent: bool,
        hybrid: bool,
        extra_words: int,
        window_tokens: int,
        block_tokens: int,
    ) -> "LlamaState":
        """From the blob of one block and the size of its header and second section together."""
        split = HEADER_BYTES + len(blob) - second_bytes
        first, second = blob[HEADER_BYTES:split], blob[split:]
        if recurrent:
            layout = parse_recurrent(second)
            return cls(recurrent=layout) if layout else cls(problem=_UNKNOWN)
        kv = parse_kv(first, extra_words)
        if kv is None or kv.cells != block_tokens:
            return cls(problem=_UNKNOWN)
        if hybrid:
            layout = parse_recurrent(second)
            return cls(kv=kv, recurrent=layout) if layout else cls(problem=_UNKNOWN)
        if not second:
            return cls(kv=kv)
        window = parse_kv(second, extra_words)
        if window is None or window.cells != block_tokens or window_tokens <= 0:
            return cls(problem=_UNKNOWN)
        blank = Placeholder(window, second)
        return cls(kv=kv, window=window, window_tokens=window_tokens, blank=blank)

    @property
    def state_format(self) -> int:
        """llama.cpp's state version, as far as attention shows it; 0 without attention."""
        return self.kv.state_format if self.kv else 0

    @property
    def v_trans(self) -> bool:
        """Whether V is stored transposed (flash attention off)."""
        return bool(self.kv and self.kv.v_trans)

    @property
    def rotation(self) -> tuple[int, int]:
        """The rotations of quantised K and V that the state records, 0 where it records none."""
        return self.kv.rotation if self.kv else (0, 0)

    @property
    def nothing_more(self) -> bytes:
        """The second section of a blob that has nothing in it."""
        if self.recurrent is not None:
            return self.recurrent.empty
        return NO_CELLS if self.window is not None else b""

    def run_layout(self, cells: int) -> KVLayout | None:
        """Of the kv in a run of blocks with so many cells; None where there is no run: with
        transposed V each row would have to be split, and it is not to be larger than its blocks.
        """
        kv = self.kv
        if kv is None or (cells > kv.cells and self.v_trans):
            return None
        layout = kv.of(cells)
        most = cells // kv.cells * kv.size
        return layout if layout.size + len(self.nothing_more) <= most else None

    def geometry(self, block_tokens: int, call_tokens: int) -> Geometry:
        """What the tiers need to know; boundaries take at most as many bytes as the blocks between
        them.
        """
        stride = 0
        if self.recurrent is not None:
            call_blocks = call_tokens // block_tokens
            needed = -(-self.recurrent.size // self.kv.size) if self.kv else RECURRENT_STRIDE_BLOCKS
            stride = -(-needed // call_blocks) * call_blocks
        return Geometry(
            block_tokens=block_tokens,
            has_kv=self.kv is not None,
            window_blocks=-(-self.window_tokens // block_tokens),
            has_boundary=self.recurrent is not None,
            boundary_stride=stride,
        )

    @property
    def part_bytes(self) -> Mapping[Part, int]:
        """See Engine."""
        layouts: dict[Part, KVLayout | RecurrentLayout | None] = {
            Part.KV: self.kv,
            Part.WINDOW: self.window,
            Part.BOUNDARY: self.recurrent,
        }
        return {part: layout.size for part, layout in layouts.items() if layout is not None}

    def spoiled(self, state: BlockState) -> Mapping[Part, Buffer]:
        """The same block with zero rows: what the self-test imports to see that importing
        matters.
        """
        layouts: dict[Part, KVLayout | RecurrentLayout | None] = {
            Part.KV: self.kv,
            Part.WINDOW: self.window,
            Part.BOUNDARY: self.recurrent,
        }
        return {
            part: layout.zeroed(payload)
            for part, payload in state.items()
            if (layout := layouts[part]) is not None
        }


_UNKNOWN = "this llama.cpp library lays out state in a way that spillcache does not know"

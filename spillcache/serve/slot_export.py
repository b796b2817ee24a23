"""What a slot holds, on its way into a file."""

import logging
import time
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from spillcache.cache.policy import needed
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.config import format_size
from spillcache.engine.base import Engine
from spillcache.errors import SlotFileError, SlotFileIOError, StateRejected
from spillcache.serve.errands import Errands, GoOn
from spillcache.state import BlockState, Buffer, Part
from spillcache.store.buffers import BufferPool
from spillcache.store.slot_folder import SlotFolder
from spillcache.store.slot_format import RUN_BYTES_MAX, file_bytes_max, record_bytes_max
from spillcache.store.slot_writer import Piece, SlotFileWriter
from spillcache.store.steps import Step, Steps

log = logging.getLogger("spillcache.serve")

RECENT_BLOCKS = 64
"""Windows of so many blocks before the end are kept, so that a rewritten history finds them."""
BOUNDARIES = 4
"""And so many boundaries, of those that RAM has."""
PIECES = 3
"""One is filled, one digested, one written."""
_SAY_S = 5.0
_WRITING = "the slot file was written; what had that name before is as it was"
_FLUSHING = "the slot file was flushed; what had that name before is as it was"
_RENAMING = "the slot file was given its name; what has that name is whole, the new or the old one"
_SETTLING = "the folder was flushed; the file has its name, and may lose it if the power fails now"


class SlotExport:
    """One save of one slot, which is taken. On the action's thread."""

    def __init__(
        self,
        engine: Engine,
        index: int,
        chain: Chain,
        errands: Errands,
        *,
        cache: PrefixCache | None,
        pool: BufferPool,
    ) -> None:
        """``chain``: what the slot holds; nobody changes it meanwhile."""
        self._engine = engine
        self._index = index
        self._chain = chain
        self._errands = errands
        self._cache = cache
        self._pool = pool
        self._count = -(-len(chain) // chain.block_tokens)
        """Blocks, the tail among them."""
        self._recent = max(RECENT_BLOCKS, engine.geometry.window_blocks)
        sizes = engine.part_bytes.values()
        self._record_max = sum(record_bytes_max(size, chain.block_tokens) for size in sizes)
        """The most that one block takes in the file."""
        self._piece_bytes = self._record_max
        blocks, geometry = chain.blocks, engine.geometry
        others = (b for b in range(blocks) if needed(geometry, b, blocks) != (Part.KV,))
        self._plain = next(others, blocks)
        """The first block of which a restore needs something else than its kv."""
        self._runs_to = 0
        """The kv of the blocks before that is in the file."""
        self._boundaries: dict[int, BlockState] = {}
        self._pieces: deque[tuple[Piece, Step[None]]] = deque()
        """Those that are being written."""
        self._made: list[Piece] = []
        self._said = time.monotonic()

    def save(self, folder: SlotFolder, path: Path, flags: int) -> int:
        """Write the file and give it its name: its bytes. Raises a SlotFileError."""
        files, disk = folder.files(), folder.steps()
        writer = SlotFileWriter(files, path, self._chain, flags, folder.cipher)
        done = False
        try:
            most = self._bytes_max()
            disk.do(lambda: folder.check_target(path), "looking for the name")
            disk.do(lambda: folder.check_room(files, most), "looking for room")
            disk.do(writer.begin, _WRITING)
            self._write(writer, disk, most)
            size = disk.do(writer.flush, _FLUSHING)
            disk.do(writer.publish, _RENAMING)
            self._settle(writer, disk)
            done = True
        finally:
            # Where a call hangs, the temporary file goes when that is back.
            disk.close(writer.abandon, wait=not done)
        return size

    def _bytes_max(self) -> int:
        counts = {
            Part.KV: self._count,
            Part.WINDOW: min(self._count, self._recent),
            Part.BOUNDARY: min(self._count, BOUNDARIES + 1),
        }
        geometry = self._engine.geometry
        parts = {part: count for part, count in counts.items() if part in geometry.parts}
        return file_bytes_max(len(self._chain), geometry, self._engine.part_bytes, parts)

    def _settle(self, writer: SlotFileWriter, disk: Steps) -> None:
        try:
            disk.do(writer.settle, _SETTLING)
        except SlotFileError as error:
            error.published = True
            raise

    def _write(self, writer: SlotFileWriter, disk: Steps, most: int) -> None:
        """Everything but the header: the engine fills a piece while another is digested, and a
        third written.
        """
        self._find_boundaries()
        self._piece_bytes = max(self._record_max, writer.front_bytes)
        block, piece = 0, self._free_piece()
        writer.add_front(piece)
        filling = self._fill(writer, piece, block)
        try:
            while True:
                block = filling.result()
                last = block == self._count
                if not last and piece.fits(self._record_max):
                    filling = self._fill(writer, piece, block)
                    continue
                full = piece
                if not last:
                    piece = self._free_piece()
                    filling = self._fill(writer, piece, block)
                writer.seal(full)
                self._pieces.append(self._begin(writer, disk, full))
                self._say(writer.size, most)
                if last:
                    break
        finally:
            filling.exception()  # the engine's thread is done with the piece, and with the slot
            for each in self._made:
                each.holds.close()
        while self._pieces:
            self._pieces.popleft()[1].wait()
        for each in self._made:  # where a write hangs, or failed, they are not given back
            self._pool.give(each.buffer)

    def _begin(self, writer: SlotFileWriter, disk: Steps, piece: Piece) -> tuple[Piece, Step[None]]:
        return piece, disk.begin(lambda: writer.write(piece), _WRITING)

    def _free_piece(self) -> Piece:
        """A new one, or the oldest, once it is written."""
        if len(self._made) < PIECES:
            self._made.append(Piece(self._piece_bytes, self._pool))
            return self._made[-1]
        piece, step = self._pieces.popleft()
        step.wait()
        piece.clear()
        return piece

    def _say(self, done: int, most: int) -> None:
        if time.monotonic() - self._said > _SAY_S:
            self._said = time.monotonic()
            log.info(
                "slot %d: saving, %s of at most %s", self._index, format_size(done),
                format_size(most),
            )  # fmt: skip

    # The engine's thread.

    def _fill(self, writer: SlotFileWriter, piece: Piece, block: int) -> "Future[int]":
        """Have blocks from ``block`` on exported into ``piece``: the next one."""
        return self._errands.move(partial(self._export_some, writer, piece, block))

    def _export_some(self, writer: SlotFileWriter, piece: Piece, block: int, go_on: GoOn) -> int:
        try:
            while block < self._count and piece.fits(self._record_max):
                if not self._export_run(writer, piece, block):
                    self._export_one(writer, piece, block)
                    block += 1
                if not go_on():
                    break
        except StateRejected as error:
            raise SlotFileIOError(
                f"the engine gave no state of the slot: {error}; no file was changed"
            ) from error
        return block

    def _export_run(self, writer: SlotFileWriter, piece: Piece, block: int) -> bool:
        """Put the kv of a run of blocks into ``piece``, if they are those of which a restore needs
        nothing else; what there is of them besides comes after it, block by block.
        """
        size = self._engine.part_bytes.get(Part.KV, 0)
        if block < self._runs_to or block >= self._plain or not size:
            return False
        most = min(RUN_BYTES_MAX, piece.room_bytes - record_bytes_max(0, 0)) // size
        count = max(1, min(most, self._plain - block))
        fill = partial(self._engine.export_run, self._index, block, count)
        if writer.add_run(piece, block, count, fill):
            self._runs_to = block + count
            return True
        self._plain = block  # windows or recurrent state would come along: none of the rest fits
        return False

    def _export_one(self, writer: SlotFileWriter, piece: Piece, block: int) -> None:
        """Put what goes into the file of a block into ``piece``, but for what a run has."""
        held = piece.holds.enter_context(self._held(block))
        for part, payload in sorted(self._export(block, held).items()):
            # What RAM has is copied beside the engine's work, and beside the digests.
            writer.add(piece, block, part, payload, later=payload is held.get(part))

    def _export(self, block: int, held: BlockState) -> BlockState:
        """What goes into the file of a block; ``held``: what RAM has of it."""
        last, geometry = block == self._count - 1, self._engine.geometry
        state: dict[Part, Buffer] = {}
        if block >= self._runs_to and (last or geometry.has_kv):
            state.update(self._engine.export(self._index, block, boundary=last))
        state.update(self._boundaries.get(block, {}))
        if block < self._count - self._recent:
            state.pop(Part.WINDOW, None)
        elif geometry.window_blocks and Part.WINDOW in held:
            state.setdefault(Part.WINDOW, held[Part.WINDOW])
        return state

    # What RAM has beside.

    def _held(self, block: int) -> AbstractContextManager[BlockState]:
        if self._cache is None or block >= self._chain.blocks:
            return nullcontext({})
        return self._cache.held(self._chain, block)

    def _find_boundaries(self) -> None:
        """The latest ones before the end: the engine has none but the last."""
        if not self._engine.geometry.has_boundary:
            return
        for block in reversed(range(min(self._chain.blocks, self._count - 1))):
            with self._held(block) as held:
                if Part.BOUNDARY in held:
                    self._boundaries[block] = {Part.BOUNDARY: bytes(held[Part.BOUNDARY])}
            if len(self._boundaries) == BOUNDARIES:
                return

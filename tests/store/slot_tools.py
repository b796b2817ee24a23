"""Slot files without an engine: a conversation of made-up state."""

import contextlib
from pathlib import Path

import numpy as np

from spillcache.chain import Chain
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.cipher import Cipher
from spillcache.store.files import Files
from spillcache.store.slot_reader import SlotFileReader
from spillcache.store.slot_state import SlotState
from spillcache.store.slot_writer import Piece, SlotFileWriter
from spillcache.store.steps import Steps

NAMESPACE = Namespace.of({"library": "1", "type_k": "f16"})
SIZE = 16
PART_BYTES = {Part.KV: 5000, Part.BOUNDARY: 300}
BLOCK_BYTES = 16384
"""The most that one takes in a file."""
State = list[dict[Part, bytes]]


def conversation(tokens: int, salt: bytes = b"", namespace: Namespace = NAMESPACE) -> Chain:
    return Chain(namespace, SIZE, np.arange(tokens, dtype=np.uint32) + 7, salt)


def state_of(chain: Chain) -> State:
    """KV of every block and the tail, and a boundary of every other one."""
    rng = np.random.default_rng(len(chain))
    count = -(-len(chain) // SIZE)
    return [
        {Part.KV: rng.bytes(5000)} | ({Part.BOUNDARY: rng.bytes(300)} if block % 2 else {})
        for block in range(count)
    ]


def write(path: Path, chain: Chain, state: State, **options: object) -> int:
    """Save it as an action would: the file's bytes."""
    writer = writer_of(path, chain, **options)  # type: ignore[arg-type]
    try:
        writer.begin()
        writer.write(front_of(writer))
        piece = Piece(1)
        for block, parts in enumerate(state):
            if not piece.fits(BLOCK_BYTES):
                writer.seal(piece)
                writer.write(piece)
                piece.clear()
            for part, payload in sorted(parts.items()):
                writer.add(piece, block, part, payload)
        writer.seal(piece)
        writer.write(piece)
        size = writer.flush()
        writer.publish()
        writer.settle()
    finally:
        writer.abandon()
    return size


def front_of(writer: SlotFileWriter) -> Piece:
    """The first piece, sealed."""
    piece = Piece(writer.front_bytes)
    writer.add_front(piece)
    writer.seal(piece)
    return piece


def writer_of(
    path: Path,
    chain: Chain,
    *,
    flags: int = 0,
    cipher: Cipher | None = None,
    files: Files | None = None,
) -> SlotFileWriter:
    return SlotFileWriter(files or Files(), path, chain, flags, cipher)


def read(path: Path, cipher: Cipher | None = None, files: Files | None = None) -> SlotState:
    with SlotFileReader(files or Files(), path, Steps, cipher) as file:
        return load(file)


def load(file: SlotFileReader) -> SlotState:
    """And read and verify all of it, once."""
    found = file.state(PART_BYTES, AlignedBuffer(file.memory_bytes(PART_BYTES)))
    for _ in found.runs():
        pass
    return found


def plain(state: SlotState) -> State:
    """What its file, which is still open, says of each block."""
    found: State = [{} for _ in range(state.blocks)]
    for run in state.runs():
        for record in run:
            assert record.blocks == 1
            found[record.block][record.part] = bytes(record.payload)
    return found


def read_plain(path: Path, cipher: Cipher | None = None, files: Files | None = None) -> State:
    with SlotFileReader(files or Files(), path, Steps, cipher) as file:
        return plain(load(file))


class Fails(Files):
    """Fails, or waits, in one call."""

    def __init__(self, name: str, error: OSError | None = None, wait: object = None) -> None:
        super().__init__()

        def fail(*_: object, **__: object) -> None:
            if wait is not None:
                wait()  # type: ignore[operator]
            if error is not None:
                raise error

        setattr(self, name, fail)


def names(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(each.name for each in path.iterdir())
    return []

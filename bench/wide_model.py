"""A synthetic model with as much KV per token as an 8B model has, and long conversations of it.

A random llama with 128 KiB of f16 KV per token, as Llama 3 8B has, but 67 million weights, so
that one thread decodes a token in about as long as eight threads need for a real one. Its state is
not computed, which would take minutes: one block is, and the others are copies of it at other
positions. Nothing is answered from it that anybody reads.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spillcache.chain import Chain
from spillcache.engine.base import Chunk, Tokens
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import StoreObject

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from models import write_model

WIDE: dict[str, Any] = {
    "n_embd": 512,
    "n_layer": 8,
    "n_head": 32,
    "n_head_kv": 32,
    "head_dim": 128,
    "n_ff": 512,
}
NARROW: dict[str, Any] = {"n_layer": 4, "n_head_kv": 4, "head_dim": 64}
"""For a quick look: 4 KiB per token."""
VOCABULARY = 512


def write_wide_model(path: Path, *, quick: bool) -> None:
    """Write the model; 130 MB, or little when ``quick``."""
    write_model(path, "llama", n_vocab=VOCABULARY, **(NARROW if quick else WIDE))


def random_tokens(count: int, seed: int) -> Tokens:
    """A prompt of that many tokens that no other seed has."""
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, count)
    return ids.astype(np.uint32)


@dataclass(frozen=True)
class Conversation:
    """A prompt of whole blocks and one token, and the state of its blocks."""

    chain: Chain
    kv: "np.ndarray[Any, np.dtype[np.uint8]]"
    """One block's payload, at position 0."""
    positions: "np.ndarray[Any, np.dtype[np.int32]]"
    """A view into ``kv``: the positions of its cells."""

    @property
    def size_bytes(self) -> int:
        return self.chain.blocks * self.kv.size

    def payload(self, block: int) -> memoryview:
        """The state of a block; valid until the next call."""
        start = block * len(self.positions)
        self.positions[:] = np.arange(start, start + len(self.positions))
        return memoryview(self.kv.data)

    def objects(self) -> Iterator[StoreObject]:
        """All blocks as the store wants them; each is valid until the next."""
        chain, size = self.chain, len(self.positions)
        for block in range(chain.blocks):
            yield StoreObject(
                chain.hashes[block],
                Part.KV,
                chain.parent(block),
                block,
                size,
                bytes(self.payload(block)),
                rank=0,
            )


class Conversations:
    """Makes conversations of one engine; call it while the engine is idle."""

    def __init__(self, engine: LlamaEngine, namespace: Namespace) -> None:
        self._namespace = namespace
        self._block = engine.geometry.block_tokens
        engine.decode([Chunk(0, random_tokens(self._block, seed=0))])
        self._payload = bytes(engine.export(0, 0)[Part.KV])
        engine.clear(0)
        layout = engine._state.kv
        assert layout is not None
        self._layout = layout

    def make(self, size_bytes: int, seed: int) -> Conversation:
        """One of about that many bytes of state."""
        blocks = max(1, round(size_bytes / len(self._payload)))
        tokens = random_tokens(blocks * self._block + 1, seed)
        kv = np.frombuffer(bytearray(self._payload), np.uint8)
        chain = Chain(self._namespace, self._block, tokens)
        return Conversation(chain, kv, self._layout.positions(memoryview(kv.data)))

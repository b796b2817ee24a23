"""Names of token blocks: a hash chained over everything before them (docs/format.md).

    root    = blake3.derive_key("spillcache v1 chain root", namespace_digest ‖ salt)
    hash_i  = blake3(hash_{i-1} ‖ tokens as u32 little-endian ‖ len(extra_i) as u32 ‖ extra_i)

The hash of block i answers "the state after exactly these tokens, in exactly this setting". Pure
functions: any thread.
"""

from collections.abc import Mapping, Sequence
from typing import NewType

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

BlockHash = NewType("BlockHash", bytes)
"""32 bytes; a type of its own, so that it can't be confused with another digest."""

HASH_BYTES = 32
ROOT_CONTEXT = "spillcache v1 chain root"


def chain_root(namespace_digest: bytes, salt: bytes = b"") -> BlockHash:
    """The hash before the first block: a namespace (32-byte digest) and a tenant's salt, if any."""
    if len(namespace_digest) != HASH_BYTES:
        raise ValueError(f"a namespace digest has {HASH_BYTES} bytes, not {len(namespace_digest)}")
    return BlockHash(blake3(namespace_digest + salt, derive_key_context=ROOT_CONTEXT).digest())


def block_hash(parent: BlockHash, tokens: NDArray[np.uint32], extra: bytes = b"") -> BlockHash:
    """The hash of the block that holds ``tokens`` after ``parent``.

    ``extra``: digests of media in the block.
    """
    data = tokens.astype("<u4", copy=False).tobytes()
    return BlockHash(blake3(parent + data + len(extra).to_bytes(4, "little") + extra).digest())


def chain_hashes(
    root: BlockHash,
    tokens: Sequence[int] | NDArray[np.integer],
    block_tokens: int,
    extras: Mapping[int, bytes] | None = None,
) -> list[BlockHash]:
    """The chain of all *whole* blocks in ``tokens``; the tail has none.

    That is ``len(tokens) // block_tokens`` hashes. ``extras`` maps a block's index to the digests
    of media in it. Raises ValueError for token ids outside u32.
    """
    ids = as_tokens(tokens)
    whole = ids[: len(ids) // block_tokens * block_tokens].astype("<u4", copy=False).tobytes()
    width = 4 * block_tokens
    out: list[BlockHash] = []
    parent = root
    for index, start in enumerate(range(0, len(whole), width)):
        extra = extras.get(index, b"") if extras else b""
        suffix = len(extra).to_bytes(4, "little") + extra
        parent = BlockHash(blake3(parent + whole[start : start + width] + suffix).digest())
        out.append(parent)
    return out


def as_tokens(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint32]:
    """Token ids as a u32 array; raises ValueError for ids below zero or past u32."""
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() > 0xFFFFFFFF):
        raise ValueError("token ids must lie in 0 … 2^32 - 1")
    return ids.astype(np.uint32)

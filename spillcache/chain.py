"""Names of token blocks: a hash chained over everything before them (docs/format.md).

    root     = blake3.derive_key("spillcache v1 chain root", namespace_digest ‖ salt)
    digest_i = blake3(hash_{i-1} ‖ tokens as u32 little-endian ‖ len(extra_i) as u32 ‖ extra_i)
    hash_i   = digest_i                              where i is a multiple of 64
    hash_i   = hash_{i-1}[:4] ‖ digest_i[4:]         elsewhere

The hash of block i answers "the state after exactly these tokens, in exactly this setting". The
four bytes that neighbours share put them next to each other in an ordered index: a chain is found,
and named, in a few pages rather than in one per block. Pure functions: any thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NewType

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from spillcache.namespace import Namespace
from spillcache.state import Buffer

BlockHash = NewType("BlockHash", bytes)
"""32 bytes; a type of its own, so that it can't be confused with another digest."""

HASH_BYTES = 32
NEIGHBOURS = 64
"""So many blocks of a chain have names that begin alike."""
_SHARED_BYTES = 4
_TOKEN = np.dtype("<u4")
ROOT_CONTEXT = "spillcache v1 chain root"


@lru_cache(maxsize=256)
def chain_root(namespace_digest: bytes, salt: bytes = b"") -> BlockHash:
    """The hash before the first block: a namespace (32-byte digest) and a tenant's salt, if any."""
    if len(namespace_digest) != HASH_BYTES:
        raise ValueError(f"a namespace digest has {HASH_BYTES} bytes, not {len(namespace_digest)}")
    return BlockHash(blake3(namespace_digest + salt, derive_key_context=ROOT_CONTEXT).digest())


def block_hash(parent: BlockHash, tokens: NDArray[np.uint32]) -> BlockHash:
    """The name of a tail: of a last block's ``tokens``, too few for a whole one, after ``parent``,
    whose neighbour it is.
    """
    return _tail_hash(parent, tokens.astype(_TOKEN, copy=False).tobytes())


def _tail_hash(parent: BlockHash, tokens: Buffer) -> BlockHash:
    """As ``block_hash``; ``tokens``: u32 little-endian."""
    digest = blake3(parent + tokens + bytes(4)).digest()
    return BlockHash(parent[:_SHARED_BYTES] + digest[_SHARED_BYTES:])


def chain_hashes(
    parent: BlockHash,
    tokens: Sequence[int] | NDArray[np.integer],
    block_tokens: int,
    extras: Mapping[int, bytes] | None = None,
    *,
    first: int = 0,
) -> list[BlockHash]:
    """The names of all *whole* blocks in ``tokens``; the tail has none.

    That is ``len(tokens) // block_tokens`` hashes. ``parent``: the name before them, the root's or
    that of block ``first - 1``. ``extras`` maps a block's place in ``tokens`` to the digests of
    media in it. Raises ValueError for token ids outside u32.
    """
    ids = as_tokens(tokens)
    whole = ids[: len(ids) // block_tokens * block_tokens].astype(_TOKEN, copy=False).tobytes()
    width = 4 * block_tokens
    out: list[BlockHash] = []
    shared = parent[:_SHARED_BYTES]
    for index, start in enumerate(range(0, len(whole), width)):
        extra = extras.get(index, b"") if extras else b""
        suffix = len(extra).to_bytes(4, "little") + extra
        digest = blake3(parent + whole[start : start + width] + suffix).digest()
        if (first + index) % NEIGHBOURS == 0:
            shared = digest[:_SHARED_BYTES]
        parent = BlockHash(shared + digest[_SHARED_BYTES:])
        out.append(parent)
    return out


class Chain:
    """A growing list of tokens in one namespace, with the hashes of its whole blocks.

    Mutable and without a lock: its owner uses it on one thread. ``relatives``: chains that may
    begin with the same tokens; what they share is compared, which is quicker than hashing it again.
    """

    __slots__ = ("_buffer", "_length", "_tails", "block_tokens", "hashes", "namespace", "root")

    def __init__(
        self,
        namespace: Namespace,
        block_tokens: int,
        tokens: Sequence[int] | NDArray[np.integer] = (),
        salt: bytes = b"",
        relatives: Iterable["Chain"] = (),
    ) -> None:
        self.namespace = namespace
        self.block_tokens = block_tokens
        self.root = chain_root(namespace.digest, salt)
        self.hashes: list[BlockHash] = []
        self._tails: dict[tuple[int, int], BlockHash] = {}
        """By block and count, the tails that were named since the last token: each is asked for
        several times.
        """
        self._buffer = np.empty(max(256, len(tokens)), _TOKEN)
        self._length = 0
        self._append(as_tokens(tokens))
        for other in relatives:
            if other.root == self.root and other.block_tokens == block_tokens:
                shared = other.shared(self.tokens) // block_tokens
                if shared > len(self.hashes):
                    self.hashes = other.hashes[:shared]
        self._hash()

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """All tokens: a view that is valid until the chain changes."""
        return self._buffer[: self._length]

    @property
    def blocks(self) -> int:
        """How many whole blocks there are."""
        return len(self.hashes)

    def parent(self, block: int) -> BlockHash:
        """The hash before block ``block``: its predecessor's, or the root."""
        return self.hashes[block - 1] if block else self.root

    def tail(self, block: int, count: int) -> BlockHash:
        """The hash of the tail of ``count`` tokens that follow the first ``block`` blocks."""
        name = self._tails.get((block, count))
        if name is None:
            tokens = self.tail_tokens(block, count).tobytes()
            name = _tail_hash(self.parent(block), tokens)
            self._tails[block, count] = name
        return name

    def tail_tokens(self, block: int, count: int) -> NDArray[np.uint32]:
        """The up to ``count`` tokens that follow the first ``block`` blocks; as ``tokens``. In
        memory they are u32 little-endian.
        """
        start = block * self.block_tokens
        return self._buffer[start : min(start + count, self._length)]

    def hash_of(self, block: int) -> BlockHash:
        """The hash of block ``block``: of a whole one, or, after the last, of the chain's tail."""
        if block < len(self.hashes):
            return self.hashes[block]
        return self.tail(block, self.block_tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        """Append tokens; raises ValueError for ids outside u32."""
        self._append(as_tokens(tokens))
        self._hash()

    def push(self, token: int) -> None:
        """Append one token of the vocabulary.

        Between two decode calls the processor's caches are cold, and every numpy call costs ten
        times what it costs in a loop: so this does with one.
        """
        if self._length == len(self._buffer):
            self._grow(self._length + 1)
        self._buffer[self._length] = token
        self._length += 1
        if self._tails:
            self._tails = {}
        if not self._length % self.block_tokens:
            self._hash()

    def _append(self, ids: NDArray[np.uint32]) -> None:
        end = self._length + len(ids)
        if end > len(self._buffer):
            self._grow(end)
        self._buffer[self._length : end] = ids
        self._length, self._tails = end, {}

    def _grow(self, length: int) -> None:
        grown = np.empty(max(length, 2 * len(self._buffer)), _TOKEN)
        grown[: self._length] = self.tokens
        self._buffer = grown

    def _hash(self) -> None:
        """The hashes of the whole blocks that have none yet."""
        done = len(self.hashes)
        parent, rest = self.parent(done), self.tokens[done * self.block_tokens :]
        self.hashes += chain_hashes(parent, rest, self.block_tokens, first=done)

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        self._length, self._tails = min(length, self._length), {}
        del self.hashes[self._length // self.block_tokens :]

    def shared(self, tokens: NDArray[np.uint32]) -> int:
        """How many leading tokens are the same as those of ``tokens``."""
        count = min(self._length, len(tokens))
        mine, theirs = self._buffer[:count], tokens[:count]
        # As a rule all are; told by their bytes, that is quicker where the caches are cold.
        if mine.tobytes() == theirs.astype(_TOKEN, copy=False).tobytes():
            return count
        return int((mine != theirs).argmax())


def as_tokens(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint32]:
    """Token ids as a u32 array, the same one if it is one; raises ValueError for ids below zero or
    past u32.
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.uint32:
        return tokens.astype(np.uint32, copy=False)
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() > 0xFFFFFFFF):
        raise ValueError("token ids must lie in 0 … 2^32 - 1")
    return ids.astype(np.uint32)

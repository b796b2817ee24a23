"""What goes into a store and what is said about it."""

from dataclasses import dataclass

from spillcache.chain import BlockHash
from spillcache.namespace import Namespace
from spillcache.state import Buffer, Part


@dataclass(frozen=True, slots=True)
class StoreObject:
    """One part of one block, to be put; the payload is borrowed until ``put`` returns."""

    block: BlockHash
    part: Part
    parent: BlockHash
    """The hash before the block: the chain's root for its first block."""
    block_index: int
    token_count: int
    payload: Buffer
    """Contiguous bytes, opaque to the store."""
    rank: int = 0
    """0 … 255, given by the cache: objects of a higher rank are evicted before those of a lower
    one.
    """
    tail: bytes = b""
    """The tokens (u32 little-endian) of a partial last block; empty for a whole block.

    ``block`` is the hash of just these tokens after ``parent``. A tail's parts go together, and the
    store keeps only the most recent few tails of a parent.
    """
    outgrows: tuple[BlockHash, ...] = ()
    """Tails of the same parent that this block goes on from: they go when it is written."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of the objects of one ``put``; the first three sum up to their number."""

    written: int
    present: int
    """Already there: not written again."""
    dropped: int
    """The parent is gone, or there was no room."""
    written_bytes: int
    """Of the records, padding included."""
    dropped_blocks: frozenset[BlockHash] = frozenset()
    """Blocks of which an object was dropped."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace and what it has in the store; bytes are payload bytes."""

    namespace: Namespace
    objects: int
    blocks: int
    """Whole blocks with part KV."""
    raw_bytes: int
    """As the engine gave them."""
    stored_bytes: int
    """As they are on disk, headers and padding not counted."""
    parts: dict[Part, int]
    """Objects by part."""
    created: float
    """Unix time in seconds."""
    last_used: float
    """Unix time in seconds, of the last put or touch that was written."""
    tails: int = 0
    """Partial last blocks."""
    hidden_since: float | None = None
    """Unix time in seconds; None: it is not hidden."""
    reason: str = ""
    """Why it is hidden."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The space that a store takes. All sizes in bytes."""

    allocated_bytes: int
    """On the filesystem, everything in the directory."""
    quota_bytes: int
    min_free: int
    """What is always left to others on the filesystem."""
    free_bytes: int
    """What the filesystem could still give."""
    segments: int
    objects: int

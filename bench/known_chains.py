"""Chains of blocks whose every payload follows from a number, so that whoever reads them anywhere
knows what they must be.
"""

from collections.abc import Iterator

from blake3 import blake3

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.errors import CorruptBlock, ObjectMissing
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, Entry, StoreObject

BLOCK_TOKENS = 4
NAMESPACES = tuple(Namespace.of({"engine": "bench", "variant": n}) for n in range(2))


def namespace_of(seed: int) -> Namespace:
    return NAMESPACES[seed % len(NAMESPACES)]


def hashes_of(seed: int, blocks: int) -> tuple[BlockHash, list[BlockHash]]:
    """The root of a chain and the hashes of its blocks."""
    root = chain_root(namespace_of(seed).digest)
    tokens = [seed * 64 + n for n in range(BLOCK_TOKENS * blocks)]
    return root, chain_hashes(root, tokens, BLOCK_TOKENS)


def payload_of(seed: int, index: int, part: Part, most_bytes: int) -> bytes:
    """Up to ``most_bytes`` bytes; every other one can be compressed."""
    key = blake3(f"{seed} {index} {int(part)}".encode())
    size = most_bytes // 8 + int.from_bytes(key.digest(length=4), "little") % (most_bytes * 7 // 8)
    noise = size // 4 if (seed + index) % 2 else size
    return key.digest(length=noise).ljust(size, b"s")


def objects_of(
    seed: int, blocks: int, most_bytes: int, parts: tuple[Part, ...] = tuple(Part)
) -> list[StoreObject]:
    root, hashes = hashes_of(seed, blocks)
    return [
        StoreObject(
            block=block,
            part=part,
            parent=hashes[index - 1] if index else root,
            block_index=index,
            token_count=BLOCK_TOKENS,
            payload=payload_of(seed, index, part, most_bytes),
            rank=int(part),
        )
        for index, block in enumerate(hashes)
        for part in parts
    ]


def found_of(store: BlockStore, seed: int, wanted: list[StoreObject]) -> list[Entry]:
    """Those of ``wanted`` that the store says it has."""
    blocks = list(dict.fromkeys(item.block for item in wanted))
    found = store.find(namespace_of(seed).id, blocks, list(Part))
    by_key = {(e.block, e.part): e for at in found for e in at.values()}
    keys = ((item.block, item.part) for item in wanted)
    return [by_key[key] for key in keys if key in by_key]


def read_each(store: BlockStore, entries: list[Entry]) -> Iterator[tuple[Entry, bytes | None]]:
    """Every entry with its bytes; None for one that is damaged or went away. Other errors are
    raised.
    """
    at = 0
    while at < len(entries):
        try:
            for payload in store.read(entries[at:]):
                data = bytes(payload.view)
                payload.release()
                at += 1
                yield payload.entry, data
        except (CorruptBlock, ObjectMissing):
            at += 1
            yield entries[at - 1], None


def wrong_and_missing(
    store: BlockStore, seed: int, blocks: int, most_bytes: int
) -> tuple[int, set[tuple[BlockHash, Part]]]:
    """How many objects of a chain came back with other bytes, and which did not come back."""
    wanted = objects_of(seed, blocks, most_bytes)
    right = {(item.block, item.part): item.payload for item in wanted}
    missing, wrong = set(right), 0
    for entry, data in read_each(store, found_of(store, seed, wanted)):
        if data is not None:
            wrong += data != right[entry.block, entry.part]
            missing.discard((entry.block, entry.part))
    return wrong, missing

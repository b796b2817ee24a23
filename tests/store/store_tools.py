"""What the tests of the store share."""

from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.config import MIB, StoreConfig
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, Entry, StoreObject

NAMESPACE = Namespace.of({"engine": "test", "block_tokens": 4, "swa": False})
OTHER = Namespace.of({"engine": "test", "block_tokens": 4, "swa": True})


def config(path: Path, **changes) -> StoreConfig:
    return StoreConfig(path, **{"quota_bytes": 64 * MIB, "min_free_bytes": 0, **changes})


def payload(seed: object, size: int) -> bytes:
    return blake3(repr(seed).encode()).digest(length=size) if size else b""


def chain(
    seed: int, blocks: int, namespace: Namespace = NAMESPACE
) -> tuple[BlockHash, list[BlockHash]]:
    root = chain_root(namespace.digest)
    tokens = [seed * 1000 + n for n in range(4 * blocks)]
    return root, chain_hashes(root, tokens, 4)


def objects(
    seed: int,
    blocks: int,
    size: int = 3000,
    parts: Sequence[Part] = (Part.KV,),
    namespace: Namespace = NAMESPACE,
    ranks: dict[Part, int] | None = None,
) -> list[StoreObject]:
    root, hashes = chain(seed, blocks, namespace)
    return [
        StoreObject(
            block=block,
            part=part,
            parent=hashes[index - 1] if index else root,
            block_index=index,
            token_count=4,
            payload=payload((seed, index, part), size),
            rank=(ranks or {}).get(part, 0),
        )
        for index, block in enumerate(hashes)
        for part in parts
    ]


def entries(
    store: BlockStore, wanted: Sequence[StoreObject], namespace: Namespace = NAMESPACE
) -> list[Entry]:
    """Those of ``wanted`` that are there."""
    found = store.find(namespace.id, [item.block for item in wanted], list(Part))
    return [at[item.part] for item, at in zip(wanted, found, strict=True) if item.part in at]


def read_all(store: BlockStore, wanted: Sequence[Entry]) -> list[bytes]:
    out = []
    for item in store.read(wanted):
        out.append(bytes(item.view))
        item.release()
    return out


def check_all(store: BlockStore, wanted: Sequence[StoreObject]) -> None:
    """All of ``wanted`` are there, byte for byte."""
    found = entries(store, wanted)
    assert [(e.block, e.part) for e in found] == [(o.block, o.part) for o in wanted]
    assert read_all(store, found) == [bytes(o.payload) for o in wanted]


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "segments").iterdir())


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    """Change one bit of one byte."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes((old[0] ^ 0x10,)))

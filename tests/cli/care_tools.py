"""A filled store for the tests of the commands that care for one."""

import random
from pathlib import Path

from spillcache.chain import BlockHash, chain_hashes, chain_root
from spillcache.config import StoreConfig
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject

RED = Namespace.of({"engine": "test", "model_0": bytes(range(32)), "tag": "[red]", "flash": True})
BLUE = Namespace.of({"engine": "test", "tag": "blue"})
QUOTA = 1 << 30
RECORD = f"{1:020d}-{'0' * 16}-{'0' * 16}-kv-1-4096-why.rec"
"""The name of a record in quarantine."""


def config(directory: Path, **changes: object) -> StoreConfig:
    return StoreConfig(directory, **{"quota_bytes": QUOTA, "min_free_bytes": 0, **changes})  # type: ignore[arg-type]


def hashes(namespace: Namespace, blocks: int) -> list[BlockHash]:
    return chain_hashes(chain_root(namespace.digest), range(64 * blocks), 64)


def put(
    store: BlockStore,
    namespace: Namespace,
    blocks: int,
    parts: tuple[Part, ...] = (Part.KV,),
    size: int = 1000,
    *,
    noise: bool = False,
) -> None:
    parent = chain_root(namespace.digest)
    objects = []
    for index, block in enumerate(hashes(namespace, blocks)):
        payload = random.Random(index).randbytes(size) if noise else bytes(size)
        objects += [StoreObject(block, part, parent, index, 64, payload=payload) for part in parts]
        parent = block
    assert store.put(namespace, objects).written == len(objects)


def blocks_of(store: BlockStore, namespace: Namespace, blocks: int = 64) -> int:
    """How many of the chain's blocks are found."""
    found = store.find(namespace.id, hashes(namespace, blocks), [Part.KV])
    return sum(Part.KV in each for each in found)

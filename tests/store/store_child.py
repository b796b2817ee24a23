"""A process that uses a store, for tests that kill it or run it beside others.

    python store_child.py MODE DIR SEED COUNT

``put``: put COUNT chains and print a line after each, when it is durable. ``hold``: the same, then
wait for ever. ``dirty``: append records that are never committed, print, and wait. ``churn``: put
COUNT chains, and check what is read back. ``late``: find a chain of COUNT blocks, wait for a line,
then read it.
"""

import sys
import time
from pathlib import Path

from store_tools import NAMESPACE, OTHER, config, entries, objects, read_all

from spillcache.errors import ObjectMissing, StoreError
from spillcache.state import Part
from spillcache.store.block_store import BlockStore
from spillcache.store.rows import object_key

BLOCKS, SIZE = 6, 60_000


def say(word: object) -> None:
    print(word, flush=True)


def put(store: BlockStore, seed: int, count: int) -> None:
    for each in range(seed, seed + count):
        store.put(NAMESPACE, objects(each, BLOCKS, SIZE, (Part.KV, Part.WINDOW)))
        say(each)


def hold(store: BlockStore, seed: int, count: int) -> None:
    put(store, seed, count)
    time.sleep(600)


def dirty(store: BlockStore, seed: int, count: int) -> None:
    put(store, seed, 1)
    writer = store._opened.writer
    wanted = objects(seed + 1, count, SIZE)
    records = [
        writer._encode(object_key(NAMESPACE.id, item.block, item.part), item).pieces()
        for item in wanted
    ]
    staging, _ = writer._appender.write(records, count * SIZE)
    staging.finish()
    store._opened.room.reserve(writer._appender.begin(), 1 << 20, 1, lambda _: False)
    say("appended")
    time.sleep(600)


def churn(store: BlockStore, seed: int, count: int) -> None:
    namespace = NAMESPACE if seed % 2 else OTHER
    misses = 0
    for each in range(seed, seed + count):
        wanted = objects(each, BLOCKS, SIZE, (Part.KV, Part.WINDOW), namespace)
        store.put(namespace, wanted)
        found = entries(store, wanted, namespace)
        expected = {(o.block, o.part): o.payload for o in wanted}
        try:
            for entry, data in zip(found, read_all(store, found), strict=True):
                assert data == expected[entry.block, entry.part]
        except ObjectMissing:
            misses += 1
    say(f"done {misses}")


def late(store: BlockStore, seed: int, count: int) -> None:
    """Find, wait for a line, read: what comes of each object."""
    wanted = objects(seed, count, SIZE, (Part.KV, Part.WINDOW))
    found = entries(store, wanted)
    say(f"found {len(found)}")
    sys.stdin.readline()
    right = {(o.block, o.part): o.payload for o in wanted}
    for entry in reversed(found):
        try:
            (data,) = read_all(store, [entry])
        except StoreError as error:
            say(type(error).__name__)
        else:
            say("right" if data == right[entry.block, entry.part] else "wrong")


MODES = {"late": late, "put": put, "hold": hold, "dirty": dirty, "churn": churn}

if __name__ == "__main__":
    with BlockStore.open(config(Path(sys.argv[2]))) as opened:
        MODES[sys.argv[1]](opened, int(sys.argv[3]), int(sys.argv[4]))

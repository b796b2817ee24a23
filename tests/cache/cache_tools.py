"""What the tests of the tiers share: chains, payloads that tell whose they are, a store that is
watched.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from spillcache.cache.match import Match
from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.restore import RestoreStream
from spillcache.chain import BlockHash, Chain
from spillcache.config import MIB, CacheConfig, StoreConfig
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore, Entry, Found, Payload, PutResult, StoreObject
from spillcache.store.files import Files
from spillcache.store.opened import OpenStore

BLOCK = 4
"""Tokens per block."""
SIZE = 1000
"""Bytes per payload."""
NS = Namespace.of({"model": "test", "block_tokens": BLOCK})
PLAIN = Geometry(block_tokens=BLOCK)
WINDOWED = Geometry(block_tokens=BLOCK, window_blocks=2)
HYBRID = Geometry(block_tokens=BLOCK, has_boundary=True)
RECURRENT = Geometry(block_tokens=BLOCK, has_kv=False, has_boundary=True)
NEVER_S = 1e9
Parts = dict[Part, bytes]
OpenCache = Callable[..., PrefixCache]


class FaultyFiles(Files):
    """Fails every read or write of segment bytes while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.read_error = self.write_error = 0
        self.reads = 0
        self.before_read: Callable[[], None] = lambda: None

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        self.reads += 1
        self.before_read()
        if self.read_error:
            raise OSError(self.read_error, os.strerror(self.read_error))
        return super().pread(fd, buffer, offset)

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        return super().pwrite(fd, buffer, offset)


class WatchedStore(BlockStore):
    """A real store that notes what is asked of it."""

    def __init__(self, opened: OpenStore) -> None:
        super().__init__(opened)
        self.puts: list[list[StoreObject]] = []
        self.finds = 0
        self.touched: list[tuple[BlockHash, int]] = []
        self.payloads: list[Payload] = []
        self.gate = threading.Event()
        """Puts wait for it."""
        self.gate.set()
        self.putting = threading.Event()
        self.bug: Exception | None = None
        """Raised by the next put, instead of anything a store would raise."""

    def put_each(
        self,
        namespace: Namespace,
        batches: Iterable[Sequence[StoreObject]],
        done: Callable[[PutResult], None],
    ) -> None:
        taken: deque[list[StoreObject]] = deque()

        def watched() -> Iterator[Sequence[StoreObject]]:
            for objects in batches:
                self.putting.set()
                assert self.gate.wait(30)
                if self.bug is not None:
                    bug, self.bug = self.bug, None
                    raise bug
                taken.append(list(objects))
                yield objects

        def durable(result: PutResult) -> None:
            self.puts.append(taken.popleft())
            done(result)

        super().put_each(namespace, watched(), durable)

    @property
    def written(self) -> list[tuple[BlockHash, Part]]:
        return [(o.block, o.part) for objects in self.puts for o in objects]

    def find(
        self, namespace_id: bytes, blocks: Sequence[BlockHash], parts: Sequence[Part]
    ) -> list[dict[Part, Entry]]:
        self.finds += 1
        return super().find(namespace_id, blocks, parts)

    def find_next(
        self,
        namespace_id: bytes,
        blocks: Sequence[BlockHash],
        parts: Sequence[Part],
        parents: Sequence[BlockHash],
    ) -> tuple[Found, list[list[dict[Part, Entry]]]]:
        self.finds += 1
        return super().find_next(namespace_id, blocks, parts, parents)

    def touch(
        self,
        namespace_id: bytes,
        block: BlockHash,
        window_blocks: int = 1,
        ahead_s: float = 0.0,
    ) -> None:
        self.touched.append((block, window_blocks))
        super().touch(namespace_id, block, window_blocks, ahead_s)

    def read(
        self,
        entries: Sequence[Entry],
        stop: Callable[[], bool] = lambda: False,
        memory_bytes: int = 64 * MIB,
    ) -> Iterator[Payload]:
        for payload in super().read(entries, stop, memory_bytes):
            self.payloads.append(payload)
            yield payload

    @property
    def unreleased(self) -> int:
        """Payloads that were handed over and not given back."""
        return sum(payload._lease is not None for payload in self.payloads)


def open_store(path: Path, files: Files | None = None) -> WatchedStore:
    config = StoreConfig(path / "store", quota_bytes=64 * MIB, min_free_bytes=0)
    store = WatchedStore.open(config, files=files)
    assert isinstance(store, WatchedStore)
    return store


def cache_config(**changes: object) -> CacheConfig:
    """Nothing is written unless a test says when."""
    values: dict[str, object] = {
        "ram_bytes": 16 * MIB,
        "min_tokens": 0,
        "idle_spill_s": NEVER_S,
        "dirty_spill_s": NEVER_S,
        "spill_queue_bytes": 16 * MIB,
    }
    return CacheConfig(**{**values, **changes})  # type: ignore[arg-type]


def chain(
    blocks: int, seed: int = 0, salt: bytes = b"", namespace: Namespace = NS, shared: int = 0
) -> Chain:
    """``blocks`` blocks and one token more; the first ``shared`` are the same for every seed."""
    tokens = [*range(BLOCK * shared), *(10_000 + 1000 * seed + i for i in range(BLOCK * blocks))]
    return Chain(namespace, BLOCK, [*tokens[: BLOCK * blocks], 7], salt)


def state_of(c: Chain, block: int, parts: Sequence[Part] = (Part.KV,), size: int = SIZE) -> Parts:
    """Payloads that no other block and part has."""
    return {
        part: blake3(c.hashes[block] + bytes([part])).digest(length=size + part) for part in parts
    }


def objects(c: Chain, parts: Sequence[Part] = (Part.KV,), size: int = SIZE) -> list[StoreObject]:
    """All blocks of a chain as the store wants them."""
    return [
        StoreObject(c.hashes[i], part, c.parent(i), i, BLOCK, payload, rank=0)
        for i in range(c.blocks)
        for part, payload in state_of(c, i, parts, size).items()
    ]


def offer(cache: PrefixCache, c: Chain, start: int = 0, size: int = SIZE) -> None:
    """All parts of all blocks, from ``start`` on."""
    for block in range(start, c.blocks):
        cache.offer(c, block, state_of(c, block, cache.geometry.parts, size))


def each(stream: RestoreStream, timeout_s: float = 10.0) -> Iterator[tuple[int, Parts]]:
    """The blocks of a stream as they come; gives the buffers back."""
    while not stream.done:
        block = stream.take(timeout_s)
        assert block is not None, "no block came"
        parts = {part: bytes(view) for part, view in block.state.items()}
        assert block.size == sum(len(view) for view in parts.values())
        block.release()
        yield block.index, parts


def taken(stream: RestoreStream, timeout_s: float = 10.0) -> list[tuple[int, Parts]]:
    """All of them."""
    return list(each(stream, timeout_s))


def restored(cache: PrefixCache, match: Match) -> list[Parts]:
    """The payloads of a match, in order; closes the stream and releases the match."""
    stream = cache.restore(match)
    try:
        blocks = taken(stream)
    finally:
        stream.close()
        match.release()
    assert [index for index, _ in blocks] == list(range(len(blocks)))
    return [parts for _, parts in blocks]


def reused(cache: PrefixCache, c: Chain) -> int:
    """How many blocks of ``c`` come back, once every byte was compared."""
    match = cache.match(c)
    for index, parts in enumerate(restored(cache, match)):
        assert parts == state_of(c, index, list(parts))
    return match.blocks


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    """A metric's value; 0 when nothing was counted."""
    return metrics.registry.get_sample_value(f"spillcache_{name}", labels) or 0.0


def dropped(metrics: Metrics, reason: str) -> float:
    """How many blocks, whichever tier."""
    tiers = ("ram", "disk")
    return sum(sample(metrics, "dropped_blocks_total", tier=t, reason=reason) for t in tiers)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("spillcache-")]


def flip(path: Path, offset: int) -> None:
    """Change one bit of one byte of a file."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 0x20]))


def damage(path: Path, entry: Entry) -> None:
    """Flip a bit in the middle of an object's payload on disk."""
    segment = sorted((path / "store/segments").iterdir())[0]
    assert int(segment.stem) == entry.segment
    flip(segment, entry.offset + entry.payload_offset + entry.stored_bytes // 2)


EIO, ENOSPC = errno.EIO, errno.ENOSPC

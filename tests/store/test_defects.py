"""Things that were found lying in a store's directory, and must not keep it from opening."""

import json
from pathlib import Path

import pytest

from spillcache.chain import Chain
from spillcache.config import MIB, StoreConfig
from spillcache.errors import CorruptBlock, StoreFormatError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject

NS = Namespace.of({"model": "defects"})
CHAIN = Chain(NS, 64, list(range(64 * 6)))


def config(path: Path) -> StoreConfig:
    return StoreConfig(path, min_free_bytes=0)


def objects() -> list[StoreObject]:
    return [
        StoreObject(block, Part.KV, CHAIN.parent(i), i, 64, bytes([i + 1]) * 20_000)
        for i, block in enumerate(CHAIN.hashes)
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "d"
    with BlockStore.open(StoreConfig(path, quota_bytes=64 * MIB, min_free_bytes=0)) as store:
        assert store.put(NS, objects()).written == 6
    return path


def present(path: Path) -> int:
    with BlockStore.open(config(path)) as store:
        return sum(bool(found) for found in store.find(NS.id, CHAIN.hashes, (Part.KV,)))


@pytest.mark.parametrize(
    "name", ["9" * 23, "9223372036854775808", "7", "00000000000000000000000007", "٣٣٣٣٣٣٣٣٣٣"]
)
def test_a_segments_name_that_we_never_write_is_not_ours(directory: Path, name: str) -> None:
    stray = directory / "segments" / f"{name}.seg"
    stray.write_bytes(b"thesis")
    assert present(directory) == 6
    assert stray.read_bytes() == b"thesis"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "[" * 60_000,
        lambda text: json.dumps(json.loads(text) | {"quota_bytes": -1}),
        lambda text: json.dumps(json.loads(text) | {"quota_bytes": 10**30}),
        lambda text: json.dumps(json.loads(text) | {"created_ns": -5}),
    ],
    ids=["deep", "negative quota", "quota beyond every disk", "before 1970"],
)
def test_settings_that_can_not_be_are_refused_in_a_sentence(
    directory: Path, change: object
) -> None:
    assert callable(change)
    settings = directory / "spillcache.json"
    settings.write_text(change(settings.read_text()))
    with pytest.raises(StoreFormatError, match="is not a store's settings"):
        BlockStore.open(config(directory))


def test_damage_that_was_read_along_is_made_good_with_the_first(directory: Path) -> None:
    (segment,) = (directory / "segments").iterdir()
    raw = bytearray(segment.read_bytes())
    for value in (2, 3, 5):  # one byte in each of three payloads
        raw[raw.index(bytes([value]) * 1000) + 500] ^= 1
    segment.write_bytes(raw)
    with BlockStore.open(config(directory)) as store:
        found = store.find(NS.id, CHAIN.hashes, (Part.KV,))
        stream = store.read([entries[Part.KV] for entries in found])
        first = next(stream)
        assert bytes(first.view) == bytes([1]) * 20_000
        first.release()
        with pytest.raises(CorruptBlock):
            next(stream)
        again = store.put(NS, objects())
        assert (again.written, again.present) == (3, 3)
        found = store.find(NS.id, CHAIN.hashes, (Part.KV,))
        for i, payload in enumerate(store.read([entries[Part.KV] for entries in found])):
            assert bytes(payload.view) == bytes([i + 1]) * 20_000
            payload.release()

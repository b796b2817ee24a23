"""Byte planes: golden bytes, round trips, and nothing but what was promised."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import NAMESPACE, check_all, config, entries, objects, payload

from spillcache.config import MIB
from spillcache.store import codec as codecs
from spillcache.store.block_store import BlockStore
from spillcache.store.codec import CodecError, CodecId, decode_into, encode

GOLDEN = bytes.fromhex("28b52ffd2009490000414141414142424242")
"""A frame of nine bytes, not compressed: AAAAA BBBB."""


def halves(count: int) -> bytes:
    """Numbers like those of a KV cache."""
    return np.random.default_rng(count).standard_normal(count).astype("<f2").tobytes()


def decoded(stored, size):
    target = memoryview(bytearray(size))
    decode_into(CodecId.PLANES, stored, target)
    return bytes(target)


def test_the_planes_are_pinned():
    assert decoded(GOLDEN, 9) == b"ABABABABA"
    data = halves(4096)
    codec, stored = encode("byteplane", data)
    assert codec is CodecId.PLANES == 2
    planes = zstandard.ZstdDecompressor().decompress(stored)
    assert planes == data[0::2] + data[1::2]


def test_they_shrink_what_zstd_alone_hardly_does():
    data = halves(MIB)
    _, planes = encode("byteplane", data)
    _, whole = encode("zstd", data)
    assert len(planes) < 0.88 * len(data) < 0.99 * len(whole)


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=300), repeat=st.integers(1, 40))
def test_round_trip(data, repeat):
    data *= repeat
    codec, stored = encode("byteplane", memoryview(data))
    target = memoryview(bytearray(len(data)))
    decode_into(codec, stored, target)
    assert target == data
    if codec is CodecId.RAW:
        assert bytes(stored) == data
    else:
        assert len(stored) < len(data)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 65, 4097, 100_001])
def test_planes_of_every_length_come_back(size):
    data = payload(size, size)
    planes = np.empty(size, np.uint8)
    codecs._split(np.frombuffer(data, np.uint8), planes)
    assert planes.tobytes() == data[0::2] + data[1::2]
    target = np.empty(size, np.uint8)
    codecs._merge(planes, target)
    assert target.tobytes() == data


@settings(deadline=None, max_examples=100)
@given(wrong=st.integers(0, 20_001).filter(lambda n: n != 10_001))
def test_another_length_is_refused(wrong):
    _, stored = encode("byteplane", b"ab" * 5000 + b"c")
    with pytest.raises(CodecError, match="length"):
        decoded(stored, wrong)


@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 50))
def test_damaged_frames_never_crash(at, bit, cut):
    data = halves(5000)
    _, stored = encode("byteplane", data)
    damaged = bytearray(stored)
    damaged[at % len(damaged)] ^= 1 << bit
    damaged = damaged[: len(damaged) - cut]
    with contextlib.suppress(CodecError):
        assert len(decoded(damaged, len(data))) == len(data)


def test_a_bomb_is_refused_before_anything_is_decoded():
    for name in ("zstd", "byteplane"):
        codec, bomb = encode(name, bytes(64 * MIB))
        assert len(bomb) < 64 * 1024
        with pytest.raises(CodecError, match="length"):
            decode_into(codec, bomb, memoryview(bytearray(100)))
    # One that does not say how large it is.
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = stream.compress(bytes(MIB)) + stream.flush()
    with pytest.raises(CodecError, match="length"):
        decoded(bomb, MIB)


def test_through_the_store(tmp_path):
    wanted = [replace(o, payload=halves(200_000 + i)) for i, o in enumerate(objects(1, 20))]
    with BlockStore.open(config(tmp_path, codec="byteplane")) as store:
        store.put(NAMESPACE, wanted)
        assert {entry.codec for entry in entries(store, wanted)} == {CodecId.PLANES}
        check_all(store, wanted)
        (info,) = store.namespaces()
        assert info.stored_bytes < 0.9 * info.raw_bytes
    with BlockStore.open(config(tmp_path, codec="raw")) as store:
        check_all(store, wanted)

import pytest
import zstandard
from store_tools import payload

from spillcache.store.codec import CodecError, CodecId, decode_into, encode


def decoded(codec, stored, size):
    target = memoryview(bytearray(size))
    decode_into(codec, stored, target)
    return bytes(target)


def test_raw_is_the_very_buffer():
    data = bytearray(b"abc" * 100)
    codec, stored = encode("raw", data)
    assert codec is CodecId.RAW
    assert stored is data
    assert decoded(codec, stored, 300) == data


def test_zstd_shrinks_and_comes_back():
    data = b"0123456789abcdef" * 50_000
    codec, stored = encode("zstd", memoryview(data))
    assert codec is CodecId.ZSTD
    assert len(stored) < len(data) // 10
    assert zstandard.get_frame_parameters(stored).content_size == len(data)
    assert decoded(codec, stored, len(data)) == data


@pytest.mark.parametrize("data", [b"", b"x", payload(1, 10_000)])
def test_what_zstd_does_not_shrink_is_stored_raw(data):
    assert encode("zstd", data) == (CodecId.RAW, data)


def test_wrong_lengths_and_bytes_are_refused():
    _, stored = encode("zstd", b"a" * 10_000)
    with pytest.raises(CodecError, match="length"):
        decoded(CodecId.ZSTD, stored, 9_999)
    with pytest.raises(CodecError):
        decoded(CodecId.ZSTD, stored[:-3], 10_000)
    with pytest.raises(CodecError, match="frame"):
        decoded(CodecId.ZSTD, b"not zstd at all", 10)
    with pytest.raises(CodecError, match="raw"):
        decoded(CodecId.RAW, b"abc", 4)
    with pytest.raises(CodecError, match="unknown"):
        decoded(77, b"abc", 3)

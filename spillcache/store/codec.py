"""How a payload is stored: as it is, or compressed. A record's header says which.

Any thread: each has its own compressor and decompressor.
"""

import threading
from enum import IntEnum
from typing import Literal

import numpy as np
import zstandard

from spillcache.config import MIB
from spillcache.state import Buffer
from spillcache.store.buffers import BufferPool, Bytes

FixedCodec = Literal["raw", "zstd", "byteplane"]
"""A codec that was decided on."""

ZSTD_LEVEL = 1
_MAX_WINDOW_BYTES = 128 << 20
_SCRATCH_BYTES = 32 * MIB

_scratch = BufferPool(_SCRATCH_BYTES)
"""Byte planes on their way; kept, so that their pages are faulted in only once."""


class CodecId(IntEnum):
    """The byte in a record's header. The numbers are on disk: never reuse one."""

    RAW = 0
    ZSTD = 1
    PLANES = 2
    """zstd over the bytes of even offsets, then those of odd offsets: the halves of 16-bit numbers,
    of which the higher, with sign and exponent, compress much better alone.
    """


class CodecError(ValueError):
    """Stored bytes that don't decode to the length that was promised."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)


_per_thread = _PerThread()


def encode(codec: FixedCodec, payload: Buffer) -> tuple[CodecId, Buffer]:
    """The payload as it is to be stored. What the codec does not shrink is stored raw: the very
    buffer that came in.
    """
    if codec == "zstd":
        packed = _per_thread.compressor.compress(payload)
        if len(packed) < len(payload):
            return CodecId.ZSTD, packed
    elif codec == "byteplane" and len(payload) > 1:
        packed = _compress_planes(payload)
        if len(packed) < len(payload):
            return CodecId.PLANES, packed
    return CodecId.RAW, payload


def _compress_planes(payload: Buffer) -> bytes:
    size = len(payload)
    buffer = _scratch.take(size)
    try:
        _split(np.frombuffer(payload, np.uint8), buffer.array[:size])
        return _per_thread.compressor.compress(buffer.view[:size])
    finally:
        _scratch.give(buffer)


def _split(source: Bytes, planes: Bytes) -> None:
    """Bytes of even offsets first, then those of odd ones."""
    half = len(source) // 2
    low, high = planes[: len(source) - half], planes[len(source) - half :]
    # As 16-bit numbers: several times as fast as strided copies of bytes.
    pairs = source[: 2 * half].view("<u2")
    np.bitwise_and(pairs, 0xFF, out=low[:half], casting="unsafe")
    np.right_shift(pairs, 8, out=high, casting="unsafe")
    low[half:] = source[2 * half :]


def _merge(planes: Bytes, target: Bytes) -> None:
    """Undo ``_split``."""
    half = len(target) // 2
    low, high = planes[: len(target) - half], planes[len(target) - half :]
    pairs = target[: 2 * half].view("<u2")
    pairs[:] = high
    np.left_shift(pairs, 8, out=pairs)
    np.bitwise_or(pairs, low[:half], out=pairs)
    target[2 * half :] = low[half:]


def decode_into(codec: int, stored: Buffer, target: memoryview) -> None:
    """Decode ``stored`` so that it fills ``target`` exactly; raises CodecError.

    The caller has checked the target's size against the record's header before allocating it; a
    zstd frame that promises another size is refused before anything is decoded.
    """
    if codec == CodecId.RAW:
        if len(stored) != len(target):
            raise CodecError("a raw payload's length is not what the record says")
        target[:] = stored
    elif codec == CodecId.ZSTD:
        _decompress(stored, target)
    elif codec == CodecId.PLANES:
        _decompress_planes(stored, target)
    else:
        raise CodecError(f"codec {codec} is unknown")


def _decompress_planes(stored: Buffer, target: memoryview) -> None:
    size = len(target)
    _check_size(stored, size)
    buffer = _scratch.take(size)
    try:
        _decompress(stored, buffer.view[:size])
        _merge(buffer.array[:size], np.frombuffer(target, np.uint8))
    finally:
        _scratch.give(buffer)


def _check_size(stored: Buffer, size: int) -> None:
    """Refuse a frame that promises another size, before anything is allocated or decoded for it."""
    try:
        found = zstandard.get_frame_parameters(stored).content_size
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error
    if found != size:
        raise CodecError("the zstd frame's length is not what the record says")


def _decompress(stored: Buffer, target: memoryview) -> None:
    _check_size(stored, len(target))
    try:
        with _per_thread.decompressor.stream_reader(stored) as reader:
            done = 0
            while done < len(target):
                count = reader.readinto(target[done:])
                if not count:
                    raise CodecError("the zstd frame ends early")
                done += count
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error

"""How a payload is stored: as it is, or compressed. A record's header says which.

Any thread: each has its own compressor and decompressor.
"""

import threading
from enum import IntEnum

import zstandard

from spillcache.config import Codec
from spillcache.state import Buffer

ZSTD_LEVEL = 1
_MAX_WINDOW_BYTES = 128 << 20


class CodecId(IntEnum):
    """The byte in a record's header. The numbers are on disk: never reuse one."""

    RAW = 0
    ZSTD = 1


class CodecError(ValueError):
    """Stored bytes that don't decode to the length that was promised."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)


_per_thread = _PerThread()


def encode(codec: Codec, payload: Buffer) -> tuple[CodecId, Buffer]:
    """The payload as it is to be stored. What zstd does not shrink is stored raw: the very buffer
    that came in.
    """
    if codec == "zstd":
        packed = _per_thread.compressor.compress(payload)
        if len(packed) < len(payload):
            return CodecId.ZSTD, packed
    return CodecId.RAW, payload


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
    else:
        raise CodecError(f"codec {codec} is unknown")


def _decompress(stored: Buffer, target: memoryview) -> None:
    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != len(target):
            raise CodecError("the zstd frame's length is not what the record says")
        with _per_thread.decompressor.stream_reader(stored) as reader:
            done = 0
            while done < len(target):
                count = reader.readinto(target[done:])
                if not count:
                    raise CodecError("the zstd frame ends early")
                done += count
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error

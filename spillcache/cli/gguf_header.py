"""What a GGUF file's header says, read without the library and without the model's weights.

The layout is that of ggml's ``docs/gguf.md``: little-endian; a magic, a version, two counts, then
key, type and value of each fact.
"""

import struct
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING_BYTES_MAX = 1 << 24


def trained_tokens(path: Path) -> int | None:
    """The context that the model was trained for; None where the file does not tell."""
    try:
        with open(path, "rb") as file:
            return _find(file, ".context_length")
    except (OSError, ValueError, struct.error):
        return None


def _find(file: BinaryIO, ending: str) -> int | None:
    if file.read(4) != _MAGIC:
        return None
    _version, _tensors, facts = _unpack(file, "IQQ")
    for _ in range(facts):
        key = _string(file)
        (kind,) = _unpack(file, "I")
        if key.endswith(ending.encode()) and kind in _FORMATS:
            (value,) = _unpack(file, _FORMATS[kind])
            return int(value)
        _skip(file, kind)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _string(file)
    elif kind == _ARRAY:
        inner, count = _unpack(file, "IQ")
        if inner in _FORMATS:
            file.seek(count * struct.calcsize(_FORMATS[inner]), 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    elif kind in _FORMATS:
        file.seek(struct.calcsize(_FORMATS[kind]), 1)
    else:
        raise ValueError(f"unknown type {kind}")


def _string(file: BinaryIO) -> bytes:
    (length,) = _unpack(file, "Q")
    if length > _STRING_BYTES_MAX:
        raise ValueError("a string is too long to be one")
    return file.read(length)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    layout = "<" + layout
    return struct.unpack(layout, file.read(struct.calcsize(layout)))

"""What changes the meaning of cached state, other than the tokens (docs/format.md).

Two settings with the same ``Namespace`` may exchange state; any different field makes another
namespace, never an error.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blake3 import blake3

FieldValue = bool | int | float | str | bytes

MAGIC = b"spillcache namespace v1\n"
ID_BYTES = 8
_HASH_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Namespace:
    """Typed fields, sorted by name; ``digest`` (32 bytes) is the identity.

    ``id``, its first 8 bytes, is a short name within one store; block hashes are chained from the
    whole digest.
    """

    fields: tuple[tuple[str, FieldValue], ...]

    @classmethod
    def of(cls, fields: Mapping[str, FieldValue]) -> "Namespace":
        """A namespace of these fields, in canonical order."""
        return cls(tuple(sorted(fields.items())))

    @cached_property
    def digest(self) -> bytes:
        """BLAKE3 of the canonical encoding."""
        return blake3(self.encode()).digest()

    @property
    def id(self) -> bytes:
        """The short name that a store's records and index use."""
        return self.digest[:ID_BYTES]

    def difference(self, other: "Namespace") -> str:
        """The first field that differs, for people: what it is here, and what in ``other``; empty
        where none does.
        """
        ours, theirs = dict(self.fields), dict(other.fields)
        for name in sorted({*ours, *theirs}):
            here, there = ours.get(name), theirs.get(name)
            if (type(here), here) != (type(there), there):
                return f"{name} is {_shown(here)} here and {_shown(there)} there"
        return ""

    def encode(self) -> bytes:
        """The canonical, length-prefixed encoding; see docs/format.md."""
        out = [MAGIC, struct.pack("<I", len(self.fields))]
        for name, value in self.fields:
            kind, data = _encode_value(value)
            raw = name.encode()
            out += [struct.pack("<I", len(raw)), raw, kind, struct.pack("<I", len(data)), data]
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> "Namespace":
        """The namespace that ``encode`` wrote; raises ValueError if these bytes are not one."""
        try:
            namespace = cls(tuple(_decode_fields(data)))
        except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
            raise ValueError(f"not a namespace: {error}") from error
        names = [name for name, _ in namespace.fields]
        if namespace.encode() != data or sorted(set(names)) != names:
            raise ValueError("not a namespace in canonical form")
        return namespace


def _shown(value: FieldValue | None) -> str:
    """A value for people; of a digest its beginning."""
    if value is None:
        return "missing"
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)


def _encode_value(value: FieldValue) -> tuple[bytes, bytes]:
    if isinstance(value, bool):
        return b"b", bytes([value])
    if isinstance(value, int):
        return b"i", struct.pack("<q", value)
    if isinstance(value, float):
        return b"f", struct.pack("<d", value)
    if isinstance(value, str):
        return b"s", value.encode()
    return b"x", value


_DECODERS: Mapping[int, Callable[[bytes], FieldValue]] = {
    ord("b"): lambda data: bool(data[0]),
    ord("i"): lambda data: int(struct.unpack("<q", data)[0]),
    ord("f"): lambda data: float(struct.unpack("<d", data)[0]),
    ord("s"): lambda data: data.decode(),
    ord("x"): lambda data: data,
}


def _decode_fields(data: bytes) -> list[tuple[str, FieldValue]]:
    if not data.startswith(MAGIC):
        raise ValueError("not a namespace: wrong magic")
    at = len(MAGIC)
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    fields: list[tuple[str, FieldValue]] = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        kind = data[at]
        (length,) = struct.unpack_from("<I", data, at + 1)
        fields.append((name, _DECODERS[kind](data[at + 5 : at + 5 + length])))
        at += 5 + length
    return fields


def file_identity(path: Path) -> str:
    """A file's stat identity: changes whenever the file is replaced or written; raises OSError."""
    s = path.stat()
    return f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}"


def file_digest(path: Path, stop: Callable[[], bool] = lambda: False) -> bytes:
    """BLAKE3 of a file's content (32 bytes), read once in 8 MiB chunks.

    Asks ``stop`` between chunks and raises InterruptedError when it says so. Raises OSError. Any
    thread; the GIL is released while hashing.
    """
    hasher = blake3()
    buffer = bytearray(_HASH_CHUNK_BYTES)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if stop():
                raise InterruptedError("hashing was stopped")
            hasher.update(view[:count])
    return hasher.digest()


def remembered_digest(
    path: Path,
    recall: Callable[[str], bytes | None],
    remember: Callable[[str, bytes], None],
    stop: Callable[[], bool] = lambda: False,
) -> bytes:
    """``file_digest``, computed once per stat identity.

    ``recall`` and ``remember`` keep it under a key that starts with ``digest:`` (a store's notes).
    A file that is replaced while it is read is hashed again.
    """
    for _ in range(3):
        identity = file_identity(path)
        known = recall(f"digest:{identity}")
        if known is not None and len(known) == 32:
            return known
        digest = file_digest(path, stop)
        if file_identity(path) == identity:
            remember(f"digest:{identity}", digest)
            return digest
    raise OSError(f"{path} changes while it is read")

"""An object on its way to disk."""

import time

from spillcache.namespace import ID_BYTES
from spillcache.state import Buffer, Part
from spillcache.store import codec as codecs
from spillcache.store.catalog import Place
from spillcache.store.cipher import NO_KEY, OVERHEAD_BYTES, Cipher
from spillcache.store.format import (
    DIGEST_BYTES,
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    RecordClass,
    bound_bytes,
    padded,
    payload_digest,
    record_header,
)
from spillcache.store.objects import StoreObject
from spillcache.store.rows import object_key, pack_row

_NO_DIGEST = bytes(DIGEST_BYTES)


class Outgoing:
    """A record in the making. Each of its methods runs thousands of times in a put."""

    __slots__ = (
        *("cipher", "codec", "key", "namespace_id", "offset", "parent_key", "raw_bytes"),
        *("segment", "size"),
        *("source", "stored", "stored_bytes", "written_ns"),
    )

    def __init__(  # noqa: PLR0917 - names cost time
        self,
        key: bytes,
        source: StoreObject,
        raw_bytes: int,
        codec: codecs.CodecId,
        stored: Buffer,
        cipher: Cipher | None,
    ) -> None:
        self.namespace_id = key[:ID_BYTES]
        self.source = source
        self.key = key
        self.parent_key = b""
        if source.block_index and source.part is Part.KV:
            self.parent_key = object_key(self.namespace_id, source.parent, Part.KV)
        self.codec = codec
        self.stored = stored
        self.cipher = cipher
        self.raw_bytes = raw_bytes
        self.written_ns = time.time_ns()
        tail_bytes = len(source.tail)
        self.stored_bytes = len(stored)
        """What the payload takes; with a tail's tokens, if they are encrypted together."""
        if cipher is not None:
            self.stored_bytes += tail_bytes + OVERHEAD_BYTES
            tail_bytes = 0
        self.size = padded(RECORD_HEADER_BYTES + tail_bytes + self.stored_bytes)
        """In the segment, header and padding included."""
        self.segment = self.offset = 0
        """Where it lies, once it is written."""

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place(self.segment, self.offset, self.size)

    def pieces(self) -> tuple[Buffer, ...]:
        """Header, a tail's tokens and payload; the payload is encrypted and digested here, while
        bytes before it are written.
        """
        tail, cipher = self.source.tail, self.cipher
        if cipher is None:
            head = self._header(payload_digest(tail, self.stored), NO_KEY)
            return (head, tail, self.stored) if tail else (head, self.stored)
        head = self._header(_NO_DIGEST, cipher.key_id)
        plain = b"".join((tail, self.stored)) if tail else self.stored
        nonce, stored = cipher.encrypt(plain, bound_bytes(head))
        return self._header(payload_digest(nonce, stored), cipher.key_id), nonce, stored

    def _header(self, digest: bytes, key_id: bytes) -> bytes:
        source = self.source
        return record_header(
            self._class,
            source.part,
            self.codec,
            source.rank,
            len(source.tail) // TOKEN_BYTES,
            self.namespace_id,
            source.block,
            source.parent,
            source.block_index,
            source.token_count,
            self.raw_bytes,
            self.stored_bytes,
            self.written_ns,
            digest,
            key_id,
        )

    @property
    def _class(self) -> RecordClass:
        return RecordClass.TAIL if self.source.tail else RecordClass.BLOCK

    def row(self, last_use: int, children: int) -> bytes:
        """The value of its row in the index."""
        source = self.source
        return pack_row(
            self.segment,
            self.offset,
            self.stored_bytes,
            self.raw_bytes,
            last_use,
            source.parent,
            source.block_index,
            source.token_count,
            len(source.tail) // TOKEN_BYTES,
            children,
            self.codec,
            source.rank,
            self._class,
            self.cipher is not None,
        )

"""The records in a slot file's bytes, one after another, each verified before it is handed out."""

from collections.abc import Callable

from blake3 import blake3

from spillcache.store.cipher import NO_KEY
from spillcache.store.format import (
    RECORD_HEADER_BYTES,
    TOKEN_BYTES,
    FormatError,
    RecordHeader,
)


class Records:
    """``at``: where the next one begins; ``digest``: BLAKE3 over the headers of those before."""

    def __init__(
        self,
        view: Callable[[int, int], memoryview],
        at: int,
        size: int,
        most_bytes: int,
        digest: blake3,
    ) -> None:
        """``view``: the bytes between two places; ``size``: where they end; ``most_bytes``: what
        ``view`` can give at once.
        """
        self._view = view
        self._size = size
        self._most = most_bytes
        self.at = at
        self.digest = digest

    def header(self) -> RecordHeader:
        """The next record's header; raises FormatError."""
        return RecordHeader.parse(self._bytes(RECORD_HEADER_BYTES))

    def next(self) -> tuple[RecordHeader, memoryview]:
        """The next record's header, and its bytes after that but for the padding; raises
        FormatError.
        """
        header = self.header()
        start, stop, end = _bounds(header)
        if end > self._most:
            raise FormatError("a record that is larger than its part can be")
        record = self._bytes(end)
        if blake3(record[start:stop]).digest() != header.digest:
            raise FormatError("a record's digest is wrong")
        if bytes(record[stop:end]) != bytes(end - stop):
            raise FormatError("a record is followed by something")
        self.digest.update(record[:start])
        self.at += end
        return header, record[start:stop]

    def _bytes(self, count: int) -> memoryview:
        if self.at + count > self._size:
            raise FormatError("the file ends within a record")
        return self._view(self.at, self.at + count)


def _bounds(header: RecordHeader) -> tuple[int, int, int]:
    """Where what a record holds begins and ends, and where it ends itself."""
    plain = header.tail_tokens if header.key_id == NO_KEY else 0
    stop = RECORD_HEADER_BYTES + TOKEN_BYTES * plain + header.stored_bytes
    return RECORD_HEADER_BYTES, stop, header.record_bytes

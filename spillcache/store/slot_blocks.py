"""The blocks of a slot file: read and verified whenever they are asked for, for no memory holds
them all.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping

from spillcache.chain import Chain
from spillcache.config import MIB
from spillcache.errors import SlotFileInvalid, SlotFileIOError
from spillcache.state import Part
from spillcache.store.cipher import CipherError
from spillcache.store.format import TOKEN_BYTES, FormatError, RecordHeader
from spillcache.store.slot_format import RUN_BYTES_MAX, SlotHeader, part_header
from spillcache.store.slot_records import Records
from spillcache.store.slot_state import Run, SlotRecord
from spillcache.store.slot_stretch import Stretch

RUN_BYTES = 4 * MIB
"""So many bytes of the file are handed out at a time, or one block, if that is larger."""
HELD_RUNS = 3
"""So many are in memory at once, the one that is being read among them."""
READING = "the slot file was read; the slot is as it was"
_AGAIN = "the slot file was read again"


def held_bytes(view_bytes: int) -> int:
    """What of the file is in use at once, where records have up to ``view_bytes``."""
    return HELD_RUNS * (RUN_BYTES + view_bytes)


class SlotBlocks:
    """One file's. One thread at a time."""

    def __init__(
        self,
        header: SlotHeader,
        chain: Chain,
        part_bytes: Mapping[Part, int],
        *,
        begun: tuple[Stretch, Records],
        again: Callable[[str], tuple[Stretch, Records]],
        opened: Callable[[RecordHeader, memoryview], memoryview],
    ) -> None:
        """``chain``: of the file's tokens. ``begun``: what is being read, up to the first record of
        a block; ``again``: as that, anew, doing what it is told; ``opened``: what a record holds,
        decrypted.
        """
        self._header = header
        self._chain = chain
        self._part_bytes = part_bytes
        self._begun: tuple[Stretch, Records] | None = begun
        self._again = again
        self._opened = opened
        self._seen: list[bytes] = []
        """Of each run, the digest of all headers up to its end, as it was the first time."""
        self._verified = False
        """Whether all of the file was read and verified."""

    def runs(self) -> Generator[Run, None, None]:
        """All blocks, in runs; a run is valid until that many (``HELD_RUNS``) more were asked for.

        What is handed out is whole, and of this conversation; only when the runs have come to
        their end is it known that all of them were written together. From then on they must be
        what they were. Raises SlotFileInvalid, later SlotFileIOError; and what ``Steps`` does. Who
        breaks off closes it before it is asked for again.
        """
        begun, self._begun = self._begun, None
        stretch, records = begun or self._again(_AGAIN)
        stretch.release(records.at)
        try:
            yield from self._pass(stretch, records)
        except GeneratorExit:
            stretch.settle()  # the next pass goes through the same memory
            raise
        except (ValueError, CipherError) as error:
            if self._verified:
                raise SlotFileIOError("the slot file was changed while it was read") from error
            raise invalid(str(error)) from error
        self._verified = True

    def _pass(self, stretch: Stretch, records: Records) -> Iterator[Run]:
        run: list[SlotRecord] = []
        number, last, kv_end = 0, (-1, 0), 0
        held = deque([records.at])
        """Where runs begin: this one, and those before it that are still valid."""
        for left in reversed(range(self._header.parts)):
            record = self._take_part(records, last, kv_end)
            run.append(record)
            last = record.block, record.part
            if record.part is Part.KV:
                kv_end = record.block + record.blocks
            size = records.at - held[-1]
            if left and size >= RUN_BYTES and records.header().block_index != record.block:
                self._check_run(number, records)
                yield run
                run, number = [], number + 1
                held.append(records.at)
                if len(held) > HELD_RUNS:
                    held.popleft()
                stretch.release(held[0])
        self._check_end(number, records)
        if run:
            yield run

    def _check_run(self, number: int, records: Records) -> None:
        digest = records.digest.digest()
        if not self._verified:
            self._seen[number:] = [digest]
        elif self._seen[number : number + 1] != [digest]:
            raise FormatError("its records are not those that were there before")

    def _check_end(self, number: int, records: Records) -> None:
        if records.at != self._header.file_bytes:
            raise FormatError("something follows the last record")
        if records.digest.digest() != self._header.records_digest:
            raise FormatError("its records are not those that were written together")
        self._check_run(number, records)

    def _take_part(self, records: Records, last: tuple[int, int], kv_end: int) -> SlotRecord:
        """The next record of a part; ``last``: block and part of the one before; ``kv_end``: the
        first block whose kv is still to come.
        """
        found, stored = records.next()
        chain, block, number = self._chain, found.block_index, found.part
        if number not in self._part_bytes or last >= (block, number):
            raise FormatError("a record that does not belong there")
        part, count = Part(number), max(1, found.token_count // chain.block_tokens)
        if count > 1 and (part is not Part.KV or block + count > chain.blocks):
            raise FormatError("a record that does not belong there")
        if block * chain.block_tokens >= len(chain) or (part is Part.KV and block < kv_end):
            raise FormatError("a record that does not belong there")
        most = self._part_bytes[part]
        if count > 1:
            most = min(count * most, RUN_BYTES_MAX)
        if found.raw_bytes > most or found.codec:
            raise FormatError("a record that is larger than its part can be, or is encoded")
        wanted = part_header(chain, block, part, found.raw_bytes, self._header.key_id, blocks=count)
        wanted.written_ns, wanted.digest, wanted.rank = found.written_ns, found.digest, found.rank
        if found != wanted:
            raise FormatError("a record of another block")
        plain = self._opened(found, stored)
        tail_bytes = TOKEN_BYTES * found.tail_tokens
        tail = chain.tail_tokens(block, found.tail_tokens).astype("<u4").tobytes()
        if plain[:tail_bytes] != tail:
            raise FormatError("the tail's tokens are others")
        return SlotRecord(block, count, part, plain[tail_bytes:])


def invalid(problem: str) -> SlotFileInvalid:
    """Of a file that can't be used; nothing was changed for it."""
    return SlotFileInvalid(
        f"the slot file can't be used: {problem}; the slot is as it was", param="filename"
    )

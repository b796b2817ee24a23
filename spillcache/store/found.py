"""What a lookup found: the rows as they are in the index, decoded when they are asked for.

Thousands of blocks are looked up before a prompt's first token, and few of the entries are used at
once; objects that nobody looks at cost more than the reads of the index.
"""

from collections.abc import Callable, Sequence
from typing import overload

from spillcache.chain import BlockHash
from spillcache.state import Part
from spillcache.store.rows import ENTRY_BYTES, PRESENT, Entry, is_present, object_keys, unpack_entry

_Rows = list[bytes | None]


class Found(Sequence[dict[Part, Entry]]):
    """One dict per block, in the order of the lookup: the entries of its parts that are there.

    Immutable; any thread. Entries are as they were in the lookup's transaction.
    """

    __slots__ = ("_blocks", "_columns", "_namespace_id")

    def __init__(
        self,
        namespace_id: bytes,
        blocks: Sequence[BlockHash],
        parts: Sequence[Part],
        get: Callable[[bytes], bytes | None],
    ) -> None:
        """Look up all parts of all blocks; ``get`` gives the row of an object's key.

        Raises struct.error for a row of a wrong length.
        """
        self._namespace_id = namespace_id
        self._blocks = tuple(blocks)
        self._columns = [(part, self._column(part, get)) for part in parts]

    def _column(self, part: Part, get: Callable[[bytes], bytes | None]) -> _Rows:
        values = map(get, object_keys(self._namespace_id, self._blocks, part))
        size, least = ENTRY_BYTES, PRESENT
        return [
            value if value is not None and value >= least and len(value) == size else _absent(value)
            for value in values
        ]

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> dict[Part, Entry]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[Part, Entry]]: ...

    def __getitem__(self, index: int | slice) -> dict[Part, Entry] | list[dict[Part, Entry]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        block = self._blocks[index]
        return {
            part: unpack_entry(self._namespace_id, block, part, value)
            for part, rows in self._columns
            if (value := rows[index]) is not None
        }

    def has(self, part: Part) -> list[bool]:
        """Whether that part of each block is there; decodes nothing."""
        for each, rows in self._columns:
            if each is part:
                return [value is not None for value in rows]
        return [False] * len(self)


def _absent(value: bytes | None) -> bytes | None:
    return value if is_present(value) else None

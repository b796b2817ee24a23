"""Whether the pages of an LMDB file hang together, found out without LMDB, which trusts them.

LMDB 0.9 data files (data version 1; the structures are those of its ``mdb.c``): two meta pages,
then pages of trees, overflow pages, and pages that the free list names. Every page carries its
own number, and no page belongs to two owners, so a damaged pointer is always seen. Reads with
``pread``: an I/O error is an OSError, never a signal. Pure but for that; any thread.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_META_END = struct.Struct("<QQ")
_NODE = struct.Struct("<HHHH")
_U64 = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG_DATA, _SUB_TREE = 1, 2
_INTEGER_KEYS = 8
_NO_PAGE = (1 << 64) - 1
_MAX_MAP_BYTES = 1 << 44
_MAX_KEY_BYTES = 511
_MAX_DEPTH = 32
_PAGE_SIZES = frozenset(1 << n for n in range(9, 17))


class PageDamage(ValueError):
    """Pages that no healthy LMDB file has; the message names the first thing that is wrong."""


class UnknownVersion(Exception):
    """Not the version of LMDB's files that is known here: nothing can be said."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """A database's record, in a meta page or in the main tree."""

    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int

    @classmethod
    def unpack(cls, data: bytes, at: int = 0) -> "_Tree":
        _, *fields = _TREE.unpack_from(data, at)
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class _Meta:
    page_bytes: int
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


@dataclass(slots=True)
class _Count:
    branches: int = 0
    leaves: int = 0
    overflows: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Node:
    flags: int
    key: bytes
    size: int
    data: bytes


def check_pages(data_file: Path, limit_s: float = 1e9) -> None:
    """Raise PageDamage if the file's latest snapshot is damaged, as far as ``limit_s`` allows to
    look: first what LMDB writes by, the free list, then the trees.

    Nobody may write to it meanwhile. Raises OSError when it can't be read, and UnknownVersion.
    """
    fd = os.open(data_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        check = _Check(fd, time.monotonic() + limit_s)
        check.run()
    except _OutOfTime:
        return
    except struct.error as error:
        raise PageDamage(f"a page is cut short: {error}") from error
    finally:
        os.close(fd)


class _OutOfTime(Exception):
    pass


class _Check:
    def __init__(self, fd: int, deadline: float) -> None:
        self._fd = fd
        self._deadline = deadline
        self._size = os.fstat(fd).st_size
        self._meta = self._latest_meta()
        self._owned = bytearray(self._meta.last_page + 1)
        self._owned[:2] = b"\1\1"

    def run(self) -> None:
        if self._meta.free.flags & ~_INTEGER_KEYS or self._meta.main.flags:
            raise PageDamage("unknown flags in a meta page")
        for node in self._walk(self._meta.free, _U64_key):
            self._own_free(node.data)
        for node in self._walk(self._meta.main, bytes):
            if node.flags & _SUB_TREE:
                tree = _Tree.unpack(node.data)
                if tree.flags:
                    raise PageDamage(f"unknown flags of database {node.key!r}")
                for _ in self._walk(tree, bytes):
                    pass

    # Meta pages.

    def _latest_meta(self) -> _Meta:
        head = self._read(0, 4096)
        if len(head) < 4096:
            raise PageDamage("the file is shorter than its meta pages")
        page_bytes = _TREE.unpack_from(head, _PAGE.size + _META.size)[0]
        if page_bytes not in _PAGE_SIZES:
            raise PageDamage(f"pages of {page_bytes} bytes")
        metas = [self._meta_page(number, page_bytes) for number in (0, 1)]
        first, second = (meta.transaction for meta in metas)
        # Each transaction writes the page of its parity; both are 0 in a new file.
        if abs(first - second) > 1 or first & 1 or (second and not second & 1):
            raise PageDamage(f"transactions {first} and {second} in the meta pages")
        return metas[first < second]

    def _meta_page(self, number: int, page_bytes: int) -> _Meta:
        data = self._read(number * page_bytes, page_bytes)
        page, _, flags, _, _ = _PAGE.unpack_from(data)
        magic, version, _, map_bytes = _META.unpack_from(data, _PAGE.size)
        if magic == _MAGIC and version != _VERSION and version < 1 << 10:
            raise UnknownVersion(f"version {version} of LMDB's files")
        if (page, flags, magic, version) != (number, _META_PAGE, _MAGIC, _VERSION):
            raise PageDamage(f"meta page {number} is none")
        at = _PAGE.size + _META.size
        free, main = _Tree.unpack(data, at), _Tree.unpack(data, at + _TREE.size)
        last_page, transaction = _META_END.unpack_from(data, at + 2 * _TREE.size)
        if _TREE.unpack_from(data, at)[0] != page_bytes:
            raise PageDamage("two sizes of pages")
        if map_bytes > _MAX_MAP_BYTES or last_page * page_bytes >= map_bytes:
            raise PageDamage(f"meta page {number}: a map of {map_bytes} bytes")
        return _Meta(page_bytes, free, main, last_page, transaction)

    # Trees.

    def _walk(self, tree: _Tree, order: Callable[[bytes], object]) -> Iterator[_Node]:
        """Every leaf node of a tree, in order; checks its pages, its keys' order and its counts."""
        count = _Count()
        if tree.root != _NO_PAGE:
            if not 1 <= tree.depth <= _MAX_DEPTH:
                raise PageDamage(f"a tree of depth {tree.depth}")
            last = None
            for node in self._descend(tree.root, tree.depth, count):
                key = order(node.key)
                if last is not None and not last < key:  # type: ignore[operator]
                    raise PageDamage("keys are out of order")
                last = key
                count.entries += 1
                yield node
        found = (count.branches, count.leaves, count.overflows, count.entries)
        if found != (tree.branches, tree.leaves, tree.overflows, tree.entries):
            raise PageDamage("a tree has not the pages and entries that its record says")

    def _descend(self, page: int, depth: int, count: _Count) -> Iterator[_Node]:
        if time.monotonic() > self._deadline:
            raise _OutOfTime
        self._own(page)
        data = self._read(page * self._meta.page_bytes, self._meta.page_bytes)
        is_leaf = depth == 1
        pointers = self._pointers(page, data, _LEAF if is_leaf else _BRANCH)
        if is_leaf:
            count.leaves += 1
            for at in pointers:
                yield self._leaf_node(page, data, at, count)
            return
        count.branches += 1
        for n, at in enumerate(pointers):
            low, high, top, key_bytes = _NODE.unpack_from(data, at)
            key = data[at + _NODE.size : at + _NODE.size + key_bytes]
            if len(key) != key_bytes:
                raise PageDamage(f"page {page}: a key beyond its end")
            for first, node in enumerate(
                self._descend(low | high << 16 | top << 32, depth - 1, count)
            ):
                # The first key of a branch is never looked at.
                if n and not first and self._is_above(key, node.key):
                    raise PageDamage(f"page {page}: a branch leads astray")
                yield node

    @staticmethod
    def _is_above(separator: bytes, key: bytes) -> bool:
        if len(separator) == len(key) == _U64.size:
            return False  # may be integers; their order is checked from leaf to leaf
        return separator > key

    def _pointers(self, page: int, data: bytes, kind: int) -> tuple[int, ...]:
        number, _, flags, lower, upper = _PAGE.unpack_from(data)
        if (number, flags) != (page, kind):
            raise PageDamage(f"page {page} is another one, or of another kind")
        if not _PAGE.size <= lower <= upper <= len(data) or lower % 2:
            raise PageDamage(f"page {page}: its bounds are impossible")
        pointers = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size)
        if not pointers or min(pointers) < upper or max(pointers) > len(data) - _NODE.size:
            raise PageDamage(f"page {page}: a node beyond its bounds")
        return pointers

    def _leaf_node(self, page: int, data: bytes, at: int, count: _Count) -> _Node:
        low, high, flags, key_bytes = _NODE.unpack_from(data, at)
        size = low | high << 16
        start = at + _NODE.size + key_bytes
        inline = _U64.size if flags & _BIG_DATA else size
        is_known = flags in (0, _BIG_DATA, _SUB_TREE)
        if not is_known or not 0 < key_bytes <= _MAX_KEY_BYTES or start + inline > len(data):
            raise PageDamage(f"page {page}: a node that can't be")
        value = data[start : start + inline]
        if flags & _BIG_DATA:
            value = self._overflow(_U64.unpack(value)[0], size, count)
        return _Node(flags, data[at + _NODE.size : start], size, value)

    def _overflow(self, page: int, size: int, count: _Count) -> bytes:
        pages = -(-(_PAGE.size + size) // self._meta.page_bytes)
        if page + pages > self._meta.last_page + 1:
            raise PageDamage(f"overflow page {page} lies beyond the end")
        for each in range(page, page + pages):
            self._own(each)
        count.overflows += pages
        data = self._read(page * self._meta.page_bytes, _PAGE.size + size)
        number, _, flags, low, high = _PAGE.unpack_from(data)
        if (number, flags, low | high << 16) != (page, _OVERFLOW, pages):
            raise PageDamage(f"overflow page {page} is another one")
        return data[_PAGE.size :]

    # Owners.

    def _own(self, page: int) -> None:
        if not 2 <= page <= self._meta.last_page:
            raise PageDamage(f"page {page} is none of the file's")
        if self._owned[page]:
            raise PageDamage(f"page {page} has two owners")
        self._owned[page] = 1

    def _own_free(self, data: bytes) -> None:
        """A value of the free list: a count, then as many page numbers, the largest first."""
        (count,) = _U64.unpack_from(data)
        if len(data) != _U64.size * (count + 1):
            raise PageDamage("a free list's length is wrong")
        for page in struct.unpack_from(f"<{count}Q", data, _U64.size):
            self._own(page)

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) < length:
            raise PageDamage("the file is cut short")
        return data


def _U64_key(key: bytes) -> object:  # noqa: N802 - named after what it unpacks
    return _U64.unpack(key)[0]

import numpy as np

from spillcache.serve.token_memory import Span, TokenMemory


def span(count, size=10):
    return Span(size, np.arange(count, dtype=np.uint32))


class DictShelf:
    def __init__(self):
        self.spans = {}
        self.asked = []

    def find(self, keys):
        self.asked += keys
        return {key: self.spans[key] for key in keys if key in self.spans}

    def put(self, key, one):
        self.spans[key] = one


def test_what_is_put_is_found():
    memory = TokenMemory()
    assert memory.empty
    memory.put(b"a", span(3))
    assert not memory.empty
    assert memory.find([b"b", b"a"])[b"a"].tokens.tolist() == [0, 1, 2]
    assert set(memory.find([b"b", b"a"])) == {b"a"}


def test_the_least_recently_used_goes_first():
    memory = TokenMemory(limit_bytes=3 * span(100).cost)
    for key in (b"a", b"b", b"c"):
        memory.put(key, span(100))
    memory.find([b"a"])
    memory.put(b"d", span(100))
    assert set(memory.find([b"a", b"b", b"c", b"d"])) == {b"a", b"c", b"d"}
    assert memory.size_bytes == 3 * span(100).cost


def test_a_span_that_is_put_again_counts_once():
    memory = TokenMemory()
    memory.put(b"a", span(5))
    memory.put(b"a", span(7))
    assert memory.size_bytes == span(7).cost
    assert len(memory.find([b"a"])[b"a"].tokens) == 7


def test_what_is_too_large_for_the_memory_is_not_kept():
    memory = TokenMemory(limit_bytes=10)
    memory.put(b"a", span(5))
    assert memory.empty
    assert memory.size_bytes == 0


def test_the_shelf_has_what_ram_has_not():
    memory, shelf = TokenMemory(), DictShelf()
    memory.shelf = shelf
    assert not memory.empty
    memory.put(b"a", span(3))
    assert set(shelf.spans) == {b"a"}
    fresh = TokenMemory()
    fresh.shelf = shelf
    assert set(fresh.find([b"a", b"b"])) == {b"a"}
    shelf.asked.clear()
    assert set(fresh.find([b"a", b"b"])) == {b"a"}
    assert shelf.asked == [b"b"]

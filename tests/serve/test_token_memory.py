from spillcache.serve.token_memory import TokenMemory

HUNDRED = bytes(100)


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
    memory.put(b"a", b"abc")
    assert not memory.empty
    assert memory.find([b"b", b"a"])[b"a"] == b"abc"
    assert set(memory.find([b"b", b"a"])) == {b"a"}


def test_the_least_recently_used_goes_first():
    memory = TokenMemory(limit_bytes=3 * (256 + 100))
    for key in (b"a", b"b", b"c"):
        memory.put(key, HUNDRED)
    memory.find([b"a"])
    memory.put(b"d", HUNDRED)
    assert set(memory.find([b"a", b"b", b"c", b"d"])) == {b"a", b"c", b"d"}
    assert memory.size_bytes == 3 * (256 + 100)


def test_a_span_that_is_put_again_counts_once():
    memory = TokenMemory()
    memory.put(b"a", b"12345")
    memory.put(b"a", b"1234567")
    assert memory.size_bytes == 256 + 7
    assert memory.find([b"a"]) == {b"a": b"1234567"}


def test_what_is_too_large_for_the_memory_is_not_kept():
    memory = TokenMemory(limit_bytes=10)
    memory.put(b"a", b"12345")
    assert memory.empty
    assert memory.size_bytes == 0


def test_the_shelf_has_what_ram_has_not():
    memory, shelf = TokenMemory(), DictShelf()
    memory.shelf = shelf
    assert not memory.empty
    memory.put(b"a", b"abc")
    assert set(shelf.spans) == {b"a"}
    fresh = TokenMemory()
    fresh.shelf = shelf
    assert set(fresh.find([b"a", b"b"])) == {b"a"}
    shelf.asked.clear()
    assert set(fresh.find([b"a", b"b"])) == {b"a"}
    assert shelf.asked == [b"b"]

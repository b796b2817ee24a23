import threading
from pathlib import Path

import pytest

from spillcache.store.buffers import HUGE_PAGE_BYTES, AlignedBuffer, BufferPool, rounded


def test_buffers_are_aligned_and_whole():
    for size in (0, 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1):
        buffer = AlignedBuffer(size)
        assert buffer.size == rounded(size) >= max(size, 1)
        assert buffer.array.ctypes.data % HUGE_PAGE_BYTES == 0
        assert len(buffer.view) == len(buffer.array) == buffer.size
        buffer.view[:3] = b"abc"
        assert bytes(buffer.array[:3]) == b"abc"


def test_a_pool_reuses_what_fits():
    pool = BufferPool(32 << 20)
    buffer = pool.take(5 << 20)
    pool.give(buffer)
    assert pool.kept_bytes == 6 << 20
    assert pool.take(1) is buffer or pool.kept_bytes == 6 << 20
    pool.give(pool.take(6 << 20))
    assert pool.take(4 << 20).size in (4 << 20, 6 << 20)


def test_what_was_given_back_last_is_taken_first():
    pool = BufferPool(16 << 20)
    buffers = [pool.take(1 << 20) for _ in range(3)]
    for buffer in buffers:
        pool.give(buffer)
    assert [pool.take(1 << 20) for _ in range(3)] == buffers[::-1]


def test_a_pool_takes_the_best_fit_but_no_giant():
    pool = BufferPool(64 << 20)
    small, large = AlignedBuffer(4 << 20), AlignedBuffer(32 << 20)
    pool.give(large)
    pool.give(small)
    assert pool.take(3 << 20) is small
    assert pool.take(2 << 20) is not large
    assert pool.take(20 << 20) is large


def test_a_pool_keeps_no_more_than_it_may():
    pool = BufferPool(4 << 20)
    pool.give(AlignedBuffer(6 << 20))
    assert pool.kept_bytes == 0
    first, second, third = (AlignedBuffer(2 << 20) for _ in range(3))
    for buffer in (first, second, third):
        pool.give(buffer)
    assert pool.kept_bytes == 4 << 20
    pool.close()
    assert pool.kept_bytes == 0
    pool.give(first)
    assert pool.kept_bytes == 0


def test_warm_buffers_are_there():
    pool = BufferPool(16 << 20)
    pool.warm(2, 4 << 20)
    assert pool.kept_bytes == 8 << 20


def test_threads_never_share_a_buffer():
    pool = BufferPool(16 << 20)
    wrong = []

    def work(mark: int) -> None:
        for _ in range(50):
            buffer = pool.take(1)
            buffer.array[:64] = mark
            if not (buffer.array[:64] == mark).all():
                wrong.append(mark)
            pool.give(buffer)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _huge_bytes():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def test_buffers_are_made_of_huge_pages_where_the_system_has_them():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("no huge pages here")
    before = _huge_bytes()
    buffers = [AlignedBuffer(8 * HUGE_PAGE_BYTES) for _ in range(2)]
    for buffer in buffers:
        buffer.array[::4096] = 1
    # A system short of memory may give fewer.
    assert _huge_bytes() >= before + 8 * HUGE_PAGE_BYTES

"""Memory that is kept for later: within the RAM tier's bound, and only while no block needs it."""

import threading

import numpy as np
import pytest

from spillcache.cache.ram import RamTier
from spillcache.cache.spare import Spare
from spillcache.store.buffers import HUGE_PAGE_BYTES, AlignedBuffer

MOST = 4 * HUGE_PAGE_BYTES


@pytest.fixture
def ram() -> RamTier:
    return RamTier(MOST)


@pytest.fixture
def spare(ram: RamTier) -> Spare:
    return Spare(ram, threading.Condition(), MOST)


def test_what_was_kept_is_taken_once(ram: RamTier, spare: Spare) -> None:
    buffer = AlignedBuffer(1)
    spare.keep(buffer)
    assert ram.used_bytes == buffer.size
    assert spare.take(buffer.size + 1) is None
    assert spare.take(1) is buffer
    assert ram.used_bytes == 0
    assert spare.take(1) is None


def test_a_larger_one_takes_the_place_of_a_smaller_one_and_not_the_other_way(
    ram: RamTier, spare: Spare
) -> None:
    small, large = AlignedBuffer(1), AlignedBuffer(2 * HUGE_PAGE_BYTES)
    for each in (small, large, small):
        spare.keep(each)
    assert ram.used_bytes == large.size
    assert spare.take(1) is large


def test_nothing_is_kept_without_room(ram: RamTier, spare: Spare) -> None:
    ram.used_bytes = MOST - HUGE_PAGE_BYTES + 1
    spare.keep(AlignedBuffer(1))
    spare.make(1)
    assert spare.take(1) is None
    assert ram.used_bytes == MOST - HUGE_PAGE_BYTES + 1


def test_it_goes_when_a_block_needs_the_room(ram: RamTier, spare: Spare) -> None:
    spare.keep(AlignedBuffer(1))
    assert spare.go()
    assert ram.used_bytes == 0
    assert not spare.go()


def test_memory_is_used_once_before_it_is_kept(ram: RamTier, spare: Spare) -> None:
    spare.make(HUGE_PAGE_BYTES + 1)
    assert ram.used_bytes == 2 * HUGE_PAGE_BYTES
    buffer = spare.take(HUGE_PAGE_BYTES + 1)
    assert buffer is not None
    assert not buffer.array.any()


def test_memory_that_is_not_wanted_any_more_is_not_made(
    ram: RamTier, spare: Spare, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(AlignedBuffer):
        def __init__(self, size_bytes: int) -> None:
            super().__init__(size_bytes)
            assert ram.used_bytes == size_bytes
            spare.make(size_bytes)  # another thread's, which leaves it to this one
            assert spare.go()

    monkeypatch.setattr("spillcache.cache.spare.AlignedBuffer", Slow)
    spare.make(HUGE_PAGE_BYTES)
    assert ram.used_bytes == 0
    assert spare.take(1) is None


def test_free_buffers_of_blocks_make_way_for_it(ram: RamTier, spare: Spare) -> None:
    ram._pool.give(memoryview(np.zeros(MOST, np.uint8)))  # type: ignore[arg-type]
    spare.keep(AlignedBuffer(1))
    assert ram.used_bytes + ram.pooled_bytes <= MOST

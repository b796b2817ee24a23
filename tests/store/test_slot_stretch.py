"""A file that is larger than the memory that it goes through."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from spillcache.errors import SlotFileIOError
from spillcache.store import slot_stretch
from spillcache.store.buffers import AlignedBuffer
from spillcache.store.slot_stretch import Fill, Stretch, stretch_bytes
from spillcache.store.steps import Steps

PLACE = 64 << 10
VIEW = 3 * PLACE // 2
DATA = np.random.default_rng(1).integers(0, 256, 5 << 20, np.uint8).tobytes()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_stretch, "READ_BYTES", PLACE)


@pytest.fixture
def make() -> Iterator[Callable[..., Stretch]]:
    steps = [Steps(), Steps()]

    def made(memory: AlignedBuffer, fill: Fill | None = None, **options: int) -> Stretch:
        def read(view: memoryview, offset: int) -> None:
            view[:] = DATA[offset : offset + len(view)]

        return Stretch(
            fill or read, steps, memory, len(DATA), doing="reading", view_bytes=VIEW,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip

    yield made
    for each in steps:
        each.close(lambda: None)


def views(seed: int) -> Iterator[tuple[int, int]]:
    """Where pieces of the data begin and end, one after another."""
    rng, at = np.random.default_rng(seed), 0
    while at < len(DATA):
        stop = min(len(DATA), at + int(rng.integers(1, VIEW)))
        yield at, stop
        at = stop


@pytest.mark.parametrize("seed", range(5))
def test_every_view_is_of_the_files_bytes(make: Callable[..., Stretch], seed: int) -> None:
    memory = AlignedBuffer(1)
    assert stretch_bytes(VIEW, 2 * VIEW) <= memory.size < len(DATA)
    stretch = make(memory)
    for start, stop in views(seed):
        assert stretch.view(start, stop) == DATA[start:stop]
        stretch.release(stop)


def test_what_is_not_released_stays(make: Callable[..., Stretch]) -> None:
    stretch, held = make(AlignedBuffer(1)), list[tuple[int, int, memoryview]]()
    for start, stop in views(7):
        held.append((start, stop, stretch.view(start, stop)))
        while held[-1][1] - held[0][0] > 2 * VIEW:
            stretch.release(held.pop(0)[1])
        assert all(view == DATA[a:b] for a, b, view in held)


def test_memory_for_all_of_it_keeps_all_of_it(make: Callable[..., Stretch]) -> None:
    stretch = make(AlignedBuffer(len(DATA)))
    found = [stretch.view(start, stop) for start, stop in views(3)]
    assert b"".join(found) == DATA


def test_it_may_begin_anywhere(make: Callable[..., Stretch]) -> None:
    at = 7 * PLACE + 4096
    stretch = make(AlignedBuffer(1), start=at)
    assert stretch.view(at, at + VIEW) == DATA[at : at + VIEW]


def test_no_byte_is_read_over_one_that_is_in_use(make: Callable[..., Stretch]) -> None:
    offsets: list[int] = []
    lock = threading.Lock()

    def read(view: memoryview, offset: int) -> None:
        with lock:
            offsets.append(offset)
        view[:] = DATA[offset : offset + len(view)]

    memory = AlignedBuffer(1)
    stretch = make(memory, read)
    for at in range(0, memory.size - 2 * VIEW - 5 * PLACE, PLACE):
        stretch.view(at, at + PLACE)
    assert max(offsets) < memory.size


def test_a_read_that_fails_is_raised(make: Callable[..., Stretch], tmp_path: Path) -> None:
    def read(view: memoryview, offset: int) -> None:
        if offset >= 4 * PLACE:
            (tmp_path / "nothing").read_bytes()

    stretch = make(AlignedBuffer(1), read)
    stretch.view(0, 4 * PLACE)
    with pytest.raises(SlotFileIOError, match="while reading"):
        stretch.view(4 * PLACE, 5 * PLACE)

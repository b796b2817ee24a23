"""Who runs where. Affinity is a matter of threads, so each test has threads of its own."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from spillcache import processors
from spillcache.processors import NICE, Apart, give_way, keep_to_half

T = TypeVar("T")

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has niceness and processors per thread"
)
divided = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="only Linux lets threads choose, where there are two processors",
)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is."""
    monkeypatch.setattr(processors, "_MOST", 1 << 20)


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def mine() -> set[int]:
    return os.sched_getaffinity(0)


def elsewhere(work: Callable[[], T]) -> T:
    """Run on a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def in_half(number: int) -> set[int]:
    keep_to_half(number)
    return mine()


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@linux
def test_threads_that_they_start_give_way_too() -> None:
    def work() -> int:
        give_way()
        return elsewhere(niceness)

    before = niceness()
    assert elsewhere(work) == NICE
    assert niceness() == before


@divided
def test_halves_have_nothing_in_common_and_leave_nothing_out() -> None:
    halves = [elsewhere(lambda n=n: in_half(n)) for n in range(4)]  # type: ignore[misc]
    assert halves[0] == halves[2]
    assert halves[1] == halves[3]
    assert halves[0] | halves[1] == mine()
    assert not halves[0] & halves[1]
    assert 0 <= len(halves[0]) - len(halves[1]) <= 1


def crossed(apart: Apart) -> set[int]:
    apart.cross()
    return mine()


@divided
def test_two_threads_apart_and_the_first_free_again(
    helper: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        before = mine()
        for home in before:
            monkeypatch.setattr(processors, "_current", lambda home=home: home)
            with Apart() as apart:
                ours, child = mine(), elsewhere(mine)
                theirs = helper.submit(crossed, apart).result()
            assert home in ours
            assert child == ours
            assert ours | theirs == before
            assert not ours & theirs
            assert mine() == before
            assert helper.submit(mine).result() == theirs
        with pytest.raises(KeyError), Apart():
            raise KeyError
        assert mine() == before

    elsewhere(work)


@linux
def test_where_one_is_that_is_asked_the_kernel() -> None:
    def work() -> None:
        for home in mine():
            os.sched_setaffinity(0, {home})
            assert processors._current() == home
            os.sched_setaffinity(0, free)

    free = mine()
    elsewhere(work)


@linux
@pytest.mark.parametrize("most", [1, 1 << 20])
def test_one_processor_and_many_are_not_divided(
    helper: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    free = helper.submit(mine).result()
    monkeypatch.setattr(processors, "_MOST", most)

    def work() -> None:
        if most > 1:
            os.sched_setaffinity(0, {min(free)})
        before = mine()
        assert in_half(1) == before
        with Apart() as apart:
            assert mine() == before
            assert helper.submit(crossed, apart).result() == free
        assert mine() == before

    elsewhere(work)


def test_a_system_that_says_no_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    def tried() -> None:
        give_way()
        keep_to_half(0)
        with Apart() as apart:
            apart.cross()

    free = mine() if sys.platform == "linux" else set()
    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    tried()
    assert free == (mine() if sys.platform == "linux" else set())
    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    tried()


def test_other_systems_have_no_such_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    keep_to_half(0)
    with Apart() as apart:
        apart.cross()

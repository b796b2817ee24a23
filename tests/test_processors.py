"""Who runs where. Affinity is a matter of threads, so each test has threads of its own."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from spillcache import processors
from spillcache.processors import Apart, give_way, keep_to_half

T = TypeVar("T")

divided = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="only Linux lets threads choose, where there are two processors",
)


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


@divided
def test_one_processor_is_not_divided(helper: ThreadPoolExecutor) -> None:
    free = helper.submit(mine).result()

    def work() -> None:
        only = {min(mine())}
        os.sched_setaffinity(0, only)
        assert in_half(1) == only
        with Apart() as apart:
            assert mine() == only
            assert helper.submit(crossed, apart).result() == free
        assert mine() == only

    elsewhere(work)


def test_a_system_that_says_no_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    give_way()
    keep_to_half(0)
    with Apart() as apart:
        apart.cross()


def test_other_systems_have_no_such_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    keep_to_half(0)
    with Apart() as apart:
        apart.cross()

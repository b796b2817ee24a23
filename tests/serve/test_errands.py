"""What other threads have the engine's thread do."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from spillcache.errors import NotReady
from spillcache.serve import errands as module
from spillcache.serve.errands import Errands, GoOn
from spillcache.serve.pace import RestorePace


@pytest.fixture
def errands() -> Errands:
    return Errands(threading.Condition(), RestorePace())


def begun(errands: Errands, work: Callable[[], object], **named: object) -> "Future[object]":
    pool = ThreadPoolExecutor(1)
    future = pool.submit(lambda: errands.do(work, **named))  # type: ignore[arg-type]
    pool.shutdown(wait=False)
    while not errands._waiting and not future.done():
        pass
    return future


def test_work_is_done_when_the_engine_comes_to_it(errands: Errands) -> None:
    done = begun(errands, lambda: 5)
    assert errands.ready
    assert not done.done()
    errands.run(alone=True)
    assert done.result(10) == 5
    assert not errands.ready


def test_work_waits_until_it_may(errands: Errands) -> None:
    may: list[int] = []
    done = begun(errands, lambda: 5, when=lambda: bool(may))
    errands.run(alone=True)
    assert not errands.ready
    may.append(1)
    assert errands.ready
    errands.run(alone=True)
    assert done.result(10) == 5


def test_errors_go_to_who_asked(errands: Errands) -> None:
    done = begun(errands, lambda: 1 // 0)
    errands.run(alone=True)
    with pytest.raises(ZeroDivisionError):
        done.result(10)


def count(blocks: list[int]) -> Callable[[GoOn], int]:
    def work(go_on: GoOn) -> int:
        while len(blocks) < 1000:
            blocks.append(0)
            if not go_on():
                break
        return len(blocks)

    return work


def test_alone_blocks_move_for_a_slice(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 60.0)
    moved = errands.move(count([]))
    errands.run(alone=True)
    assert moved.result(0) == 1000


def test_beside_others_blocks_keep_to_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(module.time, "monotonic", tick)
    pace = RestorePace()
    errands = Errands(threading.Condition(), pace)
    first, second = errands.move(count([])), errands.move(count([]))
    errands.run(alone=False)
    assert first.result(0) == 1  # a block took a second, and nobody has earned more
    assert not second.done()
    pace.others_took(16.0)
    errands.run(alone=False)
    assert second.result(0) == 3


def test_once_closed_all_fail(errands: Errands) -> None:
    waiting = begun(errands, lambda: 5, when=lambda: False)
    errands.close(NotReady("over"))
    for attempt in (lambda: waiting.result(10), lambda: errands.do(lambda: 5)):
        with pytest.raises(NotReady, match="over"):
            attempt()

import asyncio
import threading

import pytest
from fake_service import wait_until

from spillcache.errors import NotReady
from spillcache.serve.text_thread import (
    in_text_thread,
    leave_text_threads,
    text_threads_at_work,
)


def test_it_returns_and_raises_what_the_work_does() -> None:
    async def both() -> str:
        with pytest.raises(ValueError, match="no"):
            await in_text_thread(lambda: int("no"))
        return await in_text_thread(lambda: threading.current_thread().name)

    assert asyncio.run(both()) == "spillcache-text"


def test_the_loop_ends_without_waiting_for_work_that_nobody_awaits() -> None:
    go, ended = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(30)
        ended.set()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_text_thread(work), 0.05)

    asyncio.run(give_up())
    assert not ended.is_set()
    go.set()
    assert ended.wait(10)


def test_who_waits_is_told_when_the_server_leaves() -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(30)

    async def leave() -> None:
        waits = asyncio.create_task(in_text_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        over = asyncio.create_task(in_text_thread(lambda: 1))
        while not over.done():
            await asyncio.sleep(0.001)
        leave_text_threads()
        leave_text_threads()
        with pytest.raises(NotReady, match="stopping"):
            await waits
        with pytest.raises(NotReady, match="stopping"):
            await in_text_thread(lambda: 1)
        assert over.result() == 1
        assert text_threads_at_work()
        go.set()

    asyncio.run(leave())
    assert wait_until(lambda: not text_threads_at_work())

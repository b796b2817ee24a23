import asyncio
import threading

import pytest

from spillcache.serve.text_thread import in_text_thread


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

"""Work on text beside the event loop, in threads that never hold up the end of the process.

``asyncio.to_thread`` would do, but its threads are joined when the loop ends, and nothing can call
back a thread that llama.cpp's tokeniser keeps busy, be it for minutes.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from spillcache.errors import NotReady

Result = TypeVar("Result")


class _Waiting:
    """Who waits on one event loop; all on that loop."""

    def __init__(self) -> None:
        self.futures: set[asyncio.Future[object]] = set()
        self.ended = False


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = WeakKeyDictionary()
_at_work: set[threading.Thread] = set()
"""Threads that have begun and not ended; a thread adds and removes itself."""


async def in_text_thread(work: Callable[[], Result]) -> Result:
    """``work()``, in a daemon thread; what it raises is raised here. On the event loop.

    Raises NotReady once ``leave_text_threads`` was called on this loop, whatever the work does.
    """
    loop = asyncio.get_running_loop()
    waiting = _loops.setdefault(loop, _Waiting())
    if waiting.ended:
        raise _stopped()
    done: asyncio.Future[object] = loop.create_future()

    def finish(result: Result | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        _at_work.discard(threading.current_thread())
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    thread = threading.Thread(target=run, name="spillcache-text", daemon=True)
    waiting.futures.add(done)
    _at_work.add(thread)
    thread.start()
    try:
        return cast("Result", await done)
    finally:
        waiting.futures.discard(done)


def leave_text_threads() -> None:
    """Whoever waits for such a thread on the running loop gets NotReady, now and from now on; the
    threads themselves can't be stopped.
    """
    waiting = _loops.setdefault(asyncio.get_running_loop(), _Waiting())
    waiting.ended = True
    for future in waiting.futures:
        if not future.done():
            future.set_exception(_stopped())


def text_threads_at_work() -> bool:
    """Whether any such thread has not ended. Any thread."""
    return bool(_at_work)


def _stopped() -> NotReady:
    return NotReady("the server is stopping; ask again when it is back")

"""Work on text beside the event loop, in threads that never hold up the end of the process.

``asyncio.to_thread`` would do, but its threads are joined when the loop ends, and a long text of
rare characters can keep llama.cpp's tokeniser busy for minutes after its client has gone.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

Result = TypeVar("Result")


async def in_text_thread(work: Callable[[], Result]) -> Result:
    """``work()``, in a daemon thread; what it raises is raised here. On the event loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def finish(result: Result | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("Result", result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="spillcache-text", daemon=True).start()
    return await done

"""Calls to a disk that may never come back: each is given so long, and then left behind."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from spillcache.errors import SlotFileError, SlotFileIOError, SlotFileNoRoom
from spillcache.store.files import is_no_space

Result = TypeVar("Result")

STEP_S = 60.0
"""A read, write, flush or rename that takes longer hangs: a slow disk moves a piece in a tenth."""


class Step(Generic[Result]):
    """A call that was begun. ``wait`` on the thread that began it."""

    def __init__(self, future: "Future[Result]", doing: str, steps: "Steps") -> None:
        self._future = future
        self._doing = doing
        self._steps = steps

    def wait(self) -> Result:
        """What it returned, or raised; raises SlotFileIOError when it hangs, and for an OSError,
        or, when the filesystem is full, SlotFileNoRoom.
        """
        try:
            return self._future.result(self._steps.limit_s)
        except OSError as error:  # a TimeoutError is one, too
            raise self._told(error) from error

    def _told(self, error: OSError) -> SlotFileError:
        if not self._future.done():
            self._steps.hangs = True
            return SlotFileIOError(
                f"the disk did not answer within {self._steps.limit_s:g} s while {self._doing}; "
                "nobody waits for it any more: look at the disk and at the system's log"
            )
        if is_no_space(error):
            return SlotFileNoRoom(f"the filesystem is full while {self._doing}")
        return SlotFileIOError(f"{error.strerror or error} while {self._doing}")


class Steps:
    """A daemon thread that makes calls in the order in which they were begun. For one thread."""

    def __init__(self, limit_s: float = STEP_S) -> None:
        self.limit_s = limit_s
        self.hangs = False
        """Whether a call did not come back in time."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="spillcache-slot-disk", daemon=True).start()

    def begin(self, call: Callable[[], Result], doing: str) -> Step[Result]:
        """Have ``call`` made; ``doing`` completes "… failed while"."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # whoever waits for it raises it
                future.set_exception(error)

        self._calls.put(run)
        return Step(future, doing, self)

    def do(self, call: Callable[[], Result], doing: str) -> Result:
        """``begin`` and ``wait``."""
        return self.begin(call, doing).wait()

    def close(self, last: Callable[[], Any], *, wait: bool = True) -> None:
        """Have ``last`` called after all others, whatever it raises, and end the thread. Waits for
        that, unless it is not to, or the disk hangs.
        """
        step = self.begin(last, "cleaning up")
        self._calls.put(None)
        if wait and not self.hangs:
            with contextlib.suppress(SlotFileError):
                step.wait()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

"""Which share of the processors threads get that work beside one another."""

import contextlib
import ctypes
import os
import sys
import threading
from typing import Self

NICE = 10
"""With a processor to share, ten times less of it than the threads that compute answers."""
_current = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: 0)
"""The processor that the calling thread runs on."""


def give_way() -> None:
    """Let the calling thread, and those that it starts, come after the engine's where processors
    are few; nothing where the system has no such thing.

    An engine's threads wait for one another, so to take one processor from them is to take all.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox that does not allow it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def keep_to_half(number: int) -> None:
    """Keep the calling thread to every other of the processors that it may use: those of even
    numbers to the one half, those of odd numbers to the other.

    Who is woken for some milliseconds of work is often put behind the one that woke it, though
    another processor is free; so two threads that share work would take turns.
    """
    halves = _halves()
    if halves is not None:
        _keep(halves[number % 2])


class Apart:
    """While inside, the thread that made it stays in one half of its processors, the one where it
    is, as do threads that it starts; helpers that call ``cross`` are in the other.

    Threads that take the interpreter's lock from each other are best off together, one that writes
    or copies meanwhile apart from them.
    """

    def __init__(self) -> None:
        self._halves = _halves()
        self._here = self._halves is not None and _current() in self._halves[1]

    def __enter__(self) -> Self:
        if self._halves is not None:
            _keep(self._halves[self._here])
        return self

    def __exit__(self, *_: object) -> None:
        if self._halves is not None:
            _keep(self._halves[0] | self._halves[1])

    def cross(self) -> None:
        """Have the calling thread, a helper, stay in the other half, from now on."""
        if self._halves is not None:
            _keep(self._halves[not self._here])


def _halves() -> tuple[set[int], set[int]] | None:
    """What the calling thread may run on; None where it can't be divided."""
    if sys.platform != "linux":
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return (set(allowed[::2]), set(allowed[1::2])) if len(allowed) > 1 else None


def _keep(processors: set[int]) -> None:
    with contextlib.suppress(OSError):  # a sandbox that does not allow it
        os.sched_setaffinity(0, processors)

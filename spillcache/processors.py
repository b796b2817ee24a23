"""Which share of the processors threads get that work beside one another."""

import contextlib
import ctypes
import os
import sys
import threading
from typing import Self

NICE = 10
"""With a processor to share, ten times less of it than the threads that compute answers."""
_MOST = 4
"""Where there are more, the kernel has choice enough, and knows which are near each other."""
_getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: 0)


def give_way() -> None:
    """Let the calling thread, and those that it starts, come after the engine's where processors
    are few; nothing where the system has no such thing.

    An engine's threads wait for one another, so to take one processor from them is to take all.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox that does not allow it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def keep_to_half(number: int) -> None:
    """Keep the calling thread, as long as it lives, to every other of the processors that it may
    use, where they are few: those of even numbers to the one half, those of odd numbers to the
    other. Once in a thread.

    Who is woken for some milliseconds of work is often put behind the one that woke it, though
    another processor is free; so two threads that share work would take turns.
    """
    halves = _halves()
    if halves is not None:
        _keep(halves[number % 2])


class Apart:
    """While inside, the calling thread stays in one half of its processors, the one where it is, as
    do threads that it starts; helpers that call ``cross`` are in the other. Nothing happens where
    processors are many.

    Threads that take the interpreter's lock from each other are best off together, one that writes
    or copies meanwhile apart from them. Entered and left by one thread.
    """

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._theirs: set[int] = set()

    def __enter__(self) -> Self:
        halves = _halves()
        if halves is not None:
            self._ours, self._theirs = halves if _current() in halves[0] else halves[::-1]
            _keep(self._ours)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            _keep(self._ours | self._theirs)

    def cross(self) -> None:
        """Have the calling thread, a helper, stay in the other half, from now on. Never raises."""
        if self._theirs:
            _keep(self._theirs)


def _current() -> int:
    """The processor that the calling thread runs on."""
    return int(_getcpu())


def _halves() -> tuple[set[int], set[int]] | None:
    """What the calling thread may run on; None where it is not to be, or can't be, divided."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox that does not allow it
            allowed = sorted(os.sched_getaffinity(0))
            if 1 < len(allowed) <= _MOST:
                return set(allowed[::2]), set(allowed[1::2])
    return None


def _keep(processors: set[int]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # as above
            os.sched_setaffinity(0, processors)

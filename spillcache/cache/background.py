"""Threads that work while others answer."""

import contextlib
import os
import sys
import threading

NICE = 10
"""With a processor to share, ten times less of it than the threads that compute answers."""


def give_way() -> None:
    """Let the calling thread, and those that it starts, come after the engine's where processors
    are few; nothing where the system has no such thing.

    An engine's threads wait for one another, so to take one processor from them is to take all.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox that does not allow it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)

"""Calls to a disk that may not come back."""

import errno
import threading

import pytest

from spillcache.errors import SlotFileIOError, SlotFileNoRoom
from spillcache.store.steps import Steps


def fail(error: Exception) -> None:
    raise error


def test_calls_are_made_in_order_and_give_what_they_return() -> None:
    steps, done = Steps(), []
    begun = [steps.begin(lambda i=i: done.append(i) or i, "counting") for i in range(5)]
    assert [step.wait() for step in begun] == done == [0, 1, 2, 3, 4]
    steps.close(lambda: done.append("last"))
    assert done[-1] == "last"


def test_errors_say_what_was_done() -> None:
    steps = Steps()
    with pytest.raises(SlotFileIOError, match="broken while the file was read"):
        steps.do(lambda: fail(OSError(errno.EIO, "broken")), "the file was read")
    for full in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(SlotFileNoRoom, match="full while"):
            steps.do(lambda n=full: fail(OSError(n, "full")), "the file was written")
    with pytest.raises(SlotFileIOError, match="late while"):
        steps.do(lambda: fail(TimeoutError(errno.ETIMEDOUT, "late")), "the file was read")
    with pytest.raises(KeyError):
        steps.do(lambda: fail(KeyError("a bug")), "x")
    assert not steps.hangs
    steps.close(lambda: fail(OSError("never mind")))


def test_what_hangs_is_left_behind_and_cleaned_up_after_when_it_is_back() -> None:
    steps, go, cleaned = Steps(limit_s=0.05), threading.Event(), threading.Event()
    with pytest.raises(SlotFileIOError, match=r"did not answer within 0.05 s while it was flushed"):
        steps.do(go.wait, "it was flushed")
    assert steps.hangs
    steps.close(cleaned.set)  # does not wait
    assert not cleaned.is_set()
    go.set()
    assert cleaned.wait(10)

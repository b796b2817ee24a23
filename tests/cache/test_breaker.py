from spillcache.cache.breaker import Breaker
from spillcache.errors import StoreIOError


def test_it_pauses_after_three_failures_in_a_row_and_doubles() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    error = StoreIOError("disk on fire")
    for _ in range(2):
        breaker.failed(error, "write")
    assert breaker.closed
    breaker.worked("write")
    for _ in range(2):
        breaker.failed(error, "write")
    assert breaker.closed, "not in a row"
    breaker.failed(error, "write")
    assert not breaker.closed
    assert breaker.reason == "KV_STORE_IO"
    now[0] = 59.9
    assert not breaker.closed
    now[0] = 60.0
    assert breaker.closed, "one probe"
    breaker.failed(error, "write")
    now[0] = 179.0
    assert not breaker.closed, "the pause doubled"
    now[0] = 180.0
    assert breaker.closed
    breaker.worked("write")
    assert breaker.reason == ""
    for _ in range(3):
        breaker.failed(error, "write")
    now[0] = 240.0
    assert breaker.closed, "back to 60 s after a success"


def test_the_pause_has_an_end() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    for _ in range(30):
        breaker.failed(StoreIOError("x"), "read")
        now[0] += 3600.0
        assert breaker.closed


def test_a_burst_within_a_pause_does_not_prolong_it() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    for _ in range(20):
        breaker.failed(StoreIOError("x"), "read")
    now[0] = 60.0
    assert breaker.closed


def test_working_writes_say_nothing_of_reads() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    error = StoreIOError("no sector")
    for failures in range(3):
        assert breaker.closed, failures
        breaker.failed(error, "read")
        breaker.worked("write")
    assert not breaker.closed
    breaker.worked("write")
    now[0] = 60.0
    breaker.worked("write")
    assert breaker.reason == "KV_STORE_IO", "nothing was read meanwhile"
    breaker.failed(error, "read")
    now[0] = 179.0
    assert not breaker.closed, "the pause doubled all the same"
    now[0] = 180.0
    breaker.worked("read")
    assert breaker.reason == ""
    for _ in range(3):
        breaker.failed(error, "read")
    now[0] = 240.0
    assert breaker.closed, "back to 60 s"


def test_a_hang_pauses_at_once_until_an_answer_comes() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    breaker.hangs(StoreIOError("a write takes for ever"), "write")
    assert not breaker.closed
    breaker.hangs(StoreIOError("still"), "write")
    now[0] = 60.0
    assert breaker.closed, "it was not prolonged"
    breaker.hangs(StoreIOError("still"), "write")
    now[0] = 100.0
    assert not breaker.closed
    breaker.worked("read")
    assert not breaker.closed
    breaker.worked("write")
    assert breaker.closed, "the write came to its end"
    assert breaker.reason == ""

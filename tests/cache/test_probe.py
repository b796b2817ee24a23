import threading

from spillcache.cache.probe import EVERY_S, Probe


def test_one_at_a_time_and_not_too_often() -> None:
    now, ran, go = [0.0], [], threading.Event()
    probe = Probe(lambda: now[0])
    assert probe.join(0)

    def work() -> None:
        go.wait(10)
        ran.append(now[0])

    assert probe.start(work)
    now[0] += 2 * EVERY_S
    assert not probe.start(work), "the first still runs"
    assert not probe.join(0.01)
    go.set()
    assert probe.join(10)
    assert probe.start(work)
    assert probe.join(10)
    now[0] += EVERY_S - 1
    assert not probe.start(work)
    assert len(ran) == 2


def test_one_that_fails_harms_nobody() -> None:
    def work() -> None:
        raise ZeroDivisionError("oops")

    probe = Probe(lambda: 0.0)
    assert probe.start(work)
    assert probe.join(10)

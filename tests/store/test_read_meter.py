from spillcache.store.read_meter import Reading, ReadMeter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_once_however_many_reads_are_under_way() -> None:
    clock = Clock()
    meter = ReadMeter(clock)
    assert meter.read() == Reading(0, 0.0, 0)
    meter.began(1000)
    clock.now += 1
    meter.began(500)
    clock.now += 1
    assert meter.read() == Reading(0, 2.0, 1500)
    meter.ended(1000, 1000)
    clock.now += 1
    assert meter.read() == Reading(1000, 3.0, 500)
    meter.ended(500, 400)
    clock.now += 60
    assert meter.read() == Reading(1400, 3.0, 0), "nobody waited for anything"
    meter.began(10)
    clock.now += 2
    meter.ended(10, 0)
    assert meter.read() == Reading(1400, 5.0, 0)


def test_what_was_read_since() -> None:
    earlier, later = Reading(100, 1.0, 50), Reading(300, 3.0, 70)
    assert later.since(earlier) == Reading(200, 2.0, 70)

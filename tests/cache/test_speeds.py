"""What was measured, what follows from it, and what is remembered."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillcache.cache.speeds import DISK_NOTE, DiskSpeed, PrefillCost, Speeds
from spillcache.config import MIB
from spillcache.errors import StoreIndexError
from spillcache.store.read_meter import Reading

NS, OTHER = b"namespac", b"another1"
MB = 1_000_000


def machine(per_token_s: float, per_thousand_before_s: float) -> Callable[[int, int], float]:
    """What a call takes on it: attention makes later tokens dearer."""

    def seconds(start: int, stop: int) -> float:
        before = (stop * stop - start * start) / 2000
        return per_token_s * (stop - start) + per_thousand_before_s * before

    return seconds


def computed(cost: PrefillCost, takes: Callable[[int, int], float], tokens: int) -> None:
    for start in range(0, tokens, 512):
        cost.add(start, start + 512, takes(start, start + 512))


class Notes(dict[str, bytes]):
    """A store's notes, which may fail."""

    fails = False

    def recall(self, key: str) -> bytes | None:
        self._check()
        return self.get(key)

    def remember(self, key: str, value: bytes) -> None:
        self._check()
        self[key] = value

    def _check(self) -> None:
        if self.fails:
            raise StoreIndexError("the index is damaged")

    def speeds(self, now_s: float = 1e9) -> Speeds:
        return Speeds(self.recall, self.remember, lambda: now_s)


def slow_disk(speeds: Speeds, bytes_s: float, size: int = 8 * MB) -> None:
    """A restore reads ``size`` bytes at that speed, after all that was read so far."""
    before = speeds._taken
    speeds.read(Reading(before.done_bytes + size, before.busy_s + size / bytes_s, 0))


def test_nothing_is_known_before_the_first_call() -> None:
    assert PrefillCost().seconds(0, 512) is None
    assert DiskSpeed().seconds(100) is None
    assert DiskSpeed().seconds(0) == 0.0, "nothing to read takes no time"


@given(st.floats(1e-5, 0.1), st.floats(0, 0.1))
def test_both_shares_of_prefill_are_found(per_token_s: float, per_thousand_s: float) -> None:
    cost, takes = PrefillCost(), machine(per_token_s, per_thousand_s)
    computed(cost, takes, 8192)
    for start, stop in ((0, 2048), (2048, 8192), (0, 65536), (100_000, 100_064)):
        assert cost.seconds(start, stop) == pytest.approx(takes(start, stop), rel=1e-3)


def test_one_kind_of_call_tells_only_a_cost_per_token() -> None:
    cost = PrefillCost()
    for _ in range(3):
        cost.add(0, 512, 1.0)
    assert cost.seconds(0, 1024) == pytest.approx(2.0)
    assert cost.seconds(4096, 4608) == pytest.approx(1.0)


def test_noise_never_makes_computing_cost_less_than_nothing() -> None:
    cost = PrefillCost()
    cost.add(0, 512, 2.0)
    cost.add(512, 1024, 1.0)
    far = cost.seconds(100_000, 100_512)
    assert far is not None
    assert far > 0
    other = PrefillCost()
    other.add(0, 512, 0.001)
    for start in range(512, 8192, 512):
        other.add(start, start + 512, 0.001 * start)
    near = other.seconds(0, 64)
    assert near is not None
    assert near >= 0


def test_a_call_that_took_ages_counts_little() -> None:
    cost = PrefillCost()
    computed(cost, machine(0.001, 0), 4096)
    cost.add(4096, 4608, 3600.0)
    seconds = cost.seconds(0, 512)
    assert seconds is not None
    assert seconds < 1.2


def test_a_machine_that_got_slower_or_quicker_is_followed() -> None:
    for factor in (4, 0.25):
        cost = PrefillCost()
        computed(cost, machine(0.001, 0.0001), 16384)
        for _ in range(4):
            computed(cost, machine(0.001 * factor, 0.0001 * factor), 8192)
        expected = machine(0.001 * factor, 0.0001 * factor)(0, 8192)
        assert cost.seconds(0, 8192) == pytest.approx(expected, rel=0.25)


def test_the_disks_speed_is_that_of_large_reads_and_its_latency_that_of_small_ones() -> None:
    disk = DiskSpeed()
    disk.add(10 * MB, 2.0, 0)
    assert disk.seconds(5 * MB) == pytest.approx(1.0)
    for _ in range(30):
        disk.add(50_000, 0.01 + 0.3, 0)
    assert disk.latency_s == pytest.approx(0.3, rel=0.01)
    assert disk.seconds(5 * MB) == pytest.approx(1.3, rel=0.01)
    disk.add(10 * MB, 2.3, 0)
    assert disk.bytes_s == pytest.approx(5 * MB, rel=0.01)


def test_a_small_read_is_better_than_nothing() -> None:
    disk = DiskSpeed()
    disk.add(0, 1.0, 7.0)
    disk.add(1000, 0.0, 7.0)
    assert disk.seconds(1000) is None
    disk.add(100_000, 0.5, 7.0)
    assert disk.seconds(1 * MB) == pytest.approx(5.0)
    assert disk.seen_s == 7.0


def test_another_world_is_believed_at_once_and_noise_slowly() -> None:
    disk = DiskSpeed()
    disk.add(100 * MB, 0.1, 0)
    disk.add(10 * MB, 2.0, 0)
    assert disk.bytes_s == pytest.approx(5 * MB)
    disk.add(10 * MB, 1.8, 0)
    assert disk.bytes_s is not None
    assert 5 * MB < disk.bytes_s < 5.3 * MB
    disk.add(100 * MB, 0.1, 0)
    assert disk.bytes_s == pytest.approx(1000 * MB)


def test_speeds_are_remembered_across_a_restart() -> None:
    notes = Notes()
    speeds = notes.speeds()
    takes = machine(0.001, 0.0005)
    for start in range(0, 4096, 512):
        speeds.prefilled(NS, start, start + 512, takes(start, start + 512))
    speeds.imported(NS, 100, 0.02)
    slow_disk(speeds, 5 * MB)
    speeds.save()
    again = notes.speeds()
    assert again.prefill_s(NS, 0, 8192) == pytest.approx(takes(0, 8192), rel=0.01)
    assert again.import_s(NS, 50) == pytest.approx(0.01)
    assert again.read_s(10 * MB) == pytest.approx(2.0)
    assert again.prefill_s(OTHER, 0, 64) is None, "another model is as quick as it is"
    assert again.import_s(OTHER, 64) == 0.0


def test_a_processs_first_call_is_not_counted() -> None:
    speeds = Notes().speeds()
    speeds.prefilled(NS, 0, 512, 100.0)
    assert speeds.prefill_s(NS, 0, 512) is None
    speeds.prefilled(NS, 512, 1024, 1.0)
    assert speeds.prefill_s(NS, 512, 1024) == pytest.approx(1.0)


def test_an_import_follows_what_is_measured() -> None:
    speeds = Notes().speeds()
    speeds.imported(NS, 0, 1.0)
    speeds.imported(NS, 10, 0.0)
    assert speeds.import_s(NS, 10) == 0.0
    speeds.imported(NS, 10, 1.0)
    speeds.imported(NS, 10, 10.0)
    assert speeds.import_s(NS, 10) == pytest.approx(10.0)


def test_what_is_read_counts_once() -> None:
    speeds = Notes().speeds()
    speeds.read(Reading(10 * MB, 1.0, 0))
    speeds.read(Reading(10 * MB, 1.0, 0))
    speeds.read(Reading(12 * MB, 3.0, 0))
    assert speeds.disk_bytes_s == pytest.approx(MB)


def test_a_probe_only_ever_makes_the_disk_quicker() -> None:
    speeds = Notes().speeds(now_s=5000.0)
    assert speeds.disk_age_s() == 5000.0
    slow_disk(speeds, 5 * MB)
    speeds.probed(3 * MB)
    speeds.probed(None)
    assert speeds.disk_bytes_s == pytest.approx(5 * MB)
    speeds.probed(900 * MB)
    assert speeds.disk_bytes_s == pytest.approx(900 * MB)
    assert speeds.disk_age_s() == 0.0


def test_notes_are_written_when_something_has_changed() -> None:
    notes = Notes()
    speeds = notes.speeds()
    speeds.save()
    assert notes == {}, "nothing is known"
    slow_disk(speeds, 5 * MB)
    speeds.save()
    before = notes[DISK_NOTE]
    slow_disk(speeds, 5.1 * MB)
    speeds.save()
    assert notes[DISK_NOTE] == before
    speeds.save(final=True)
    assert notes[DISK_NOTE] != before
    final = notes[DISK_NOTE] = b"{}"
    speeds.save(final=True)
    assert notes[DISK_NOTE] == final, "it has not changed since"


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"not json",
        b"[]",
        b"7",
        b"\xff",
        json.dumps({"bytes_s": -1, "latency_s": "x", "seen_s": None}).encode(),
        b'{"bytes_s": NaN, "prefill": [1, 2]}',
        b'{"bytes_s": true, "prefill": {"a": 1}, "import_block_s": 1e999}',
    ],
)
def test_a_note_that_makes_no_sense_is_none(note: bytes) -> None:
    notes = Notes()
    notes[DISK_NOTE] = notes[f"speed:{NS.hex()}"] = note
    speeds = notes.speeds()
    assert speeds.read_s(MIB) is None
    assert speeds.prefill_s(NS, 0, 512) is None
    assert speeds.import_s(NS, 1) == 0.0
    slow_disk(speeds, 5 * MB)
    speeds.save()
    assert notes.speeds().disk_bytes_s == pytest.approx(5 * MB)


def test_notes_that_fail_are_done_without() -> None:
    notes = Notes()
    notes.fails = True
    speeds = notes.speeds()
    slow_disk(speeds, 5 * MB)
    speeds.save()
    assert speeds.disk_bytes_s == pytest.approx(5 * MB)
    notes.fails = False
    speeds.save()
    assert notes.speeds().disk_bytes_s == pytest.approx(5 * MB), "the next save tries again"


def test_rates_are_those_of_one_namespace() -> None:
    speeds = Notes().speeds()
    rates = speeds.of(NS)
    assert rates.restore_s(10, 0) == 0.0
    assert rates.restore_s(10, 1) is None
    speeds.imported(NS, 1, 0.001)
    slow_disk(speeds, 5 * MB)
    assert rates.restore_s(10, 10 * MB) == pytest.approx(2.01)
    speeds.prefilled(NS, 0, 512, 1.0)
    speeds.prefilled(NS, 0, 512, 1.0)
    assert rates.prefill_s(0, 512) == pytest.approx(1.0)

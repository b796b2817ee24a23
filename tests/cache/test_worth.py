"""The choice between restoring and computing: right decisions with right values."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillcache.cache.policy import prefixes
from spillcache.cache.worth import (
    LEAST_GAIN_S,
    Verdict,
    bytes_s_of,
    choose,
    disk_bytes_of,
    gives_up,
)
from spillcache.state import Geometry, Part
from spillcache.store.read_meter import Reading

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY
MB = 1_000_000
SIZE = 64
PLAIN = Geometry()
GEMMA = Geometry(window_blocks=8)
KV_BYTES, WINDOW_BYTES = 197_000, 985_000
"""A block of gemma3-270m."""


@dataclass(frozen=True)
class Machine:
    """Rates of a machine that is as quick everywhere."""

    token_s: float = 0.00125
    disk_bytes_s: float = 3e9
    block_s: float = 0.0002

    def prefill_s(self, start: int, stop: int) -> float | None:
        return self.token_s * (stop - start)

    def restore_s(self, blocks: int, disk_bytes: int) -> float | None:
        return disk_bytes / self.disk_bytes_s + self.block_s * blocks


@dataclass(frozen=True)
class Unknown:
    """Rates of which one is not known."""

    prefill: float | None
    restore: float | None

    def prefill_s(self, start: int, stop: int) -> float | None:
        return self.prefill

    def restore_s(self, blocks: int, disk_bytes: int) -> float | None:
        return self.restore


def on_disk(blocks: int, in_ram: int = 0) -> Callable[[int], int]:
    """A prompt of gemma3-270m, of which RAM has the first blocks."""
    sizes = [{K: KV_BYTES, W: WINDOW_BYTES} if i >= in_ram else {} for i in range(blocks)]
    return disk_bytes_of(sizes, GEMMA)


def decide(machine: Machine, tokens: int, live: int = 0, in_ram: int = 0) -> Verdict:
    blocks = tokens // SIZE
    return choose(range(blocks, 0, -1), live, SIZE, on_disk(blocks, in_ram), machine)


def test_what_a_prefix_needs_from_disk() -> None:
    bytes_of = on_disk(32)
    assert bytes_of(32) == 32 * KV_BYTES + 8 * WINDOW_BYTES
    assert bytes_of(3) == 3 * (KV_BYTES + WINDOW_BYTES)
    assert on_disk(32, in_ram=30)(32) == 2 * (KV_BYTES + WINDOW_BYTES)
    assert on_disk(32, in_ram=20)(20) == 0
    hybrid = disk_bytes_of([{K: 10}, {K: 10, B: 5}, {K: 10, B: 7}], Geometry(has_boundary=True))
    assert [hybrid(n) for n in (1, 2, 3)] == [10, 25, 37]
    recurrent = disk_bytes_of([{B: 5}, {}], Geometry(has_kv=False, has_boundary=True))
    assert [recurrent(n) for n in (1, 2)] == [5, 0]


def test_nothing_beyond_what_the_engine_holds_is_a_miss() -> None:
    assert choose([], 0, SIZE, lambda _: 0, Machine()) == Verdict("miss", 0)
    assert decide(Machine(), 2048, live=2048).word == "miss"
    assert decide(Machine(), 2048, live=2000).word == "restore"


def test_a_quick_disk_is_worth_it_from_the_first_blocks_on() -> None:
    for tokens in (128, 2048, 16384):
        verdict = decide(Machine(), tokens)
        assert (verdict.word, verdict.blocks) == ("restore", tokens // SIZE)


@pytest.mark.parametrize(
    ("mb_s", "tokens", "word"),
    [
        (5.0, 2048, "compute"),  # 14.2 MB in 2.8 s against 2.56 s
        (5.0, 8192, "restore"),  # 33 MB in 6.6 s against 10.2 s
        (0.5, 2048, "compute"),
        (0.5, 8192, "compute"),
        (50.0, 2048, "restore"),
    ],
)
def test_a_slow_disk_is_worth_it_where_it_is_quicker(mb_s: float, tokens: int, word: str) -> None:
    verdict = decide(Machine(disk_bytes_s=mb_s * MB), tokens)
    assert verdict.word == word
    assert verdict.held == tokens // SIZE
    assert verdict.blocks == (verdict.held if word == "restore" else 0)
    assert verdict.compute_s == pytest.approx(0.00125 * tokens)
    size = tokens // SIZE * KV_BYTES + 8 * WINDOW_BYTES
    assert verdict.restore_s == pytest.approx(size / mb_s / MB + 0.0002 * tokens / SIZE)


def test_where_ram_has_a_part_only_that_part_may_be_worth_it() -> None:
    """Half a megabyte per second: not one block from disk pays, but what RAM has does."""
    verdict = decide(Machine(disk_bytes_s=0.5 * MB), 8192, in_ram=40)
    assert (verdict.word, verdict.blocks, verdict.held) == ("partial", 40, 128)
    assert "the first 40 of 128 blocks are restored" in str(verdict)


def test_the_live_prefix_is_what_it_is_compared_with() -> None:
    """5 MB/s: 6.6 s for all of it; computing the last 2,000 tokens takes 2.5 s."""
    assert decide(Machine(disk_bytes_s=5 * MB), 8192).word == "restore"
    verdict = decide(Machine(disk_bytes_s=5 * MB), 8192, live=6192)
    assert (verdict.word, verdict.blocks) == ("compute", 0)
    assert verdict.compute_s == pytest.approx(2.5)


def test_ram_that_is_slower_than_computing_is_left() -> None:
    verdict = choose([8, 7], 0, SIZE, lambda _: 0, Machine(token_s=1e-5, block_s=0.01))
    assert verdict.word == "compute"
    assert str(verdict).startswith("8 blocks are computed, not restored: importing would take 0.08")


def test_a_gain_that_nobody_notices_decides_nothing() -> None:
    for slower_s, word in ((LEAST_GAIN_S - 0.001, "restore"), (LEAST_GAIN_S + 0.001, "compute")):
        verdict = choose([1], 0, SIZE, lambda _: 9, Unknown(0.1, 0.1 + slower_s))
        assert verdict.word == word


@pytest.mark.parametrize("rates", [None, Unknown(None, 9.0), Unknown(9.0, None)])
def test_what_was_not_measured_is_tried(rates: Unknown | None) -> None:
    verdict = choose([10, 9], 0, SIZE, lambda _: 9, rates)
    assert (verdict.word, verdict.blocks) == ("restore", 10)
    assert str(verdict) == "restore"


def test_a_hybrid_is_restored_up_to_a_boundary_that_pays() -> None:
    """The last boundary is on disk and large; an earlier one is in RAM."""
    geometry = Geometry(has_boundary=True)
    sizes = [{} if i < 8 else {K: 1000} for i in range(16)]
    sizes[15] = {K: 1000, B: 50 * MB}
    parts = [{K, B} if i in (3, 7, 15) else {K} for i in range(16)]
    of = disk_bytes_of(sizes, geometry)
    verdict = choose(prefixes(parts, geometry, 16), 0, SIZE, of, Machine(disk_bytes_s=5 * MB))
    assert (verdict.word, verdict.blocks) == ("partial", 8)


@given(
    sizes=st.lists(
        st.dictionaries(st.sampled_from([K, W]), st.integers(0, 10 * MB)), min_size=1, max_size=12
    ),
    live=st.integers(0, 800),
    bytes_s=st.floats(1e4, 1e9),
    token_s=st.floats(1e-6, 1e-2),
    windows=st.integers(0, 3),
)
def test_no_other_prefix_would_have_been_quicker(
    sizes: list[dict[Part, int]], live: int, bytes_s: float, token_s: float, windows: int
) -> None:
    geometry = Geometry(window_blocks=windows)
    machine = Machine(token_s, bytes_s, 1e-4)
    of = disk_bytes_of(sizes, geometry)
    end = len(sizes) * SIZE
    verdict = choose(range(len(sizes), 0, -1), live, SIZE, of, machine)
    if verdict.word == "miss":
        assert end <= live
        return

    def takes(blocks: int) -> float:
        if not blocks:
            return token_s * (end - live)
        read_s = machine.restore_s(blocks, of(blocks))
        assert read_s is not None
        return read_s + token_s * (end - blocks * SIZE)

    best = min(takes(blocks) for blocks in (0, *range(live // SIZE + 1, len(sizes) + 1)))
    slack = max(LEAST_GAIN_S, 0.05 * takes(0))
    assert takes(verdict.blocks) <= best + slack + 1e-9


@pytest.mark.parametrize(
    ("left", "pace", "ends"),
    [
        (33 * MB, Reading(0, 0.3, 4 * MB), False),  # may only be slow to begin
        (33 * MB, Reading(1 * MB, 2.0, 4 * MB), True),
        (33 * MB, Reading(5 * MB, 1.0, 4 * MB), False),  # 5 MB/s
        (1 * MB, Reading(32 * MB, 64.0, 0), False),  # it is nearly there
        (6 * MB, Reading(27 * MB, 54.0, 0), True),
        (1000, Reading(0, 9.9, 1000), False),
        (1000, Reading(0, 10.1, 1000), True),  # a disk that hangs
    ],
)
def test_a_restore_that_turns_out_slow_is_given_up(left: int, pace: Reading, ends: bool) -> None:
    """Of 33 MB, against ten seconds of computing."""
    bytes_s = bytes_s_of(pace)
    assert bytes_s is not None
    assert gives_up(left, bytes_s, 10.0) is ends


def test_before_the_first_read_there_is_nothing_to_tell() -> None:
    assert bytes_s_of(Reading(0, 0.0, 0)) is None

from hypothesis import given
from hypothesis import strategies as st

from spillcache.cache.policy import RANKS, needed, rank, restorable
from spillcache.state import Geometry, Part

PLAIN = Geometry()
SWA = Geometry(window_blocks=2)
HYBRID = Geometry(has_boundary=True, boundary_stride=8)
RECURRENT = Geometry(has_kv=False, has_boundary=True)
K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY


def test_plain_needs_every_kv() -> None:
    assert restorable([{K}, {K}, {K}], PLAIN, 9) == 3
    assert restorable([{K}, set(), {K}], PLAIN, 9) == 1
    assert restorable([set(), {K}], PLAIN, 9) == 0
    assert restorable([{K}] * 5, PLAIN, 2) == 2


def test_windows_are_needed_at_the_end_only() -> None:
    assert restorable([{K}, {K, W}, {K, W}], SWA, 9) == 3
    assert restorable([{K}, {K, W}, {K}], SWA, 9) == 0
    assert restorable([{K, W}, {K}, {K}], SWA, 9) == 1, "a prefix shorter than the window"
    assert restorable([{K, W}, {K, W}, {K}, {K, W}], SWA, 9) == 2


def test_a_boundary_must_lie_exactly_at_the_end() -> None:
    assert restorable([{K}, {K, B}, {K}], HYBRID, 9) == 2
    assert restorable([{K}, {K, B}, {K}], HYBRID, 1) == 0
    assert restorable([set(), set(), {B}], RECURRENT, 9) == 3
    assert restorable([{K}, set(), {B}], HYBRID, 9) == 0


@given(
    st.lists(st.sets(st.sampled_from(list(Part))), max_size=12),
    st.builds(
        Geometry,
        has_kv=st.booleans(),
        window_blocks=st.integers(0, 4),
        has_boundary=st.booleans(),
    ),
    st.integers(0, 14),
)
def test_it_is_the_longest_prefix_whose_needed_parts_are_present(
    present: list[set[Part]], geometry: Geometry, limit: int
) -> None:
    def complete(n: int) -> bool:
        return all(set(needed(geometry, i, n)) <= present[i] for i in range(n))

    want = max(n for n in range(min(limit, len(present)) + 1) if complete(n))
    assert restorable(present, geometry, limit) == want


def test_windows_go_before_boundaries_before_kv() -> None:
    assert RANKS[W] > RANKS[B] > RANKS[K]


def test_ends_and_every_eighth_window_go_with_kv() -> None:
    swa = Geometry(window_blocks=2)
    ranks = [rank(W, swa, block, 40) for block in range(40)]
    assert [block for block in range(40) if not ranks[block]] == [14, 15, 30, 31, 38, 39]
    assert set(ranks) == {0, RANKS[W]}
    assert [rank(K, swa, block, 40) for block in range(40)] == [0] * 40
    assert [rank(B, HYBRID, block, 3) for block in range(3)] == [RANKS[B], RANKS[B], 0]


def test_what_has_rank_0_restores_the_chain_and_its_strides() -> None:
    swa = Geometry(window_blocks=3)
    kept = [{p for p in (K, W) if not rank(p, swa, block, 60)} for block in range(60)]
    assert [restorable(kept, swa, n) for n in (60, 59, 50, 24, 23)] == [60, 48, 48, 24, 0]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillcache.serve.prompt_plan import gives_logits, live_prefix, next_stop, takes_boundary
from spillcache.state import Geometry

PLAIN = Geometry()
HYBRID = Geometry(has_boundary=True, boundary_stride=16)


def plan(start: int, total: int, call: int, geometry: Geometry = PLAIN) -> list[tuple[int, int]]:
    calls = []
    while start < total:
        stop = next_stop(start, total, call, geometry)
        calls.append((start, stop))
        start = stop
    return calls


def test_whole_blocks_then_the_tail() -> None:
    assert plan(0, 1100, 512) == [(0, 512), (512, 1024), (1024, 1088), (1088, 1100)]
    assert plan(0, 1024, 512) == [(0, 512), (512, 1024)], "and then its last token again"
    assert plan(0, 1024, 512, HYBRID) == [(0, 512), (512, 960), (960, 1024)]
    assert plan(0, 64, 512) == [(0, 64)]
    assert plan(0, 5, 512) == [(0, 5)]


def test_a_turn_that_goes_on_in_mid_block_first_completes_the_block() -> None:
    assert plan(1037, 1300, 512) == [(1037, 1088), (1088, 1280), (1280, 1300)]


def test_calls_end_where_a_boundary_is_taken() -> None:
    calls = plan(0, 2500, 768, HYBRID)
    assert calls == [(0, 768), (768, 1024), (1024, 1792), (1792, 2048), (2048, 2496), (2496, 2500)]
    assert [b for _, b in calls if takes_boundary(b, 2500, HYBRID)] == [1024, 2048, 2496]
    assert not takes_boundary(1024, 2500, PLAIN)
    assert not takes_boundary(0, 10, HYBRID)
    assert takes_boundary(64, 70, Geometry(has_boundary=True))


@given(
    st.integers(0, 3000),
    st.integers(1, 3000),
    st.sampled_from([64, 100, 128, 512]),
    st.sampled_from([PLAIN, HYBRID]),
)
def test_every_plan_is_canonical(start: int, more: int, call: int, geometry: Geometry) -> None:
    total = start + more
    calls = plan(start, total, call, geometry)
    assert calls[0][0] == start
    assert calls[-1][1] == total
    assert all(0 < b - a <= call for a, b in calls)
    assert all(b % 64 == 0 for _, b in calls[:-1])
    cold = {b for _, b in plan(0, total, call, geometry)}
    if start % 64 == 0:
        assert geometry.blocks_reusable(total) * 64 in cold | {0}


@pytest.mark.parametrize(
    ("held", "shared", "total", "want"),
    [
        (1037, 1037, 1300, 1037),  # a conversation's next turn goes on from its end
        (1037, 1037, 1037, 1024),  # the same prompt: its last call is computed again
        (1024, 1024, 1024, 1024),  # it ends with a block: its last token is taken back
        (1037, 700, 1300, 640),  # a branch: from a block boundary
        (1037, 30, 1300, 0),
        (0, 0, 100, 0),
    ],
)
def test_live_prefix(held: int, shared: int, total: int, want: int) -> None:
    assert live_prefix(held, shared, total, PLAIN) == want


@pytest.mark.parametrize(
    ("start", "stop", "total", "plain", "hybrid"),
    [
        (1024, 1100, 1100, True, True),  # the tail
        (512, 1024, 1100, False, False),
        (512, 960, 1024, False, False),
        (1023, 1024, 1024, True, True),
        (960, 1024, 1024, False, True),  # recurrent state can't go back by a token
        (0, 1, 1, True, True),
    ],
)
def test_which_call_gives_the_logits(
    start: int, stop: int, total: int, plain: bool, hybrid: bool
) -> None:
    assert gives_logits(start, stop, total, PLAIN) == plain
    assert gives_logits(start, stop, total, HYBRID) == hybrid


def test_whole_blocks_give_no_logits_the_last_token_alone_does() -> None:
    assert not gives_logits(512, 1024, 1024, PLAIN)

import pytest

from spillcache.serve.pace import CALL_S, PREFILL_SHARE, RESTORE_SHARE, PrefillPace, RestorePace

STEP = 0.020


def run(pace: RestorePace, block: float, steps: int = 1000, step: float = STEP) -> list[float]:
    """How long each step's imports took, when blocks are always there."""
    slices = []
    for _ in range(steps):
        taken = 0.0
        while pace.allows():
            pace.took(block)
            taken += block
        slices.append(taken)
        pace.others_took(step)
    return slices


@pytest.mark.parametrize("block", [0.0001, 0.001, 0.003, 0.012, 0.5])
def test_restores_get_their_share_and_no_more(block: float) -> None:
    """What is less than a block at the end of a slice is lost: half of it, at the very worst."""
    slices = run(RestorePace(), block)
    share = RESTORE_SHARE * STEP * len(slices)
    assert 0.5 * share <= sum(slices) <= share + block
    assert max(slices) <= max(RESTORE_SHARE * STEP, block) + 1e-9


def test_a_block_that_takes_long_comes_every_few_steps() -> None:
    block = 3.5 * RESTORE_SHARE * STEP
    slices = run(RestorePace(), block, steps=12)
    assert [each > 0 for each in slices] == [i in (0, 7, 11) for i in range(12)]
    assert max(slices) == block, "one at a time"


def test_what_was_not_used_is_not_saved_up() -> None:
    pace = RestorePace()
    pace.took(0.001)
    for _ in range(1000):
        pace.others_took(STEP)
    assert run(pace, 0.001, steps=1) == [pytest.approx(RESTORE_SHARE * STEP)]


def test_a_step_may_go_without_but_not_two_in_a_row() -> None:
    pace = RestorePace()
    assert [pace.rests(True) for _ in range(4)] == [True, False, True, False]
    assert not pace.rests(False)
    assert pace.rests(True)


def test_one_slow_block_does_not_stop_what_follows() -> None:
    pace = RestorePace()
    pace.took(0.2)
    slices = run(pace, 0.001, steps=200)
    assert slices[0] == 0
    assert sum(slices[100:]) == pytest.approx(RESTORE_SHARE * STEP * 100, rel=0.2)


def test_answers_get_their_share_beside_a_prefill() -> None:
    pace, prefill, answers = PrefillPace(), 0.0, 0.0
    for _ in range(1000):
        if pace.is_due():
            pace.took(0.11, 64)
            prefill += 0.11
        pace.answers_took(0.012)
        answers += 0.012
    assert prefill == pytest.approx(PREFILL_SHARE * answers, rel=0.1)


def test_without_answers_a_prefill_is_always_due() -> None:
    pace = PrefillPace()
    pace.took(5.0, 512)
    assert not pace.is_due()
    pace.answers_took(0.0)
    assert pace.is_due()


def test_answers_do_not_save_up_time_before_a_prefill() -> None:
    pace = PrefillPace()
    for _ in range(1000):
        pace.answers_took(0.01)
    pace.took(0.1, 64)
    assert not pace.is_due()


def test_a_call_beside_answers_is_as_long_as_they_can_bear() -> None:
    pace = PrefillPace()
    assert pace.call_tokens(512, 64) == 64, "nothing is known yet"
    pace.took(CALL_S / 200, 1)
    assert pace.call_tokens(512, 64) == 192
    assert pace.call_tokens(128, 64) == 128
    slow = PrefillPace()
    slow.took(10.0, 10)
    assert slow.call_tokens(512, 64) == 64, "never less than a block"

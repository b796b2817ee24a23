"""Headers that name a conversation are hints for the choice of a slot, and nothing else."""

from pathlib import Path

import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.serve import slots
from spillcache.serve.session import session_of

NAMES = ("x-session-id", "session_id")
A, B = b"a" * 16, b"b" * 16


def test_the_first_header_with_a_value_counts() -> None:
    one = session_of({"session_id": "abc"}, NAMES)
    assert len(one) == 16
    assert one == session_of({"x-session-id": " abc ", "session_id": "def"}, NAMES)
    assert one == session_of({"x-session-id": " ", "session_id": "abc"}, NAMES)
    assert one != session_of({"session_id": "abd"}, NAMES)
    assert b"abc" not in one


def test_without_the_flag_or_the_header_there_is_none() -> None:
    assert session_of({"x-session-id": "abc"}, ()) == b""
    assert session_of({"other": "abc"}, NAMES) == b""


@pytest.fixture
def model(gguf_model: ModelShelf) -> Path:
    return gguf_model("llama")


def held(stack: Stack) -> list[int]:
    return [stack.engine.length(slot.index) for slot in stack.scheduler._slots]


SYSTEM, SHORT = prompt(256), prompt(128)


def test_a_rewritten_history_takes_its_own_slot(model: Path) -> None:
    """Else it would be forked into an empty one, and its old history stay live."""
    with Stack(model, None, slots=3) as stack:
        stack.answer([*SHORT, *prompt(300, seed=5)], 2, session=A)
        again = stack.answer([*SHORT, *prompt(100, seed=6)], 2, session=A)
        assert again.cached == {"live": 128}
        assert held(stack) == [229, 0, 0]
    with Stack(model, None, slots=3) as stack:
        stack.answer([*SHORT, *prompt(300, seed=5)], 2)
        stack.answer([*SHORT, *prompt(100, seed=6)], 2)
        assert sorted(held(stack)) == [0, 229, 429]


def test_sessions_share_a_beginning_and_keep_their_slots(model: Path) -> None:
    """A sub-agent with the same system prompt must not take its parent's slot."""
    with Stack(model, None, slots=2) as stack:
        stack.answer([*SYSTEM, 5, 6, 7], 2, session=A)
        other = stack.answer([*SYSTEM, 8, 9], 2, session=B)
        assert other.cached == {"live": 256}
        assert held(stack) == [260, 259]
    with Stack(model, None, slots=2) as stack:
        stack.answer([*SYSTEM, 5, 6, 7], 2)
        stack.answer([*SYSTEM, 8, 9], 2)
        assert held(stack) == [259, 0]


def test_what_another_slot_holds_more_of_is_still_used(model: Path) -> None:
    long = prompt(600, seed=3)
    with Stack(model, None, slots=2) as stack:
        stack.answer(SHORT, 2, session=A)
        stack.answer(long, 2, session=B)
        again = stack.answer([*long[:512], 4, 5], 2, session=A)
        assert again.cached == {"live": 512}
        assert held(stack) == [515, 601]


def test_with_one_slot_all_sessions_take_it(model: Path) -> None:
    with Stack(model, None, slots=1) as stack:
        stack.answer([*SYSTEM, 5], 2, session=A)
        assert stack.answer([*SYSTEM, 6], 2, session=B).cached["live"] == 256
        assert stack.answer([*SYSTEM, 5, 7], 2, session=A).cached["live"] == 256


def test_a_session_is_no_key_to_state(model: Path) -> None:
    with Stack(model, None, slots=1) as stack:
        stack.answer(SYSTEM, 2, session=A, salt=b"one")
        assert stack.answer(SYSTEM, 2, session=A, salt=b"two").cached == {}


def test_slots_of_sessions_outlast_others_for_a_while(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[int]:
        with Stack(model, None, slots=2) as stack:
            stack.answer(prompt(100, seed=1), 2, session=A)
            stack.answer(prompt(150, seed=2), 2)
            stack.answer(prompt(200, seed=3), 2)
            return held(stack)

    assert kept() == [101, 201]
    monkeypatch.setattr(slots, "SESSION_S", 0.0)
    assert kept() == [201, 151]


def test_an_evicted_session_still_goes_through_ram(model: Path) -> None:
    with Stack(model, None, slots=1) as stack:
        first = stack.answer(SYSTEM, 2, session=A)
        stack.answer(prompt(300, seed=4), 2, session=B)
        again = stack.answer([*SYSTEM, *first.tokens, 5], 2, session=A)
        assert again.cached["ram"] >= 256

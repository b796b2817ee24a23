import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spillcache.serve.answer_text import AnswerText


def no_tokens(token: int) -> bytes:
    raise AssertionError(f"token {token} was not expected")


def run(pieces: list[bytes], stop: tuple[str, ...]) -> tuple[list[str], str | None]:
    answer = AnswerText(no_tokens, stop)
    out = [answer.push(piece) for piece in pieces]
    return [*out, answer.finish()], answer.stopped


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """By brute force: the stop string that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        for stop in sorted((s for s in stops if s), key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


few_letters = st.text(alphabet="abé\n🙂", max_size=40)


@given(
    text=few_letters,
    stops=st.lists(few_letters.map(lambda t: t[:5]), max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
@example(text="abab", stops=["abb", "ba"], cuts=[1, 2, 3])
@example(text="aab", stops=["ab"], cuts=[1, 2])
def test_text_and_stop_do_not_depend_on_the_cuts(text, stops, cuts):
    pieces, stopped = run(cut(text.encode(), cuts), tuple(stops))
    assert ("".join(pieces), stopped) == expected(text, tuple(stops))


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 100), max_size=10))
def test_broken_utf8_becomes_replacement_characters(data, cuts):
    pieces, stopped = run(cut(data, cuts), ())
    assert "".join(pieces) == data.decode("utf-8", "replace")
    assert stopped is None


@given(text=few_letters, stop=few_letters.filter(bool))
def test_only_what_may_become_a_stop_string_is_held_back(text, stop):
    answer = AnswerText(no_tokens, (stop,))
    emitted = ""
    for character in text:
        emitted += answer.push(character.encode())
        if answer.stopped:
            break
        seen = text[: len(emitted)] + answer._held
        longest = max(k for k in range(len(stop)) if seen.endswith(stop[:k]))
        assert len(answer._held) == longest


def test_a_stop_string_over_several_tokens():
    pieces, stopped = run([b"Hello\n", b"Us", b"er", b": more"], ("\nUser:",))
    assert pieces == ["Hello", "", "", "", ""]
    assert stopped == "\nUser:"


def test_a_false_alarm_is_emitted():
    pieces, stopped = run([b"x\nUs", b"ual"], ("\nUser:",))
    assert pieces == ["x", "\nUsual", ""]
    assert stopped is None


def test_what_is_held_back_comes_at_the_end():
    pieces, _ = run([b"x\nUs", b"\xf0\x9f"], ("\nUser:",))
    assert pieces == ["x", "", "\nUs�"]


def test_nothing_after_the_stop_string():
    answer = AnswerText(no_tokens, ("END",))
    assert answer.push(b"a END b") == "a "
    assert answer.push(b"c") == ""
    assert answer.finish() == ""
    assert answer.stopped == "END"


def test_finish_twice_gives_nothing_more():
    answer = AnswerText(no_tokens, ("END",))
    assert answer.push(b"aE") == "a"
    assert answer.finish() == "E"
    assert answer.finish() == ""
    assert answer.push(b"ND") == "ND"
    assert answer.stopped is None


def test_the_longest_of_stop_strings_that_end_together():
    assert run([b"say </s>"], ("s>", "</s>", "</s>")) == (["say ", ""], "</s>")


def test_tokens_are_looked_up():
    answer = AnswerText([b"\xc3", b"\xa9"].__getitem__, ())
    assert [answer.push_token(0), answer.push_token(1)] == ["", "é"]


@pytest.mark.parametrize("stop", ["a" * 1000 + "b", "ab" * 500])
def test_a_hard_stop_string_takes_linear_time(stop):
    text = stop[:-1].encode() * 200
    answer = AnswerText(no_tokens, (stop,))
    start = time.perf_counter()
    for at in range(0, len(text), 4):
        answer.push(text[at : at + 4])
        if answer.stopped:
            break
    assert time.perf_counter() - start < 3.0

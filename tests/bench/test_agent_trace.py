"""Traces as agents leave them, and the arithmetic of a cache that forgets nothing."""

import json
import re

import pytest
from agent_trace import Conversation, Turn, Unlimited, interleaved, make_trace, read_traces, shared

from spillcache.errors import ConfigError


def tokenize(text: str, *, first: bool) -> list[int]:
    return [1] * first + [ord(each) for each in text]


def test_a_session_is_read_in_the_order_of_its_times(tmp_path):
    rows = [(3, "b", "abcd"), (2, "a", "xy"), (1, "b", "ab"), (4, "b", "abcdefgh"), (5, "b", "x")]
    lines = [json.dumps({"timestamp": t, "session_id": s, "input": text}) for t, s, text in rows]
    (tmp_path / "trace").write_text("\n".join(lines))
    found = read_traces([tmp_path / "trace"], tokenize, 6)
    texts = {
        each.name: ["".join(map(chr, turn.tokens[1:])) for turn in each.turns] for each in found
    }
    assert texts == {"b": ["ab", "abcd"], "a": ["xy"]}
    assert not any(turn.goes_on for each in found for turn in each.turns)


@pytest.mark.parametrize("text", ["no json", '{"timestamp": 1}', "[1]"])
def test_what_is_no_trace_is_said(tmp_path, text):
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "trace"))):
        read_traces([tmp_path / "trace"], tokenize, 100)


def test_a_turn_goes_on_from_the_answer_or_forgets_it():
    before = [1, 2, 3, 40, 41]
    assert Turn([9], goes_on=True).prompt(before) == [1, 2, 3, 40, 41, 9]
    assert Turn([1, 2, 3, 9]).prompt(before) == [1, 2, 3, 9]


def test_made_agents_share_a_beginning_and_only_one_forgets_answers():
    made = make_trace(tokenize, conversations=3, turns=3, words=20)
    assert [len(each.turns) for each in made] == [3, 3, 3]
    first = [each.turns[0].tokens for each in made]
    assert shared(first[0], first[1]) == shared(first[0], first[2]) > 100
    assert [[turn.goes_on for turn in each.turns] for each in made] == [
        [False, True, True], [False, True, True], [False, False, False],
    ]  # fmt: skip
    last = made[-1].turns
    assert last[1].tokens[: len(last[0].tokens)] == last[0].tokens
    assert made == make_trace(tokenize, conversations=3, turns=3, words=20)


def test_conversations_take_turns():
    a, b = Conversation("a", [Turn([1]), Turn([2]), Turn([3])]), Conversation("b", [Turn([4])])
    order = [(each.name, turn.tokens) for each, turn in interleaved([a, b])]
    assert order == [("a", [1]), ("b", [4]), ("a", [2]), ("a", [3])]


def test_what_could_be_reused():
    cache = Unlimited(4)
    assert cache.reuse([1, 2, 3]) == (0, 0, 0)
    cache.keep([1, 2, 3, 4, 5, 6])
    cache.keep([7, 8])
    assert cache.reuse([1, 2, 3, 4, 5, 9]) == (4, 4, 5)
    assert cache.reuse([1, 2, 3, 4]) == (3, 3, 3), "the last token is always computed"
    assert cache.reuse([1, 2, 3, 4, 5, 6, 7]) == (4, 6, 6), "the turn is gone on with"
    assert cache.reuse([1, 2, 3, 4, 5, 6]) == (4, 4, 5), "its tail serves longer prompts only"
    assert cache.reuse([2, 3, 4, 5]) == (0, 0, 0)

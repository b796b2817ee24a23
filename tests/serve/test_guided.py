"""Grammars and shares through the scheduler, on a real engine."""

import dataclasses
import threading
from collections.abc import Iterator

import pytest
from models import ModelShelf
from stack import GREEDY, Answer, Stack, collect, prompt

from spillcache.errors import RequestError
from spillcache.serve.job import TextEvent


@pytest.fixture(scope="module")
def stack(gguf_model: ModelShelf) -> Iterator[Stack]:
    with Stack(gguf_model("llama"), None, slots=2, threads=1) as running:
        yield running


def guided(stack: Stack, grammar: str) -> dict[str, object]:
    return {"sampling": dataclasses.replace(GREEDY, guide=stack.engine.guide("gbnf", grammar))}


def test_an_answer_ends_with_its_grammar(stack: Stack) -> None:
    answer = stack.answer(prompt(100), 50, **guided(stack, 'root ::= "yes" | "no"'))
    assert answer.text in {"yes", "no"}
    assert answer.done is not None
    assert (answer.done.reason, answer.done.stop_string) == ("stop", None)
    assert answer.done.usage.generated == len(answer.tokens)


def test_a_limit_comes_before_its_end(stack: Stack) -> None:
    answer = stack.answer(prompt(100), 5, **guided(stack, "root ::= [a-z]{2000}"))
    assert (len(answer.text), answer.done and answer.done.reason) == (5, "length")


def test_a_grammar_that_leads_nowhere_fails_its_own_request(stack: Stack) -> None:
    alone = stack.answer(prompt(90, seed=3), 30)
    other = stack.submit(prompt(90, seed=3), 30)
    lost = stack.submit(prompt(100, seed=4), 30, **guided(stack, 'root ::= "a" x\nx ::= x'))
    with pytest.raises(RequestError, match="grammar: "):
        collect(lost)
    assert collect(other).tokens == alone.tokens
    assert stack.answer(prompt(100, seed=4), 3).tokens, "its slot is free again"


def side_by_side(stack: Stack, **second: object) -> list[Answer]:
    """Two answers, the second with more to its request: begun in the same step, in empty slots, so
    that their cells lie alike each time.
    """
    for slot in (0, 1):
        stack.scheduler.actions.erase(slot)
    busy, go_on = threading.Event(), threading.Event()
    stack.scheduler._errands.move(lambda _: (busy.set(), go_on.wait(60)))
    assert busy.wait(60)
    cold = {"cache_prompt": False}
    events = [
        stack.submit(prompt(90, seed=5), 20, slot=0, **cold),
        stack.submit(prompt(80, seed=6), 20, slot=1, **cold, **second),
    ]
    go_on.set()
    return [collect(each) for each in events]


def test_a_neighbour_is_not_guided(stack: Stack) -> None:
    other, free = side_by_side(stack)
    again, digits = side_by_side(stack, **guided(stack, "root ::= [0-9]{20}"))
    assert digits.text.isdecimal()
    assert not free.text.isdecimal()
    assert again.tokens == other.tokens


def test_shares_come_with_each_token(stack: Stack) -> None:
    sampling = dataclasses.replace(GREEDY, n_probs=2)
    events = stack.submit(prompt(80, seed=7), 5, sampling=sampling)
    for _ in range(5):
        event = events.get(timeout=60)
        assert isinstance(event, TextEvent)
        assert event.shares is not None
        assert event.shares.token == event.token == event.shares.top[0][0]
        assert len(event.shares.top) == 2

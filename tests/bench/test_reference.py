"""The judge: what it says is right, and what it can tell."""

import random

import pytest
from models import ModelShelf
from reference import Reference
from soak import other_block
from stack import Stack


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2"])
def model(request, gguf_model: ModelShelf):
    return gguf_model(request.param)


@pytest.fixture(scope="module")
def reference(model):
    reference = Reference(model, 1024, flash_attention=True)
    yield reference
    reference.close()


def tokens(count: int, seed: int) -> list[int]:
    return [random.Random(f"{seed} {i}").randrange(5, 512) for i in range(count)]


@pytest.mark.parametrize("length", [40, 200, 256])
def test_it_answers_as_a_server_that_keeps_nothing(model, reference, length):
    prompt = tokens(length, 1)
    with Stack(model, None, ram=False, flash_attention="on") as stack:
        expected = stack.answer(prompt, 12).tokens
    assert reference.answer(prompt, 12) == expected
    assert reference.judge(prompt, expected).same


def test_it_knows_another_prompt_by_its_answer(reference):
    prompt = tokens(300, 2)
    answer = reference.answer(prompt, 12)
    noise = reference.noise(prompt, tokens(200, 3), 12)
    assert 0 <= noise < 0.5
    for block in (0, 2, 4):
        verdict = reference.judge(other_block(prompt, block, 512), answer)
        assert not verdict.same
        assert verdict.behind > 2 * noise


def test_one_near_tie_does_not_condemn_the_rest(reference):
    prompt = tokens(100, 4)
    answer = reference.answer(prompt, 6)
    other = [*answer[:3], (answer[3] + 1) % 500 + 5]
    verdict = reference.judge(prompt, [*other, *reference.answer(prompt + other, 2)])
    assert not verdict.same
    alone = reference.judge(prompt, other)
    assert alone.behind > 0
    assert verdict.behind == pytest.approx(alone.behind, abs=0.2)

import pytest

from spillcache.cli.bench_prompts import PromptMaker
from spillcache.errors import BenchError


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


def by_words(text: str) -> list[int]:
    return [hash(word) for word in text.split()]


@pytest.mark.parametrize("length", [1, 32, 1000, 4096])
@pytest.mark.parametrize("tokenize", [by_bytes, by_words])
def test_prompts_have_the_exact_length_and_another_first_token(
    length: int, tokenize: object
) -> None:
    maker = PromptMaker(tokenize)  # type: ignore[arg-type]
    prompts = [maker.prompt(length) for _ in range(5)]
    assert {len(prompt) for prompt in prompts} == {length}
    assert len({prompt[0] for prompt in prompts}) == 5


def test_prompts_are_the_same_in_every_run_and_no_loop() -> None:
    one, again = PromptMaker(by_bytes), PromptMaker(by_bytes)
    first = one.prompt(3000)
    assert again.prompt(3000) == first
    words = bytes(first).decode().split()
    assert len(set(words)) > 50
    assert bytes(first[:64]) not in bytes(first[64:])


def test_a_tiny_vocabulary_runs_out() -> None:
    maker = PromptMaker(lambda text: [ord(char) % 2 for char in text])
    maker.prompt(4)
    maker.prompt(4)
    with pytest.raises(BenchError, match="no more than 2"):
        maker.prompt(4)

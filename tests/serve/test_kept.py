"""How many of a prompt's tokens the tiers keep, as ``usage`` says it."""

from pathlib import Path

import pytest
from models import ModelShelf
from stack import Stack, prompt

KINDS = ["llama", "gemma3", "lfm2", "qwen35", "mamba"]


def kept(stack: Stack, tokens: list[int], **request: bool) -> int:
    answer = stack.answer(tokens, 80, **request)
    assert answer.done is not None
    usage = answer.done.usage
    assert usage.kept + usage.cached_total <= usage.prompt
    return usage.kept


@pytest.mark.parametrize("kind", KINDS)
def test_whole_blocks_are_kept(gguf_model: ModelShelf, kind: str) -> None:
    """Of the prompt: those of the answer do not count."""
    with Stack(gguf_model(kind), None) as stack:
        assert kept(stack, prompt(300)) == 256
        assert kept(stack, prompt(40, seed=2)) == 0
        assert kept(stack, prompt(63, seed=4)) == 0


@pytest.mark.parametrize("count", [64, 128, 320])
def test_a_prompt_that_ends_with_a_block(gguf_model: ModelShelf, count: int) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        assert kept(stack, prompt(count)) == count
        assert kept(stack, prompt(count)) <= 1, "its last token is computed again"


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_only_what_was_computed_counts(gguf_model: ModelShelf, kind: str) -> None:
    with Stack(gguf_model(kind), None) as stack:
        said = prompt(300)
        said += stack.answer(said, 20).tokens
        answer = stack.answer([*said, *prompt(200, seed=3)[1:]], 1)
        assert answer.done is not None
        usage = answer.done.usage
        assert usage.cached_total == 319
        assert usage.kept == usage.prompt // 64 * 64 - 319


@pytest.mark.parametrize("request_", [{"cache_store": False}, {"cache_prompt": False}])
def test_who_asks_not_to_be_kept_is_not(gguf_model: ModelShelf, request_: dict[str, bool]) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        assert kept(stack, prompt(300), **request_) == 0
        # What it left in the slot is kept by who goes on from it, but that did not compute it.
        assert kept(stack, prompt(300)) == 0


def test_without_tiers_nothing_is_kept(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, ram=False) as stack:
        assert kept(stack, prompt(300)) == 0


def test_what_finds_no_room_is_not_kept(gguf_model: ModelShelf) -> None:
    with Stack(gguf_model("llama"), None, cache={"ram_bytes": 1 << 19}) as stack:
        assert stack.cache is not None
        count = kept(stack, prompt(3000))
        assert 0 < count < 2944
        assert count % 64 == 0


def test_what_moved_to_disk_meanwhile_is_kept(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d", cache={"ram_bytes": 8 << 20}) as stack:
        assert kept(stack, prompt(1000)) == 960

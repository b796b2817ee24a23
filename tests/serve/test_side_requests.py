"""Requests that store nothing, on the whole path: what they leave, and what they don't."""

from pathlib import Path

import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.store.block_store import BlockStore

OFF = ({"cache_store": False}, {"cache_prompt": False})


def objects(disk: Path) -> int:
    return BlockStore.inspect(disk).usage().objects


@pytest.mark.parametrize("request_", OFF)
def test_nothing_of_it_is_stored_in_ram_or_on_disk(
    gguf_model: ModelShelf, tmp_path: Path, request_: dict[str, bool]
) -> None:
    with Stack(gguf_model("lfm2"), tmp_path / "d") as stack:
        stack.answer(prompt(300), 80, **request_)
        assert stack.cache is not None
        assert stack.cache.status()["blocks"] == 0
        stack.answer(prompt(200, seed=2), 1)
        assert stack.answer(prompt(300), 1).cached == {}
    with Stack(gguf_model("lfm2"), tmp_path / "d") as stack:
        assert stack.answer(prompt(330), 1).cached == {"disk": 300}, "of the last"


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("request_", OFF)
def test_a_conversation_that_goes_on_from_it_is_stored_as_a_whole(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, request_: dict[str, bool]
) -> None:
    """A title is asked for first; the conversation itself then finds its beginning live."""
    model, system = gguf_model(kind), prompt(320)
    talk = [*system, *prompt(200, seed=3)]
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(system, 1, **request_)
        first = stack.answer(talk, 4)
        assert first.cached["live"] == 320
    with Stack(model, tmp_path / "d") as stack:
        again = stack.answer(talk, 4)
        assert again.cached == {"disk": 512}
        assert again.tokens == first.tokens


def test_a_fork_of_it_is_stored_as_well(gguf_model: ModelShelf, tmp_path: Path) -> None:
    model, system = gguf_model("llama"), prompt(320)
    with Stack(model, tmp_path / "d", slots=2) as stack:
        stack.answer([*system, *prompt(400, seed=2)], 1, cache_store=False)
        assert stack.answer([*system, *prompt(200, seed=3)], 1).cached == {"live": 320}
    with Stack(model, tmp_path / "d") as stack:
        assert stack.answer([*system, *prompt(200, seed=3)], 1).cached == {"disk": 512}
        assert stack.answer([*system, *prompt(400, seed=2)], 1).cached == {"live": 320}


def test_so_is_a_fork_with_windows(gguf_model: ModelShelf, tmp_path: Path) -> None:
    model, system = gguf_model("gemma3", n_swa=100), prompt(320)
    with Stack(model, tmp_path / "d", slots=2) as stack:
        stack.answer([*system, *prompt(400, seed=2)], 1, cache_store=False)
        assert stack.answer([*system, *prompt(20, seed=3)], 1).cached == {"live": 320}
    with Stack(model, tmp_path / "d") as stack:
        assert stack.answer([*system, *prompt(60, seed=4)], 1).cached == {"disk": 320}


def test_one_that_reads_only_does_read(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Stack(gguf_model("gemma3"), tmp_path / "d") as stack:
        stack.answer(prompt(300), 1)
    before = objects(tmp_path / "d")
    with Stack(gguf_model("gemma3"), tmp_path / "d") as stack:
        side = stack.answer([*prompt(300), *prompt(200, seed=2)], 4, cache_store=False)
        assert side.cached == {"disk": 300}
    assert objects(tmp_path / "d") == before

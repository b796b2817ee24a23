"""*Exact*, turn after turn: a conversation whose state went to RAM or through a restart goes on
with the bits that the live slot would have had, and computes no more tokens than it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import Answer, Stack, prompt

from spillcache.chain import Chain
from spillcache.config import StoreConfig
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import DecodeError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore

STEPS = 24
TURNS = 6
KINDS = ["llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2"]
FIRST = 150
SAID = [17, 64, 131, 40, 90]
"""Tokens of what is said after each answer: within a block, past one, past several."""

Talk = Callable[[list[int]], Answer]


def model_of(shelf: ModelShelf, kind: str) -> Path:
    return shelf(kind, **({"n_swa": 128} if kind == "gemma3" else {}))


def converse(talk: Talk, first: int) -> list[Answer]:
    """Six turns, each prompt all that was said before and something new, as token ids."""
    history, answers = prompt(first, seed=100), []
    for turn in range(TURNS):
        answers.append(talk(history))
        history = [*history, *answers[-1].tokens]
        if turn < len(SAID):
            history += prompt(SAID[turn], seed=turn)[1:]
    return answers


def held_after(answer: Answer) -> int:
    """How many tokens the slot holds when the turn is over: the last one was never computed."""
    assert answer.done is not None
    return answer.done.usage.prompt + answer.done.usage.generated - 1


def assert_same(live: list[Answer], other: list[Answer], tier: str) -> None:
    for turn, (one, two) in enumerate(zip(live, other, strict=True)):
        assert one.tokens == two.tokens, turn
        assert one.logits is not None
        assert two.logits is not None
        assert np.array_equal(one.logits, two.logits), (turn, np.abs(one.logits - two.logits).max())
        held = held_after(live[turn - 1]) if turn else 0
        assert one.cached == ({"live": held} if turn else {}), turn
        assert two.cached == ({tier: held} if turn else {}), turn


def uninterrupted(model: Path, first: int) -> list[Answer]:
    with Stack(model, None) as stack:
        return converse(lambda tokens: stack.answer(tokens, STEPS), first)


@pytest.mark.parametrize(
    ("kind", "first"), [*((kind, FIRST) for kind in KINDS), ("gemma3", 750), ("gemma3", 1600)]
)
def test_a_restart_between_every_two_turns(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, first: int
) -> None:
    """Also where the window's cells, which are used in turn, have been used more than once."""
    model = model_of(gguf_model, kind)

    def after_a_restart(tokens: list[int]) -> Answer:
        with Stack(model, tmp_path / "d") as stack:
            return stack.answer(tokens, STEPS)

    assert_same(uninterrupted(model, first), converse(after_a_restart, first), "disk")


@pytest.mark.parametrize(("kind", "first"), [*((kind, FIRST) for kind in KINDS), ("gemma3", 1600)])
@pytest.mark.parametrize("disk", [False, True])
def test_others_used_the_slot_between(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, first: int, disk: bool
) -> None:
    model = model_of(gguf_model, kind)
    with Stack(model, tmp_path / "d" if disk else None) as stack:

        def after_others(tokens: list[int]) -> Answer:
            stack.answer(prompt(201, seed=len(tokens)), 3)
            stack.answer(prompt(70, seed=len(tokens) + 1), 3)
            return stack.answer(tokens, STEPS)

        other = converse(after_others, first)
    assert_same(uninterrupted(model, first), other, "ram")


def flip_tail(disk: Path) -> None:
    """Damage the payload of the only tail's first part."""
    with BlockStore.open(StoreConfig(disk, min_free_bytes=0)) as store:
        with store._opened.index.read() as catalog:
            found = [e for e in catalog.objects_from(b"", b"", 10_000) if e.is_tail]
        entry = found[0]
        path = store._opened.segments.path(entry.segment)
    with open(path, "r+b", buffering=0) as file:
        file.seek(entry.offset + entry.payload_offset + entry.stored_bytes // 2)
        old = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([old ^ 1]))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_without_a_damaged_tail_the_whole_blocks_serve(
    gguf_model: ModelShelf, tmp_path: Path, kind: str
) -> None:
    model, disk = model_of(gguf_model, kind), tmp_path / "d"
    first, then = prompt(300), prompt(40, seed=3)
    with Stack(model, disk) as stack:
        said = first + stack.answer(first, STEPS).tokens
    flip_tail(disk)
    with Stack(model, disk) as stack:
        answer = stack.answer(said + then, STEPS)
        assert answer.cached == {"disk": len(said) // 64 * 64}
        assert len(list((disk / "quarantine").iterdir())) == 1
    with Stack(model, None) as stack:  # where the tail was never kept
        stack.answer(first, STEPS)
        stack.answer(prompt(70, seed=8), 1)
        assert stack.cache is not None
        stack.cache.doubts.add(
            [
                Chain(Namespace.of(dict(stack.engine.identity)), 64, said[:-1]).hash_of(
                    len(said) // 64
                )
            ]
        )
        other = stack.answer(said + then, STEPS)
    assert other.cached == {"ram": len(said) // 64 * 64}
    assert other.tokens == answer.tokens
    assert other.logits is not None
    assert np.array_equal(answer.logits, other.logits)


def test_a_tail_that_the_engine_refuses_does_not_come_back(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Window cells are missing at its end: what is restorable without it is restored."""
    model, disk = model_of(gguf_model, "gemma3"), tmp_path / "d"
    first = prompt(300)
    with Stack(model, disk) as stack:
        said = first + stack.answer(first, STEPS).tokens
    import_ = LlamaEngine.import_

    def without(self: LlamaEngine, sequence: int, block: int, state: Any, tokens: Any) -> None:
        if tokens is not None:
            state = {part: payload for part, payload in state.items() if part is not Part.WINDOW}
        import_(self, sequence, block, state, tokens)

    with monkeypatch.context() as patch, Stack(model, disk) as stack:
        patch.setattr(LlamaEngine, "import_", without)
        assert stack.answer([*said, 7], STEPS).cached == {"disk": len(said) // 64 * 64}
    with Stack(model, disk) as stack:
        assert stack.answer([*said, 9], 1).cached == {"disk": len(said) // 64 * 64}


@pytest.mark.parametrize("flags", [{"cache_store": False}, {"cache_prompt": False}])
def test_who_asks_not_to_be_kept_leaves_no_tail(
    gguf_model: ModelShelf, flags: dict[str, bool]
) -> None:
    with Stack(gguf_model("llama"), None) as stack:
        said = prompt(100) + stack.answer(prompt(100), STEPS, **flags).tokens
        stack.answer(prompt(70, seed=8), 1, cache_prompt=False)
        assert stack.cache is not None
        assert stack.cache.status()["blocks"] == 0
        assert stack.answer([*said, 7], 1).cached == {}


def test_a_tail_that_makes_the_engine_fail_goes(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and unsound all the same: the request is computed anew, and the tail is deleted."""
    model, disk = gguf_model("llama"), tmp_path / "d"
    with Stack(model, disk) as stack:
        said = prompt(150) + stack.answer(prompt(150), STEPS).tokens
        namespace = Namespace.of(dict(stack.engine.identity))
    tail = Chain(namespace, 64, said[:-1])
    import_, decode, failures = LlamaEngine.import_, LlamaEngine.decode, list[str]()

    def note(self: LlamaEngine, sequence: int, block: int, state: Any, tokens: Any) -> None:
        import_(self, sequence, block, state, tokens)
        if tokens is not None:
            failures.append("to come")

    def fail(self: LlamaEngine, chunks: Any) -> None:
        decode(self, chunks)
        if "to come" in failures:
            failures.remove("to come")
            raise DecodeError("it was the tail")

    with monkeypatch.context() as patch, Stack(model, disk) as stack:
        patch.setattr(LlamaEngine, "import_", note)
        patch.setattr(LlamaEngine, "decode", fail)
        assert stack.answer([*said, 7], 2).cached == {}
    with BlockStore.open(StoreConfig(disk, min_free_bytes=0)) as store:
        (left,) = store.tails(namespace.id, [tail.parent(tail.blocks)])
        names = {entry.block for entries in left for entry in entries.values()}
    assert len(names) == 1, "the new turn's"
    assert tail.hash_of(tail.blocks) not in names

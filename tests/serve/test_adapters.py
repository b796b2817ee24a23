"""LoRA per request: which adapters a request runs with, whose state it may use, and who shares a
call.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf, write_adapter
from stack import Answer, Stack, collect, prompt

from spillcache.config import AdapterFile
from spillcache.engine.base import Adapter, AdapterScales, Chunk
from spillcache.errors import RequestError
from spillcache.namespace import Namespace
from spillcache.serve.adapters import Adapters, Namespaces

BASE = Namespace.of({"model": "x"})
A, B, C = (bytes([n]) * 32 for n in range(3))
STEPS = 16
PROMPT = prompt(200)


def known(*digests: bytes, scale: float = 1.0) -> list[Adapter]:
    return [Adapter(i, f"{i}.gguf", digest, scale) for i, digest in enumerate(digests)]


# Which.


def test_what_a_request_says_wins_over_what_the_server_is_set_to() -> None:
    adapters = Adapters([Adapter(0, "a", A, 1.0), Adapter(1, "b", B, 0.0), Adapter(2, "c", C, 2.0)])
    assert adapters.chosen(None) == ((0, 1.0), (2, 2.0))
    assert adapters.chosen(()) == ()
    assert adapters.chosen([(2, 0.5), (1, -1)]) == ((1, -1.0), (2, 0.5))
    adapters.set_default([(1, 3.0)])
    assert adapters.chosen(None) == ((1, 3.0),)
    assert adapters.listed() == [
        {"id": 0, "path": "a", "scale": 0.0},
        {"id": 1, "path": "b", "scale": 3.0},
        {"id": 2, "path": "c", "scale": 0.0},
    ]


def test_scales_are_those_that_the_engine_takes() -> None:
    adapters = Adapters(known(A, B))
    assert adapters.chosen([(0, 0.1)]) == adapters.chosen([(0, 0.1 + 1e-12)])
    assert adapters.chosen([(0, 0.1)]) == ((0, float(np.float32(0.1))),)
    assert adapters.chosen([(0, 0.0), (1, 1e-60)]) == ()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([(2, 1.0)], "no adapter 2"),
        ([(-1, 1.0)], "no adapter -1"),
        ([(0, 1.0), (0, 2.0)], "named twice"),
        ([(0, float("nan"))], "a scale must lie"),
        ([(0, 1e9)], "a scale must lie"),
    ],
)
def test_what_can_not_be_meant_is_refused(asked: list[tuple[int, float]], says: str) -> None:
    adapters = Adapters(known(A, B))
    for use in (adapters.chosen, adapters.set_default):
        with pytest.raises(RequestError, match=says) as caught:
            use(asked)
        assert caught.value.param == "lora"
    assert adapters.chosen(None) == ((0, 1.0), (1, 1.0))


# Whose state.


def test_a_namespace_is_what_adapters_contain_and_their_scales() -> None:
    spaces = Namespaces(BASE, known(A, B, A))
    assert spaces.of(()) is BASE
    sets: list[AdapterScales] = [
        (), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 1.0)), ((0, 0.5), (1, 1.0)),
        ((0, 1.0), (1, 0.5)),
    ]  # fmt: skip
    assert len({spaces.of(scales).digest for scales in sets}) == len(sets)
    assert spaces.of(((2, 1.0),)) == spaces.of(((0, 1.0),)), "the same file by another id"
    turned = Namespaces(BASE, known(B, A))
    assert turned.of(((0, 0.5), (1, 1.0))) == spaces.of(((0, 1.0), (1, 0.5)))
    other = Namespaces(BASE, known(C, B))
    assert other.of(((0, 1.0),)) != spaces.of(((0, 1.0),))


def test_clients_that_try_many_scales_do_not_fill_the_memory() -> None:
    spaces = Namespaces(BASE, known(A))
    first = spaces.of(((0, 0.5),))
    assert spaces.has(first)
    assert spaces.of(((0, 0.5),)) is first
    for n in range(1, 500):
        assert spaces.has(spaces.of(((0, float(n)),)))
    assert len(spaces._made) <= 64
    assert spaces.of(()) is BASE
    assert spaces.of(((0, 0.5),)) == first
    assert not spaces.has(Namespaces(BASE, known(A)).of(((0, 0.5),)))


# The whole path.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[AdapterFile]:
    folder = tmp_path_factory.mktemp("adapters")
    for seed in range(2):
        write_adapter(folder / f"{seed}.gguf", seed)
    return [AdapterFile(folder / f"{seed}.gguf", 0.0) for seed in range(2)]


ZERO, HALF, ONE = [(0, 1.0)], [(0, 0.5)], [(1, 1.0)]
SETS: list[list[tuple[int, float]]] = [[], ZERO, HALF, ONE, [*ZERO, *ONE]]


def stack(
    gguf_model: ModelShelf, files: Sequence[AdapterFile], disk: Path | None = None, **more: Any
) -> Stack:
    options: dict[str, Any] = {"flash_attention": "off", "adapters": tuple(files)} | more
    return Stack(gguf_model("llama"), disk, **options)


def alone(gguf_model: ModelShelf, files: Sequence[AdapterFile], lora: Any) -> Answer:
    with stack(gguf_model, files, ram=False) as running:
        return running.answer(PROMPT, STEPS, lora=lora)


def assert_same(one: Answer, other: Answer) -> None:
    assert one.tokens == other.tokens
    assert one.logits is not None
    assert other.logits is not None
    assert np.array_equal(one.logits, other.logits)


def test_no_set_reuses_the_state_of_another(
    gguf_model: ModelShelf, files: list[AdapterFile], tmp_path: Path
) -> None:
    cold = [alone(gguf_model, files, lora) for lora in SETS]
    assert len({tuple(answer.tokens) for answer in cold}) == len(SETS)
    with stack(gguf_model, files, tmp_path / "d") as running:
        for lora, expected in zip(SETS, cold, strict=True):
            first = running.answer(PROMPT, STEPS, lora=lora)
            assert first.cached == {}
            assert_same(first, expected)
        for lora, expected in zip(SETS[:-1], cold, strict=False):
            again = running.answer(PROMPT, STEPS, lora=lora)
            assert again.cached == {"ram": 192}
            assert_same(again, expected)
        live = running.answer(PROMPT, STEPS, lora=SETS[-2])
        assert live.cached == {"live": 192}
    with stack(gguf_model, files, tmp_path / "d") as running:
        for lora, expected in zip(SETS[:-1], cold, strict=False):
            from_disk = running.answer(PROMPT, STEPS, lora=lora)
            assert from_disk.cached == {"disk": 192}
            assert_same(from_disk, expected)


def test_an_adapter_that_is_replaced_under_its_name_begins_anew(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    path, disk = tmp_path / "a.gguf", tmp_path / "d"
    write_adapter(path, 1)
    mine = [AdapterFile(path)]
    with stack(gguf_model, mine, disk) as running:
        before = running.answer(PROMPT, STEPS)
    write_adapter(path, 2)
    cold = alone(gguf_model, mine, None)
    assert cold.tokens != before.tokens
    with stack(gguf_model, mine, disk) as running:
        after = running.answer(PROMPT, STEPS)
        assert after.cached == {}
        assert_same(after, cold)
    write_adapter(path, 1)
    other_name = path.rename(tmp_path / "b.gguf")
    with stack(gguf_model, [AdapterFile(other_name)], disk) as running:
        back = running.answer(PROMPT, STEPS)
        assert back.cached == {"disk": 192}
        assert_same(back, before)


def test_a_live_slot_of_another_set_is_not_forked(
    gguf_model: ModelShelf, files: list[AdapterFile]
) -> None:
    cold = alone(gguf_model, files, ONE)
    with stack(gguf_model, files, slots=2, ram=False) as running:
        running.answer(PROMPT, STEPS, lora=ZERO)
        other = running.answer(PROMPT, STEPS, lora=ONE)
        assert other.cached == {}
        assert_same(other, cold)


def test_side_by_side_each_answers_as_alone_and_no_call_mixes_sets(
    gguf_model: ModelShelf, files: list[AdapterFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [[], ZERO, ONE, ZERO]
    prompts = [prompt(150 + 20 * n, seed=n) for n in range(4)]
    expected = []
    for tokens, lora in zip(prompts, sets, strict=True):
        with stack(gguf_model, files, ram=False) as running:
            expected.append(running.answer(tokens, 24, lora=lora).tokens)
    with stack(gguf_model, files, slots=4) as running:
        calls: list[tuple[AdapterScales, set[int]]] = []
        in_use: list[AdapterScales] = [()]
        use, decode = running.engine.use_adapters, running.engine.decode

        def using(scales: AdapterScales) -> None:
            in_use[0] = scales
            use(scales)

        def decoding(chunks: Sequence[Chunk]) -> None:
            calls.append((in_use[0], {chunk.sequence for chunk in chunks}))
            decode(chunks)

        monkeypatch.setattr(running.engine, "use_adapters", using)
        monkeypatch.setattr(running.engine, "decode", decoding)
        waiting = [
            running.submit(tokens, 24, lora=lora)
            for tokens, lora in zip(prompts, sets, strict=True)
        ]
        assert [collect(events).tokens for events in waiting] == expected
    by_sequence: dict[int, set[AdapterScales]] = {}
    for scales, sequences in calls:
        for sequence in sequences:
            by_sequence.setdefault(sequence, set()).add(scales)
    assert all(len(scales) == 1 for scales in by_sequence.values())
    assert any(len(sequences) == 2 for _, sequences in calls), "the same set shares a call"


def test_a_full_context_takes_from_another_set(
    gguf_model: ModelShelf, files: list[AdapterFile]
) -> None:
    prompts = [prompt(150, seed=n) for n in range(2)]
    expected = []
    for tokens, lora in zip(prompts, [ZERO, ONE], strict=True):
        with stack(gguf_model, files, ram=False) as running:
            expected.append(running.answer(tokens, 130, lora=lora).tokens)
    with stack(gguf_model, files, slots=2, context_tokens=512) as running:
        waiting = [
            running.submit(tokens, 130, lora=lora)
            for tokens, lora in zip(prompts, [ZERO, ONE], strict=True)
        ]
        assert [collect(events).tokens for events in waiting] == expected


def test_the_servers_choice_holds_for_those_that_say_nothing(
    gguf_model: ModelShelf, files: list[AdapterFile]
) -> None:
    with stack(gguf_model, files) as running:
        plain = running.answer(PROMPT, STEPS)
        running.scheduler.adapters.set_default(ZERO)
        applied = running.answer(PROMPT, STEPS)
        assert applied.cached == {}
        assert applied.tokens != plain.tokens
        off = running.answer(PROMPT, STEPS, lora=[])
        assert off.tokens == plain.tokens
        with pytest.raises(RequestError, match="no adapter 7"):
            running.submit(PROMPT, 1, lora=[(7, 1.0)])

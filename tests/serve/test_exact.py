"""*Exact*: with the cache the logits are, bit for bit, those of a cold run: every memory kind, tier
and KV type.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import Answer, Stack, prompt

STEPS = 64
RECURRENT = ("lfm2", "qwen35", "mamba", "mamba2")
KV_TYPES: list[dict[str, str]] = [
    {"type_k": "f16", "type_v": "f16", "flash_attention": "on"},
    {"type_k": "f16", "type_v": "f16", "flash_attention": "off"},
    {"type_k": "bf16", "type_v": "bf16", "flash_attention": "on"},
    {"type_k": "bf16", "type_v": "bf16", "flash_attention": "off"},
    {"type_k": "q8_0", "type_v": "q8_0", "flash_attention": "on"},
    {"type_k": "q8_0", "type_v": "f16", "flash_attention": "off"},
]
KV_IDS = ["-".join(kv.values()) for kv in KV_TYPES]


def assert_exact(cold: Answer, warm: Answer) -> None:
    assert warm.tokens == cold.tokens
    assert cold.logits is not None
    assert warm.logits is not None
    assert warm.logits.shape == cold.logits.shape == (STEPS, cold.logits.shape[1])
    assert np.array_equal(warm.logits, cold.logits), np.abs(warm.logits - cold.logits).max()


def reusable(count: int, recurrent: bool = False) -> int:
    """Tokens that a prompt asked again does not compute again."""
    return (count - 1) // 64 * 64 if recurrent else min(count // 64 * 64, count - 1)


def check_all_tiers(model: Path, disk: Path, lengths: list[int], **engine: Any) -> None:
    """Cold, live, RAM and disk answers of the same prompts are the same bits."""
    cold: dict[int, Answer] = {}
    recurrent = model.stem.split("-")[0] in RECURRENT
    for n in lengths:
        with Stack(model, None, ram=False, **engine) as stack:
            cold[n] = stack.answer(prompt(n, seed=n), STEPS)
            assert cold[n].cached == {}
    with Stack(model, disk, **engine) as stack:
        for n in lengths:
            assert_exact(cold[n], stack.answer(prompt(n, seed=n), STEPS))
            again = stack.answer(prompt(n, seed=n), STEPS)
            assert_exact(cold[n], again)
            assert sum(again.cached.values()) == reusable(n, recurrent)
        for n in lengths[:-1]:  # another prompt took the slot
            from_ram = stack.answer(prompt(n, seed=n), STEPS)
            assert_exact(cold[n], from_ram)
            assert from_ram.cached == {"ram": reusable(n, recurrent)}
    with Stack(model, disk, **engine) as stack:
        for n in lengths:
            from_disk = stack.answer(prompt(n, seed=n), STEPS)
            assert_exact(cold[n], from_disk)
            assert from_disk.cached == {"disk": reusable(n, recurrent)}
            assert from_disk.done is not None
            assert from_disk.done.timings.restored_bytes > 0


@pytest.mark.parametrize("kv", KV_TYPES, ids=KV_IDS)
@pytest.mark.parametrize("kind", ["llama", "lfm2", "qwen35"])
def test_plain_and_hybrid(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, kv: dict[str, str]
) -> None:
    check_all_tiers(gguf_model(kind), tmp_path / "d", [129, 1024, 1337], **kv)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_recurrent(gguf_model: ModelShelf, tmp_path: Path, kind: str) -> None:
    check_all_tiers(gguf_model(kind), tmp_path / "d", [129, 1024, 1337])


@pytest.mark.parametrize("swa_full", [False, True], ids=["swa", "swa-full"])
@pytest.mark.parametrize("kv", KV_TYPES, ids=KV_IDS)
def test_sliding_window(
    gguf_model: ModelShelf, tmp_path: Path, kv: dict[str, str], swa_full: bool
) -> None:
    model = gguf_model("gemma3", n_swa=512)
    lengths = [511, 512, 513, 1024, 2048]
    check_all_tiers(model, tmp_path / "d", lengths, swa_full=swa_full, **kv)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2"])
def test_a_longer_prompt_reuses_all_of_a_shorter_one(
    gguf_model: ModelShelf, tmp_path: Path, kind: str
) -> None:
    """After a restart: an identical prompt and a longer one reuse all but the last call, the longer
    one as a live slot would.
    """
    base, longer = prompt(1000), prompt(1000) + prompt(150, seed=9)
    with Stack(gguf_model(kind), None, ram=False) as stack:
        stack.answer(base, 1)
        live = stack.answer(longer, STEPS)
        assert live.cached == {"live": 1000}
    with Stack(gguf_model(kind), tmp_path / "d") as stack:
        stack.answer(base, 1)
    with Stack(gguf_model(kind), tmp_path / "d") as stack:
        same = stack.answer(base, 1)
        assert same.cached == {"disk": reusable(1000)}
    with Stack(gguf_model(kind), tmp_path / "d") as stack:
        warm = stack.answer(longer, STEPS)
        assert_exact(live, warm)
        assert warm.cached == {"disk": 1000}


@pytest.mark.parametrize("tier", ["live", "disk"])
@pytest.mark.parametrize(("kind", "n_swa"), [("llama", 64), ("gemma3", 64), ("gemma3", 512)])
def test_a_branch_reuses_the_shared_half(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, n_swa: int, tier: str
) -> None:
    """Two prompts that share their first half, cut at any block boundary, not at a saved end."""
    model = gguf_model(kind, n_swa=n_swa) if kind == "gemma3" else gguf_model(kind)
    first, branch = prompt(2000), prompt(1000) + prompt(1000, seed=5)
    with Stack(model, None, ram=False) as stack:
        cold = stack.answer(branch, STEPS)
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(first, 1)
        if tier == "live":
            warm = stack.answer(branch, STEPS)
    if tier == "disk":
        with Stack(model, tmp_path / "d") as stack:
            warm = stack.answer(branch, STEPS)
            assert warm.cached == {"disk": 960}
    assert_exact(cold, warm)
    assert sum(warm.cached.values()) == 960


def test_a_branch_from_ram(gguf_model: ModelShelf, tmp_path: Path) -> None:
    model = gguf_model("gemma3", n_swa=512)
    branch = prompt(1000) + prompt(1000, seed=5)
    with Stack(model, None, ram=False) as stack:
        cold = stack.answer(branch, STEPS)
    with Stack(model, None) as stack:
        stack.answer(prompt(2000), 1)
        stack.answer(prompt(2000, seed=77), 1)
        warm = stack.answer(branch, STEPS)
        assert warm.cached == {"ram": 960}
    assert_exact(cold, warm)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("kind", "n_swa"), [("llama", 64), ("gemma3", 64), ("gemma3", 512)])
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_a_turn_after_a_prompt_that_ends_with_a_block_is_that_of_the_live_slot(
    gguf_model: ModelShelf, tmp_path: Path, kind: str, n_swa: int, tier: str
) -> None:
    """The block is kept with its last token as the live sequence has it: computed alone."""
    model = gguf_model(kind, n_swa=n_swa) if kind == "gemma3" else gguf_model(kind)
    first, turn = prompt(1024), prompt(1024) + prompt(100, seed=9)
    with Stack(model, None) as stack:
        stack.answer(first, 1)
        live = stack.answer(turn, STEPS)
        assert live.cached == {"live": 1024}
    with Stack(model, tmp_path / "d") as stack:
        stack.answer(first, 1)
        if tier == "ram":
            stack.answer(prompt(700, seed=3), 1)
            warm = stack.answer(turn, STEPS)
    if tier == "disk":
        with Stack(model, tmp_path / "d") as stack:
            warm = stack.answer(turn, STEPS)
    assert warm.cached == {tier: 1024}
    assert_exact(live, warm)

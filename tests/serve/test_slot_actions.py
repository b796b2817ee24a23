"""Slots saved to files and restored from them, over the real engine and tiers."""

from pathlib import Path

import numpy as np
import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.store.slot_folder import SlotFolder, open_slot_folder

KINDS = ("llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2")


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    return open_slot_folder(tmp_path / "slots", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [700, 703 - 32])
def test_a_restored_slot_goes_on_as_it_would_have(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, tokens: int
) -> None:
    asked = prompt(tokens)
    with Stack(gguf_model(kind), None, slots=2) as stack:
        first = stack.answer(asked, 33)
        saved = stack.scheduler.actions.save(0, folder, "one")
        turn = [*asked, *first.tokens, 7, 8, 9]
        live = stack.answer(turn, 32)
    assert saved.size_bytes == (folder.path / "one").stat().st_size
    with Stack(gguf_model(kind), None, slots=2, ram=False) as stack:
        from spillcache.namespace import Namespace

        stack.scheduler.attach(Namespace.of(dict(stack.engine.identity)), None)
        import time
        time.sleep(0.2)
        done = stack.scheduler.actions.restore(0, folder, "one")
        assert (done.tokens, done.size_bytes) == (saved.tokens, saved.size_bytes)
        again = stack.answer(turn, 32)
    assert again.cached == {"live": saved.tokens}
    assert again.tokens == live.tokens
    assert np.array_equal(again.logits, live.logits)

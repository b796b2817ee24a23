"""Slots restored from files that are larger than the memory that is taken for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from models import ModelShelf
from stack import Stack, prompt
from test_slot_actions import in_thread, restore, save, small_pieces, started

from spillcache.errors import SlotFileIOError
from spillcache.serve import slot_import
from spillcache.serve.slot_actions import POOL_BYTES
from spillcache.store.buffers import BufferPool
from spillcache.store.slot_folder import SlotFolder, open_slot_folder
from spillcache.store.slot_state import SlotState

ASKED = 1600


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    return open_slot_folder(tmp_path / "slots", 0)


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 64 << 10)


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each restore: the bytes of its memory, and of its file."""
    found: list[tuple[int, int]] = []
    restore = slot_import.SlotImport.restore

    def watched(self: slot_import.SlotImport, state: SlotState) -> None:
        found.append((state.memory.size, state.file_bytes))
        restore(self, state)

    monkeypatch.setattr(slot_import.SlotImport, "restore", watched)
    return found


@pytest.fixture
def saved(gguf_model: ModelShelf, folder: SlotFolder) -> Iterator[Stack]:
    with started(gguf_model("llama"), slots=2) as stack:
        stack.answer(prompt(ASKED), 4)
        save(stack, folder)
        stack.scheduler.actions._pool = BufferPool(POOL_BYTES)  # as after a start
        yield stack


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_slot_goes_on_as_it_would_have(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, memories: list[tuple[int, int]]
) -> None:
    asked = prompt(ASKED)
    with started(gguf_model(kind), slots=2) as stack:
        first = stack.answer(asked, 4)
        done = save(stack, folder)
        turn = [*asked, *first.tokens, 7]
        live = stack.answer(turn, 16)
    with started(gguf_model(kind), slots=2) as stack:
        assert restore(stack, folder).tokens == done.tokens
        again = stack.answer(turn, 16)
    assert memories[0][0] < memories[0][1]
    assert again.cached == {"live": done.tokens}
    assert again.tokens == live.tokens
    assert np.array_equal(again.logits, live.logits)


def test_ram_has_what_was_streamed(
    saved: Stack, folder: SlotFolder, gguf_model: ModelShelf, memories: list[tuple[int, int]]
) -> None:
    with started(gguf_model("llama")) as stack:
        restore(stack, folder)
        stack.scheduler.actions.erase(0)
        assert stack.answer(prompt(ASKED), 4).cached["ram"] >= ASKED - 64
    assert memories[0][0] < memories[0][1]


def test_the_next_restore_has_the_memory_of_the_one_before(
    saved: Stack, folder: SlotFolder, memories: list[tuple[int, int]]
) -> None:
    restore(saved, folder)
    kept = saved.scheduler.actions._pool.kept_bytes
    assert kept >= memories[0][0]
    restore(saved, folder)
    assert saved.scheduler.actions._pool.kept_bytes == kept


def test_a_file_that_changes_while_it_is_read_leaves_the_slot_empty(
    saved: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room = slot_import.SlotImport._make_room

    def change(self: slot_import.SlotImport, tokens: int) -> None:
        with open(folder.path / "a", "r+b") as file:
            file.seek(-5000, 2)
            byte = file.read(1)[0]
            file.seek(-5000, 2)
            file.write(bytes([byte ^ 1]))
        make_room(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(slot_import.SlotImport, "_make_room", change)
        with pytest.raises(
            SlotFileIOError, match="changed while it was read; the slot is empty now"
        ):
            restore(saved, folder)
    assert saved.engine.length(0) == 0
    assert saved.scheduler._slots[0].chain is None
    assert saved.answer(prompt(100), 4).tokens


def test_what_can_not_be_read_a_third_time_is_not_kept(
    saved: Stack,
    folder: SlotFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep = slot_import.SlotKeeper.keep

    def cut(self: slot_import.SlotKeeper) -> None:
        (folder.path / "a").write_bytes(b"")
        keep(self)

    monkeypatch.setattr(slot_import.SlotKeeper, "keep", cut)
    assert restore(saved, folder).tokens == ASKED + 3
    assert "a restored slot was not kept in RAM: " in caplog.text
    assert saved.engine.length(0) == ASKED + 3


def test_beside_an_answer_it_goes_on_block_by_block(
    saved: Stack, folder: SlotFolder, memories: list[tuple[int, int]]
) -> None:
    events = saved.submit(prompt(80, seed=2), 300)
    events.get(timeout=20)
    done = in_thread(lambda: restore(saved, folder))
    assert done.result(60).tokens == ASKED + 3
    assert memories[0][0] < memories[0][1]
    assert saved.engine.length(0) == ASKED + 3


def test_little_memory_is_asked_for(
    saved: Stack,
    folder: SlotFolder,
    monkeypatch: pytest.MonkeyPatch,
    memories: list[tuple[int, int]],
) -> None:
    asked: list[Callable[[], int]] = []
    monkeypatch.setattr(
        "spillcache.serve.slot_actions.available_bytes", lambda: asked.append(len) or 3 << 20
    )
    restore(saved, folder)
    assert len(asked) == 1
    assert memories[0][1] > 3 << 20

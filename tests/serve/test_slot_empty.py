"""A slot that holds nothing takes blocks as they are read: whatever then fails, it is as it was."""

import errno
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf
from stack import Stack, collect, prompt
from test_slot_actions import KINDS, restore, save, small_pieces, started

from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import SlotFileError, SlotFileInvalid, SlotFileIOError
from spillcache.serve import slot_export
from spillcache.serve.job import TextEvent
from spillcache.serve.slot_import import SlotImport
from spillcache.serve.slots import Phase
from spillcache.store import slot_blocks
from spillcache.store.files import Files
from spillcache.store.slot_folder import SlotFolder, open_slot_folder

ASKED = 700
GOES_ON = 32


class BreaksLater(Files):
    """Reads ``good`` times and then no more."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self._good = good

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._good -= 1
        if self._good < 0:
            raise OSError(errno.EIO, "broken")
        return super().pread(fd, buffer, offset)


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    return open_slot_folder(tmp_path / "slots", 0)


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 32 << 10)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the sequence was each time that it was cleared with something in it."""
    lengths: list[int] = []
    clear = LlamaEngine.clear

    def watched(self: LlamaEngine, sequence: int) -> None:
        if length := self.length(sequence):
            lengths.append(length)
        clear(self, sequence)

    monkeypatch.setattr(LlamaEngine, "clear", watched)
    return lengths


def is_empty(stack: Stack, slot: int = 0) -> bool:
    found = stack.scheduler._slots[slot]
    return (
        stack.engine.length(slot) == 0
        and found.chain is None
        and found.phase is Phase.IDLE
        and not found.on_trial
    )


def damaged(data: bytes, places: random.Random) -> Iterator[bytes]:
    """The last bytes, and others, one bit each; and one that is cut."""
    for number in range(24):
        changed = bytearray(data)
        place = len(data) - 1 - 1000 * number if number < 8 else places.randrange(len(data))
        changed[place] ^= 1 << places.randrange(8)
        yield bytes(changed)
    yield data[: places.randrange(len(data))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_leaves_an_empty_slot_as_if_nothing_had_happened(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, imported: list[int]
) -> None:
    asked = prompt(ASKED)
    with started(gguf_model(kind), ram=False) as stack:
        stack.answer(asked, 3)
        save(stack, folder)
    data = (folder.path / "a").read_bytes()
    other = prompt(ASKED, seed=8)
    with started(gguf_model(kind), ram=False) as stack:
        imported.clear()
        for bad in damaged(data, random.Random(4)):
            (folder.path / "bad").write_bytes(bad)
            with pytest.raises(SlotFileInvalid, match="the slot is as it was") as caught:
                restore(stack, folder, "bad")
            assert (caught.value.status, caught.value.kind) == (400, "invalid")
            assert is_empty(stack)
        if stack.engine.geometry.has_kv:
            assert imported, "nothing had reached the engine"
        again = stack.answer(other, GOES_ON)
    with started(gguf_model(kind), ram=False) as stack:
        wanted = stack.answer(other, GOES_ON)
    assert again.cached == {}
    assert again.tokens == wanted.tokens
    assert np.array_equal(again.logits, wanted.logits)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_disk_that_fails_leaves_an_empty_slot_as_if_nothing_had_happened(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, imported: list[int]
) -> None:
    asked, other = prompt(ASKED), prompt(ASKED, seed=8)
    with started(gguf_model(kind), ram=False) as stack:
        stack.answer(asked, 3)
        size = save(stack, folder).size_bytes
        stack.scheduler.actions.erase(0)
        imported.clear()
        reads = -(-size // (64 << 10))
        for good in range(2, reads + 1):
            bad = replace(folder, files=lambda good=good: BreaksLater(good))
            with pytest.raises(SlotFileIOError, match="the slot is as it was") as caught:
                restore(stack, bad)
            assert (caught.value.status, caught.value.kind) == (500, "io")
            assert is_empty(stack)
        assert imported
        again = stack.answer(other, GOES_ON)
    with started(gguf_model(kind), ram=False) as stack:
        wanted = stack.answer(other, GOES_ON)
    assert np.array_equal(again.logits, wanted.logits)


def test_a_running_conversation_is_not_touched_by_a_bad_file(
    gguf_model: ModelShelf, folder: SlotFolder, imported: list[int]
) -> None:
    """Not even its cells lie elsewhere: all of the file is verified first."""
    asked, other = prompt(ASKED), prompt(300, seed=8)
    with started(gguf_model("gemma3"), slots=2) as stack:
        stack.answer(asked, 3)
        save(stack, folder)
    with started(gguf_model("gemma3"), slots=2) as stack:
        wanted = stack.answer(other, 200)
    spoil(folder)
    with started(gguf_model("gemma3"), slots=2) as stack:
        events = stack.submit(other, 200)
        first = events.get(timeout=20)
        idle = next(slot.index for slot in stack.scheduler._slots if slot.job is None)
        imported.clear()
        with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
            restore(stack, folder, slot=idle)
        assert not imported
        assert is_empty(stack, idle)
        assert isinstance(first, TextEvent)
        assert [wanted.tokens[0], *collect(events).tokens] == wanted.tokens


@pytest.mark.parametrize("bad", [False, True])
def test_when_a_request_comes_meanwhile_the_file_is_verified_first(
    gguf_model: ModelShelf,
    folder: SlotFolder,
    imported: list[int],
    monkeypatch: pytest.MonkeyPatch,
    bad: bool,
) -> None:
    other, answers = prompt(300, seed=8), []
    with started(gguf_model("llama"), slots=2, context_tokens=2048) as stack:
        wanted = stack.answer(other, 200)
        stack.answer(prompt(ASKED), 3)
        save(stack, folder, slot=1)
    if bad:
        spoil(folder)
    some = SlotImport._some_alone
    with started(gguf_model("llama"), slots=2, context_tokens=2048) as stack:

        def and_a_request(self: SlotImport, *args: Any) -> None:
            if not answers:
                answers.append(stack.submit(other, 200))
            some(self, *args)

        monkeypatch.setattr(SlotImport, "_some_alone", and_a_request)
        if bad:
            with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
                restore(stack, folder)
            assert is_empty(stack)
        else:
            restore(stack, folder)
            assert stack.engine.length(0) == ASKED + 2
        assert len(imported) == 1, "what was imported before the request came"
        assert imported[0] < ASKED
        assert collect(answers[0]).tokens == wanted.tokens


def test_a_request_that_comes_when_all_is_imported_is_as_early(
    gguf_model: ModelShelf, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is empty again, and must not be said to hold anything before it does."""
    other, answers = prompt(300, seed=8), []
    finish = SlotImport._finish
    with started(gguf_model("llama"), slots=2, context_tokens=2048) as stack:
        stack.answer(prompt(ASKED), 3)
        save(stack, folder)
        stack.scheduler.actions.erase(0)

        def after_a_request(self: SlotImport, state: Any, *, alone: bool) -> None:
            if not answers:
                answers.append(stack.submit(other, 3))
                stack.scheduler._admit()
                assert stack.engine.length(0) == 0
            finish(self, state, alone=alone)

        monkeypatch.setattr(SlotImport, "_finish", after_a_request)
        restore(stack, folder)
        assert stack.engine.length(0) == ASKED + 2
        assert len(collect(answers[0]).tokens) == 3


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_another_slots_conversation_goes_on_as_it_would_have(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, imported: list[int]
) -> None:
    asked, other = prompt(ASKED), prompt(300, seed=8)
    with started(gguf_model(kind), slots=2, ram=False) as stack:
        stack.answer(asked, 3)
        save(stack, folder)
    spoil(folder)
    answers = []
    for bad in (False, True):
        with started(gguf_model(kind), slots=2, ram=False) as stack:
            first = stack.answer(other, 4)
            empty = next(each.index for each in stack.scheduler._slots if not each.chain)
            imported.clear()
            if bad:
                with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
                    restore(stack, folder, slot=empty)
                assert bool(imported) == (kind != "gemma3")  # whose windows share a ring
                assert is_empty(stack, empty)
            answers.append(stack.answer([*other, *first.tokens, 9], GOES_ON))
    assert answers[1].cached == answers[0].cached == {"live": 303}
    assert answers[1].tokens == answers[0].tokens
    assert np.array_equal(answers[1].logits, answers[0].logits)


def spoil(folder: SlotFolder) -> None:
    """Change a bit near the end of the file."""
    data = bytearray((folder.path / "a").read_bytes())
    data[-5000] ^= 1
    (folder.path / "a").write_bytes(data)


def test_no_other_slot_gives_way_to_a_bad_file(
    gguf_model: ModelShelf, folder: SlotFolder, imported: list[int]
) -> None:
    """Where one would have to, all of the file is verified first."""
    with started(gguf_model("llama"), slots=2, context_tokens=1024) as stack:
        stack.answer(prompt(ASKED), 3)
        save(stack, folder)
        stack.scheduler.actions.erase(0)
        kept = stack.answer(prompt(500, seed=5), 3)
        slot = next(each.index for each in stack.scheduler._slots if not each.chain)
        data = bytearray((folder.path / "a").read_bytes())
        data[-5000] ^= 1
        (folder.path / "bad").write_bytes(data)
        imported.clear()
        with pytest.raises(SlotFileInvalid):
            restore(stack, folder, "bad", slot=slot)
        assert not imported
        assert stack.engine.length(1 - slot) == 500 + len(kept.tokens) - 1
        restore(stack, folder, slot=slot)
        assert stack.engine.length(slot) == ASKED + 2
        assert stack.engine.length(1 - slot) == 0


def test_a_slot_has_nothing_until_all_of_it_is_known(
    gguf_model: ModelShelf, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole file's digest comes last: until then no request may begin in the slot."""
    with started(gguf_model("llama"), slots=2) as stack:
        stack.answer(prompt(ASKED), 3)
        save(stack, folder)
        stack.scheduler.actions.erase(0)
        found: list[tuple[int, bool, Phase]] = []
        check = slot_blocks.SlotBlocks._check_end

        def watched(self: slot_blocks.SlotBlocks, number: int, records: object) -> None:
            slot = stack.scheduler._slots[0]
            found.append((stack.engine.length(0), slot.chain is None, slot.phase))
            check(self, number, records)  # type: ignore[arg-type]

        monkeypatch.setattr(slot_blocks.SlotBlocks, "_check_end", watched)
        restore(stack, folder)
    length, unknown, phase = found[0]
    assert 0 < length < ASKED
    assert unknown
    assert phase is Phase.FILE


def test_what_fails_is_a_slot_file_error(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    """Also where the file lacks a part that only a later record would have shown."""
    with started(gguf_model("gemma3")) as stack:
        stack.answer(prompt(ASKED), 3)
        export = slot_export.SlotExport._export_one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                slot_export.SlotExport,
                "_export_one",
                lambda self, writer, piece, n: None if n == 10 else export(self, writer, piece, n),
            )
            save(stack, folder)
        stack.scheduler.actions.erase(0)
        with pytest.raises(SlotFileError, match=r"lacks (kv|window) of block 10") as caught:
            restore(stack, folder)
        assert caught.value.status == 400
        assert is_empty(stack)

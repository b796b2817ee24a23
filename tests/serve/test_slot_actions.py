"""Slots saved to files and restored from them, over the real engine and tiers."""

import errno
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf, write_adapter
from stack import Stack, collect, prompt

from spillcache.config import AdapterFile
from spillcache.errors import (
    NotReady,
    Overloaded,
    SlotFileError,
    SlotFileInvalid,
    SlotFileIOError,
    SlotFileMissing,
    SlotFileNoMemory,
    SlotFileNoRoom,
    SpillcacheError,
    StateRejected,
)
from spillcache.namespace import Namespace
from spillcache.serve import errands, slot_actions, slot_export
from spillcache.serve.slot_actions import SlotDone
from spillcache.serve.slots import Phase
from spillcache.store import slot_blocks, slot_reader, slot_stretch, slot_writer
from spillcache.store.cipher import Cipher
from spillcache.store.files import Files
from spillcache.store.slot_folder import SlotFolder, open_slot_folder
from spillcache.store.steps import Steps

KINDS = ("llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2")


class Fails(Files):
    """Fails, or waits, in one call."""

    def __init__(self, name: str, error: OSError | None = None, wait: Any = None) -> None:
        super().__init__()

        def fail(*_: object, **__: object) -> None:
            if wait is not None:
                wait()
            if error is not None:
                raise error

        setattr(self, name, fail)


def failing(folder: SlotFolder, *args: Any, limit_s: float = 60.0, **named: Any) -> SlotFolder:
    return replace(folder, files=lambda: Fails(*args, **named), steps=lambda: Steps(limit_s))


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    return open_slot_folder(tmp_path / "slots", 0)


@pytest.fixture
def stack(gguf_model: ModelShelf) -> Iterator[Stack]:
    with started(gguf_model("llama"), slots=2) as running:
        yield running


def started(model: Path, disk: Path | None = None, **options: Any) -> Stack:
    """A stack whose model is known, with RAM or without."""
    stack = Stack(model, disk, **{"threads": 1} | options)
    if stack.cache is None:
        stack.scheduler.attach(Namespace.of(dict(stack.engine.identity)), None)
    wait_for(lambda: ready(stack))
    return stack


def ready(stack: Stack) -> bool:
    try:
        stack.scheduler.actions.erase(0)
    except NotReady:
        return False
    return True


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.005)


def small_pieces(monkeypatch: pytest.MonkeyPatch, run_bytes: int) -> None:
    """Have a small file go through many reads, runs and records that blocks share."""
    monkeypatch.setattr(slot_stretch, "READ_BYTES", 64 << 10)
    monkeypatch.setattr(slot_blocks, "RUN_BYTES", run_bytes)
    for each in (slot_blocks, slot_export, slot_reader):
        monkeypatch.setattr(each, "RUN_BYTES_MAX", 64 << 10)


def save(stack: Stack, folder: SlotFolder, name: str = "a", slot: int = 0) -> SlotDone:
    return stack.scheduler.actions.save(slot, folder, name)


def restore(stack: Stack, folder: SlotFolder, name: str = "a", slot: int = 0) -> SlotDone:
    """And wait until it is kept in RAM."""
    done = stack.scheduler.actions.restore(slot, folder, name)
    wait_for(lambda: not stack.scheduler.actions.running())
    return done


def in_thread(work: Callable[[], SlotDone]) -> "Future[SlotDone]":
    future: Future[SlotDone] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def names(folder: SlotFolder) -> list[str]:
    return sorted(each.name for each in folder.path.iterdir())


# The same answer.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [700, 703 - 32])
def test_a_restored_slot_goes_on_as_it_would_have(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str, tokens: int
) -> None:
    """With a tail at the end, and without."""
    asked = prompt(tokens)
    with started(gguf_model(kind), slots=2) as stack:
        first = stack.answer(asked, 33)
        saved = save(stack, folder)
        turn = [*asked, *first.tokens, 7, 8, 9]
        live = stack.answer(turn, 32)
    assert saved.size_bytes == (folder.path / "a").stat().st_size
    with started(gguf_model(kind), slots=2, ram=False) as stack:
        done = restore(stack, folder)
        assert (done.tokens, done.size_bytes) == (saved.tokens, saved.size_bytes)
        again = stack.answer(turn, 32)
    assert again.cached == {"live": saved.tokens}
    assert again.tokens == live.tokens
    assert np.array_equal(again.logits, live.logits)


@pytest.mark.parametrize("kind", ["gemma3", "lfm2", "qwen35"])
def test_a_rewritten_history_finds_a_restart_point(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str
) -> None:
    asked = prompt(1400)
    other = [*asked[:700], *prompt(100, seed=9)[1:]]
    with started(gguf_model(kind)) as stack:
        stack.answer(asked, 4)
        save(stack, folder)
    with started(gguf_model(kind)) as stack:
        restore(stack, folder)
        again = stack.answer(other, 8)
    with started(gguf_model(kind), ram=False) as stack:
        cold = stack.answer(other, 8)
    assert again.cached["ram"] >= 512
    assert again.tokens == cold.tokens


def test_a_restored_conversation_outlives_its_slot(stack: Stack, folder: SlotFolder) -> None:
    asked = prompt(300)
    first = stack.answer(asked, 4)
    save(stack, folder)
    stack.scheduler.actions.erase(0)
    restore(stack, folder, slot=1)
    stack.scheduler.actions.erase(1)
    again = stack.answer([*asked, *first.tokens, 5], 4)
    assert again.cached == {"ram": 303}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_what_the_disk_has_of_a_restored_slot_is_not_unsaved(
    gguf_model: ModelShelf, folder: SlotFolder, tmp_path: Path, kind: str
) -> None:
    def kept(disk: str) -> tuple[object, object]:
        never = {"spill_on": ("flush",)}
        with started(gguf_model(kind), tmp_path / disk, cache=never) as stack:
            assert stack.cache is not None
            restore(stack, folder)
            status = stack.cache.status()
            return status["blocks"], status["unsaved_blocks"]

    with started(gguf_model(kind), tmp_path / "one") as stack:
        stack.answer(prompt(300), 8)
        save(stack, folder)
    blocks, unsaved = kept("one")
    assert unsaved == 0
    assert kept("two") == (blocks, blocks)
    assert blocks


def test_what_a_restored_slot_computes_is_kept_after_what_was_restored(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    asked = prompt(300)
    with started(gguf_model("llama")) as stack:
        stack.answer(asked, 4)
        save(stack, folder)
    with started(gguf_model("llama")) as stack:
        stack.scheduler.actions.restore(0, folder, "a")
        longer = [*asked, *prompt(300, seed=3)]
        stack.answer(longer, 4)
        stack.scheduler.actions.erase(0)
        assert stack.answer([*longer, 4, 5], 4).cached["ram"] >= 576


def test_an_empty_slot_is_saved_and_restored_as_one(stack: Stack, folder: SlotFolder) -> None:
    assert save(stack, folder).tokens == 0
    stack.answer(prompt(100), 4)
    assert restore(stack, folder).tokens == 0
    assert stack.engine.length(0) == 0


def test_erasing_empties_a_slot(stack: Stack, folder: SlotFolder) -> None:
    stack.answer(prompt(100), 4)
    assert stack.scheduler.actions.erase(0).tokens == 103
    assert stack.scheduler.actions.erase(0).tokens == 0


# Whose it is.


def test_a_salt_is_needed_to_use_what_was_restored(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    asked, salt = prompt(300), b"a very secret salt"
    with started(gguf_model("llama")) as stack:
        stack.answer(asked, 4, salt=salt)
        save(stack, folder)
    assert salt not in (folder.path / "a").read_bytes()
    with started(gguf_model("llama"), slots=2) as stack:
        restore(stack, folder)
        assert stack.answer(asked, 2).cached == {}
        assert stack.answer(asked, 2, salt=salt).cached["live"] >= 256


def test_what_was_to_be_kept_nowhere_is_only_in_the_slot(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    asked = prompt(300)
    with started(gguf_model("llama")) as stack:
        stack.answer(asked, 4, cache_store=False)
        save(stack, folder)
    with started(gguf_model("llama")) as stack:
        restore(stack, folder)
        assert stack.cache is not None
        assert stack.cache.status()["blocks"] == 0
        assert stack.answer(asked, 2, cache_store=False).cached["live"] >= 256


def test_ram_is_not_emptied_for_what_is_restored(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(2000), 4)
        save(stack, folder)
    with started(gguf_model("llama"), cache={"ram_bytes": 1 << 20}) as stack:
        stack.answer(prompt(200, seed=5), 4)
        assert stack.cache is not None
        stack.scheduler.settle(10)  # the turn's end comes after its last token, its tail later
        before = stack.cache.status()["blocks"]
        restore(stack, folder)
        assert stack.cache.status()["blocks"] == before


def test_another_setting_is_refused_by_name(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(100), 2)
        save(stack, folder)
    with (
        started(gguf_model("llama"), type_k="q8_0") as stack,
        pytest.raises(SlotFileInvalid, match="type_k is 'q8_0' here and 'f16' there"),
    ):
        restore(stack, folder)


def test_adapters_are_told_by_their_content(
    gguf_model: ModelShelf, folder: SlotFolder, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{seed}.gguf" for seed in (1, 2)]
    for seed, path in enumerate(paths):
        write_adapter(path, seed)
    files = [AdapterFile(path, 0.0) for path in paths]
    asked, scales = prompt(200), ((1, 0.5),)
    with started(gguf_model("llama"), adapters=tuple(files)) as stack:
        first = stack.answer(asked, 4, lora=scales)
        save(stack, folder)
        turn = [*asked, *first.tokens, 5]
        live = stack.answer(turn, 8, lora=scales)
    # The other way round: ids are places, and no identity.
    with started(gguf_model("llama"), adapters=tuple(files[::-1])) as stack:
        restore(stack, folder)
        again = stack.answer(turn, 8, lora=((0, 0.5),))
        assert again.cached == {"live": 203}
        assert again.tokens == live.tokens
        restore(stack, folder)
        assert "live" not in stack.answer(turn, 2).cached
    with (
        started(gguf_model("llama")) as stack,
        pytest.raises(SlotFileInvalid, match="lora_0 is missing here"),
    ):
        restore(stack, folder)


# What is refused leaves the slot as it was.


def test_a_rejected_file_leaves_the_conversation_as_it_was(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    asked, places = prompt(300), random.Random(3)
    with started(gguf_model("llama")) as stack:
        first = stack.answer(asked, 4)
        save(stack, folder)
        turn = [*asked, *first.tokens, 7]
        wanted = stack.answer(turn, 32)
    data = (folder.path / "a").read_bytes()
    with started(gguf_model("llama")) as stack:
        stack.answer(asked, 4)
        for number in range(200):
            bad = bytearray(data)
            if number % 2:
                bad[places.randrange(len(bad))] ^= 1 << places.randrange(8)
            else:
                del bad[places.randrange(len(bad)) :]
            (folder.path / "bad").write_bytes(bad)
            with pytest.raises(SlotFileInvalid, match="the slot is as it was"):
                restore(stack, folder, "bad")
        again = stack.answer(turn, 32)
    assert again.cached == {"live": 303}
    assert again.tokens == wanted.tokens
    assert np.array_equal(again.logits, wanted.logits)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_kind_of_memory_is_touched_by_a_rejected_file(
    gguf_model: ModelShelf, folder: SlotFolder, kind: str
) -> None:
    asked = prompt(300)
    with started(gguf_model(kind)) as stack:
        first = stack.answer(asked, 4)
        save(stack, folder)
        data = bytearray((folder.path / "a").read_bytes())
        data[-5000] ^= 1
        (folder.path / "a").write_bytes(data)
        with pytest.raises(SlotFileInvalid):
            restore(stack, folder)
        turn = [*asked, *first.tokens, 7]
        again = stack.answer(turn, 32)
    with started(gguf_model(kind)) as stack:
        stack.answer(asked, 4)
        wanted = stack.answer(turn, 32)
    assert again.cached == {"live": 303}
    assert again.tokens == wanted.tokens


def test_a_file_that_lacks_a_part_is_refused(
    gguf_model: ModelShelf, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(300), 4)
        export = slot_export.SlotExport._export_one
        monkeypatch.setattr(slot_export.SlotExport, "_export_run", lambda *_: False)
        monkeypatch.setattr(
            slot_export.SlotExport,
            "_export_one",
            lambda self, writer, piece, n: None if n == 2 else export(self, writer, piece, n),
        )
        save(stack, folder)
        with pytest.raises(SlotFileInvalid, match="lacks kv of block 2"):
            restore(stack, folder)
        assert stack.engine.length(0) == 303


def test_more_tokens_than_the_context_holds_are_refused(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(600), 4)
        save(stack, folder)
    with (
        started(gguf_model("llama"), context_tokens=512) as stack,
        pytest.raises(SlotFileInvalid, match="603 tokens and the context holds 512"),
    ):
        restore(stack, folder)


def test_blocks_of_another_size_tokens_out_of_range_and_large_files_are_refused(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(100), 4)
    save(stack, folder)
    engine = stack.engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "geometry", replace(engine.geometry, block_tokens=32))
        with pytest.raises(SlotFileInvalid, match="another size"):
            restore(stack, folder)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "limits", replace(engine.limits, vocabulary=10))
        with pytest.raises(SlotFileInvalid, match="vocabulary"):
            restore(stack, folder)
    with monkeypatch.context() as patch:
        patch.setattr(slot_actions, "file_bytes_max", lambda *_: 4096)
        with pytest.raises(SlotFileInvalid, match="larger than a slot"):
            restore(stack, folder)
    assert engine.length(0) == 103


def test_memory_is_looked_at_before_it_is_taken(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(100), 4)
    save(stack, folder)
    stack.scheduler.actions._pool.close()  # nothing is left of the save
    monkeypatch.setattr(slot_actions, "available_bytes", lambda: 10_000)
    with pytest.raises(SlotFileNoMemory, match=r"9\.8 KiB are available") as caught:
        restore(stack, folder)
    assert (caught.value.status, caught.value.kind) == (503, "memory")
    assert stack.engine.length(0) == 103
    monkeypatch.setattr(slot_actions, "available_bytes", lambda: None)
    restore(stack, folder)


def test_running_requests_keep_their_context(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    with started(gguf_model("llama"), slots=3, context_tokens=1024) as stack:
        stack.answer(prompt(700), 4)
        save(stack, folder)
        stack.scheduler.actions.erase(0)
        stack.answer(prompt(200, seed=2), 2)  # idle: it gives way
        busy = stack.submit(prompt(500, seed=8), 200)
        busy.get(timeout=20)
        slot = next(s for s in stack.scheduler._slots if s.job is None and not s.chain)
        with pytest.raises(SlotFileNoMemory, match="no room for 703 beside"):
            restore(stack, folder, slot=slot.index)
        assert len(collect(busy).tokens) == 199
        restore(stack, folder, slot=slot.index)
        assert stack.engine.length(slot.index) == 703


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    ("kind", "call"),
    [("llama", c) for c in ("import_", "import_in_place", "restored")] + [("gemma3", "import_run")],
)
def test_an_engine_that_fails_leaves_the_slot_empty(
    gguf_model: ModelShelf,
    folder: SlotFolder,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    call: str,
    empty: bool,
) -> None:
    asked = prompt(300)

    def fail(*_: object) -> None:
        raise StateRejected("not this one")

    with started(gguf_model(kind)) as stack:
        stack.answer(asked, 4)
        save(stack, folder)
        if empty:
            stack.scheduler.actions.erase(0)
        with monkeypatch.context() as patch:
            patch.setattr(stack.engine, call, fail)
            with pytest.raises(
                SlotFileIOError, match="not this one; the slot is empty now"
            ) as caught:
                restore(stack, folder)
        assert (caught.value.status, caught.value.kind) == (500, "io")
        assert (stack.engine.length(0), stack.scheduler._slots[0].chain) == (0, None)
        assert stack.answer(asked, 4).tokens


def test_an_engine_that_misses_a_part_leaves_the_slot_empty(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(300), 4)
    save(stack, folder)
    with monkeypatch.context() as patch:
        patch.setattr(stack.engine, "restored", lambda _: False)
        with pytest.raises(SlotFileIOError, match="the slot is empty now"):
            restore(stack, folder)
    assert stack.engine.length(0) == 0


def test_an_engine_that_takes_no_runs_says_so(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(300), 4)
    save(stack, folder)
    monkeypatch.setattr(stack.engine, "import_in_place", lambda *_: False)
    with pytest.raises(SlotFileIOError, match="written as one; the slot is empty now"):
        restore(stack, folder)


def test_a_run_that_can_not_be_split_is_not_kept(
    stack: Stack,
    folder: SlotFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack.answer(prompt(300), 4)
    save(stack, folder)

    def fail(*_: object) -> None:
        raise StateRejected("not this one")

    monkeypatch.setattr(stack.engine, "split_run", fail)
    assert restore(stack, folder).tokens == 303
    assert "a restored slot was not kept in RAM: not this one" in caplog.text


@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_encrypted_runs_come_back(gguf_model: ModelShelf, tmp_path: Path, kind: str) -> None:
    folder = open_slot_folder(tmp_path / "secret", 0, Cipher(b"k" * 32))
    asked = prompt(700)
    with started(gguf_model(kind)) as stack:
        first = stack.answer(asked, 4)
        save(stack, folder)
        turn = [*asked, *first.tokens, 5]
        wanted = stack.answer(turn, 8)
    with started(gguf_model(kind)) as stack:
        restore(stack, folder)
        again = stack.answer(turn, 8)
        assert again.cached == {"live": 703}
        assert np.array_equal(again.logits, wanted.logits)
        stack.scheduler.actions.erase(0)
        assert stack.answer(asked, 2).cached["ram"] >= 512


def test_an_engine_without_runs_saves_block_by_block(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    """Flash attention off: each row of V would have to be split."""
    asked = prompt(300)
    with started(gguf_model("llama"), flash_attention="off") as stack:
        first = stack.answer(asked, 4)
        save(stack, folder)
        turn = [*asked, *first.tokens, 5]
        wanted = stack.answer(turn, 8)
    with started(gguf_model("llama"), flash_attention="off") as stack:
        restore(stack, folder)
        again = stack.answer(turn, 8)
    assert again.cached == {"live": 303}
    assert np.array_equal(again.logits, wanted.logits)


def test_a_bug_leaves_the_slot_empty_too(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(300), 4)
    save(stack, folder)
    with monkeypatch.context() as patch:
        patch.setattr(stack.engine, "import_in_place", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            restore(stack, folder)
    assert stack.engine.length(0) == 0
    assert stack.scheduler._slots[0].phase is Phase.IDLE


def test_what_the_engine_does_not_give_is_not_saved(
    stack: Stack, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.answer(prompt(300), 4)

    def fail(*_: object, **__: object) -> None:
        raise StateRejected("no")

    monkeypatch.setattr(stack.engine, "export", fail)
    with pytest.raises(SlotFileIOError, match="no file was changed"):
        save(stack, folder)
    assert names(folder) == []


def test_names_slots_and_missing_files(stack: Stack, folder: SlotFolder) -> None:
    actions = stack.scheduler.actions
    for act in (actions.save, actions.restore):
        with pytest.raises(SlotFileInvalid, match="filename"):
            act(0, folder, "../x")
        with pytest.raises(SlotFileInvalid, match="there is no 2; the last is 1"):
            act(2, folder, "x")
    with pytest.raises(SlotFileMissing):
        actions.restore(0, folder, "x")
    with pytest.raises(SlotFileInvalid):
        actions.erase(-1)


def test_no_more_actions_wait_than_may(stack: Stack, folder: SlotFolder) -> None:
    places = stack.scheduler.actions._places
    for _ in range(slot_actions.MOST_ACTIONS):
        assert places.acquire(blocking=False)
    with pytest.raises(Overloaded):
        save(stack, folder)
    places.release()
    save(stack, folder)


def test_before_the_model_is_known_nothing_is_saved(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    with (
        Stack(gguf_model("llama"), None, ram=False) as stack,
        pytest.raises(NotReady, match="being hashed"),
    ):
        save(stack, folder)


# The disk.


def test_a_failure_keeps_the_old_file(stack: Stack, folder: SlotFolder) -> None:
    stack.answer(prompt(100), 4)
    save(stack, folder)
    stack.answer(prompt(400), 4)
    old = (folder.path / "a").read_bytes()
    for call, code, kind, status in (
        ("create", errno.EACCES, "io", 500),
        ("pwrite", errno.EIO, "io", 500),
        ("pwrite", errno.ENOSPC, "storage", 507),
        ("sync", errno.EDQUOT, "storage", 507),
        ("rename", errno.EIO, "io", 500),
        ("free_bytes", errno.EIO, "io", 500),
    ):
        with pytest.raises(SlotFileError) as caught:
            save(stack, failing(folder, call, OSError(code, "no")))
        assert (caught.value.kind, caught.value.status) == (kind, status)
        assert not caught.value.published
        assert names(folder) == ["a"]
        assert (folder.path / "a").read_bytes() == old


def test_a_folder_that_is_not_flushed_is_an_error_and_the_file_is_there(
    stack: Stack, folder: SlotFolder
) -> None:
    stack.answer(prompt(100), 4)
    with pytest.raises(SlotFileIOError, match="the file has its name") as caught:
        save(stack, failing(folder, "sync_directory", OSError(errno.EIO, "no")))
    assert caught.value.published
    assert restore(stack, folder).tokens == 103


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_a_step_that_hangs_is_reported_and_cleans_up_when_it_is_back(
    stack: Stack, folder: SlotFolder, call: str
) -> None:
    stack.answer(prompt(100), 4)
    go = threading.Event()
    try:
        with pytest.raises(SlotFileIOError, match=r"did not answer within 0.2 s"):
            save(stack, failing(folder, call, wait=go.wait, limit_s=0.2))
        assert len(names(folder)) == 1
        assert names(folder)[0].startswith(".spillcache-")
        # Nobody waits for it: the slot is free, and the next save works.
        assert save(stack, folder, "b").tokens == 103
    finally:
        go.set()
    wait_for(lambda: names(folder) == ["b"])


def test_a_directory_is_refused_before_anything_is_written(
    stack: Stack, folder: SlotFolder
) -> None:
    stack.answer(prompt(100), 4)
    (folder.path / "a").mkdir()
    with pytest.raises(SlotFileInvalid, match="a directory; nothing was written") as caught:
        save(stack, failing(folder, "create", OSError(errno.EIO, "it was begun")))
    assert (caught.value.status, caught.value.kind, caught.value.param) == (
        400,
        "invalid",
        "filename",
    )
    assert names(folder) == ["a"]


@pytest.fixture
def small(filesystem: Callable[[int], Path]) -> Path:
    return filesystem(1)


def test_a_full_filesystem_is_seen_before_and_while_it_is_written(
    stack: Stack, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_slot_folder(small, 0)
    stack.answer(prompt(65), 2)
    save(stack, folder)
    stack.answer(prompt(2000), 2)
    with pytest.raises(SlotFileNoRoom, match="nothing was written") as caught:
        save(stack, folder)
    assert (caught.value.status, caught.value.kind) == (507, "storage")
    monkeypatch.setattr(SlotFolder, "check_room", lambda *_: None)  # as if others took it since
    with pytest.raises(SlotFileNoRoom, match="is full while") as caught:
        save(stack, folder)
    assert (caught.value.status, caught.value.kind) == (507, "storage")
    assert names(folder) == ["a"]
    assert restore(stack, folder).tokens == 66


# Beside others.


def test_an_action_waits_for_its_slots_request(stack: Stack, folder: SlotFolder) -> None:
    events = stack.submit(prompt(100), 300)
    events.get(timeout=20)
    saving = in_thread(lambda: save(stack, folder))
    wait_for(lambda: len(stack.scheduler._errands._waiting) == 1)
    assert not saving.done()
    assert stack.scheduler.actions.running() == {}
    answer = collect(events)
    assert saving.result(20).tokens == 100 + 299
    assert len(answer.tokens) == 299


def test_others_go_on_while_bytes_move(stack: Stack, folder: SlotFolder) -> None:
    asked = prompt(400)
    stack.answer(asked, 2)
    for act in (save, restore):
        go = threading.Event()
        call = "pwrite" if act is save else "pread"
        moving = in_thread(lambda: act(stack, failing(folder, call, wait=go.wait)))  # noqa: B023
        wait_for(lambda: stack.scheduler.actions.running() != {})
        name = stack.scheduler.actions.running()
        assert name == {0: act.__name__}
        assert stack.scheduler.slots() == [True, False]
        assert len(stack.answer(prompt(80, seed=4), 30).tokens) == 30
        assert not moving.done()
        go.set()
        with pytest.raises(SpillcacheError):  # what was written, or read, was nothing
            moving.result(20)
        save(stack, folder)


def test_requests_wait_for_a_slot_that_is_taken(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(100), 2)
        go = threading.Event()
        saving = in_thread(lambda: save(stack, failing(folder, "sync", wait=go.wait)))
        wait_for(lambda: stack.scheduler.actions.running() != {})
        events = stack.submit(prompt(100), 4)
        time.sleep(0.1)
        assert events.empty()
        assert not stack.scheduler.busy()
        go.set()
        assert saving.result(20).tokens == 101
        assert len(collect(events).tokens) == 4


def test_actions_of_one_slot_come_one_after_another(stack: Stack, folder: SlotFolder) -> None:
    stack.answer(prompt(200), 2)
    saving = [in_thread(lambda i=i: save(stack, folder, f"{i}")) for i in range(4)]  # type: ignore[misc]
    assert {each.result(30).tokens for each in saving} == {201}
    assert len({(folder.path / f"{i}").stat().st_size for i in range(4)}) == 1


def test_a_conversation_restored_beside_an_answer_is_the_same(
    gguf_model: ModelShelf, folder: SlotFolder
) -> None:
    """Block by block, at the pace of restores, saved and restored."""
    asked = prompt(700)
    with started(gguf_model("gemma3"), slots=2) as stack:
        first = stack.answer(asked, 4)
        alone = save(stack, folder)
        events = stack.submit(prompt(80, seed=2), 400)
        events.get(timeout=20)
        beside = save(stack, folder)
        assert beside.size_bytes == alone.size_bytes
        restore(stack, folder)
        assert events.qsize()
        collect(events)
        turn = [*asked, *first.tokens, 5]
        again = stack.answer(turn, 8)
    with started(gguf_model("gemma3"), slots=2) as stack:
        stack.answer(asked, 4)
        wanted = stack.answer(turn, 8)
    assert again.cached == {"live": 703}
    assert again.tokens == wanted.tokens


def test_stopping_ends_actions(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    with started(gguf_model("llama"), slots=2) as stack:
        stack.answer(prompt(100), 2)
        go = threading.Event()
        saving = in_thread(lambda: save(stack, failing(folder, "pwrite", wait=go.wait)))
        wait_for(lambda: stack.scheduler.actions.running() != {})
        waiting = in_thread(lambda: save(stack, folder, "b"))
        wait_for(lambda: len(stack.scheduler._errands._waiting) == 1)
        stack.scheduler.stop(0.2)
        go.set()
        with pytest.raises(NotReady):
            waiting.result(20)
        with pytest.raises(SpillcacheError):
            saving.result(20)
        with pytest.raises(NotReady):
            save(stack, folder, "c")
    wait_for(lambda: names(folder) == [])


def test_stopping_waits_a_while_for_actions(gguf_model: ModelShelf, folder: SlotFolder) -> None:
    with started(gguf_model("llama")) as stack:
        stack.answer(prompt(100), 2)
        go = threading.Event()
        saving = in_thread(lambda: save(stack, failing(folder, "sync", wait=go.wait)))
        wait_for(lambda: stack.scheduler.actions.running() != {})
        stopping = threading.Thread(target=lambda: stack.scheduler.stop(30))
        stopping.start()
        go.set()
        assert saving.result(20).tokens == 101
        stopping.join(20)
        assert not stopping.is_alive()


def test_blocks_are_imported_where_they_lie(
    gguf_model: ModelShelf, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prompt(300)
    with started(gguf_model("llama")) as stack:
        first = stack.answer(asked, 4)
        save(stack, folder)
        turn = [*asked, *first.tokens, 5]
        wanted = stack.answer(turn, 8)
    with started(gguf_model("llama")) as stack:
        monkeypatch.setattr(stack.engine, "import_run", lambda *_: pytest.fail("copied"))
        restore(stack, folder)
        again = stack.answer(turn, 8)
    assert again.cached == {"live": 303}
    assert np.array_equal(again.logits, wanted.logits)


def test_many_pieces_are_filled_digested_and_written_in_turns(
    gguf_model: ModelShelf, folder: SlotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_writer, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(errands, "SLICE_S", 0.0)
    asked = prompt(3500)
    with started(gguf_model("llama")) as stack:
        first = stack.answer(asked, 4)
        saved = save(stack, folder)
        assert saved.size_bytes > 3 * (2 << 20)
        turn = [*asked, *first.tokens, 5]
        wanted = stack.answer(turn, 8)
    with started(gguf_model("llama")) as stack:
        restore(stack, folder)
        again = stack.answer(turn, 8)
    assert again.cached == {"live": 3503}
    assert np.array_equal(again.logits, wanted.logits)


def test_progress_is_said(
    stack: Stack,
    folder: SlotFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "spillcache.serve")
    stack.answer(prompt(400), 2)
    monkeypatch.setattr(slot_export, "_SAY_S", 0.0)
    save(stack, folder, "a-secret-name")
    restore(stack, folder, "a-secret-name")
    text = caplog.text
    assert "slot 0: saving 401 tokens" in text
    assert "slot 0: saving, " in text
    assert "slot 0: restoring 401 tokens, " in text
    assert "slot 0: saved 401 tokens, " in text
    assert "slot 0: restored 401 tokens, " in text
    assert "a-secret-name" not in text

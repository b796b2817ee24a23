"""The service: put together, taken apart, and what it says when something is missing."""

import queue
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import ModelShelf, write_adapter
from stack import GREEDY, Answer, collect, prompt

from spillcache.config import (
    MIB,
    AdapterFile,
    CacheConfig,
    EngineConfig,
    ServeConfig,
    Settings,
    SlotFilesConfig,
    StoreConfig,
)
from spillcache.engine.base import SelfTest
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import (
    EngineError,
    ModelLoadError,
    NotReady,
    SlotFileInvalid,
    SlotFilesOff,
    StoreFormatError,
    StoreIndexError,
    Unsupported,
)
from spillcache.serve import keeper
from spillcache.serve import service as module
from spillcache.serve.job import Event, GenerationRequest
from spillcache.serve.service import Service
from spillcache.store.block_store import BlockStore


def settings(model: Path, disk: Path | None, **cache: Any) -> Settings:
    return Settings(
        engine=EngineConfig(model, context_tokens=2048, threads=2),
        cache=CacheConfig(**{"ram_bytes": 256 * MIB, "restore": "always"} | cache),
        store=StoreConfig(disk, quota_bytes=256 * MIB, min_free_bytes=0) if disk else None,
    )


class Running:
    """A loaded service; stops when it leaves the block."""

    def __init__(self, config: Settings) -> None:
        self.service = Service(config)

    def __enter__(self) -> "Running":
        self.service.start()
        assert self.service.wait_loaded(60), self.service.failure
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop(lambda _: None, drain_s=0)
        assert self.service.state == "stopped"

    def answer(self, tokens: list[int], steps: int = 16) -> Answer:
        events: queue.Queue[Event] = queue.Queue()
        request = GenerationRequest(np.asarray(tokens, np.uint32), steps, GREEDY)
        ticket = self.service.submit(request, events.put)
        answer = collect(events)
        assert ticket.started
        return answer

    @property
    def health(self) -> Any:
        return self.service.health()


def test_adapters_are_the_schedulers_and_a_bad_one_fails_the_start(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    path = tmp_path / "adapter.gguf"
    write_adapter(path, 1)
    config = settings(gguf_model("llama"), tmp_path / "d")
    config = replace(config, engine=replace(config.engine, adapters=(AdapterFile(path, 0.5),)))
    with pytest.raises(NotReady):
        _ = Service(config).adapters
    with Running(config) as run:
        listed = run.service.adapters.listed()
        assert listed == [{"id": 0, "path": "adapter.gguf", "scale": 0.5}]
        applied = run.answer(prompt(200))
        run.service.adapters.set_default([])
        assert run.answer(prompt(200)).cached == {}
    with Running(config) as run:
        again = run.answer(prompt(200))
        assert sum(again.cached.values()) >= 192
        assert again.tokens == applied.tokens
    path.write_bytes(b"GGUF and no more")
    broken = Service(config)
    broken.start()
    assert not broken.wait_loaded(60)
    assert "can't load the adapter" in str(broken.failure)
    broken.stop(lambda _: None)


def test_a_restart_answers_from_disk_and_trusts_the_first_self_test(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(gguf_model("gemma3"), tmp_path / "d")
    with Running(config) as run:
        first = run.answer(prompt(700))
        assert run.health["status"] == "ok"
        assert run.health["cache"]["self_test"]["exact"] is True
        assert run.health["cache"]["disk"]["on"] is True

    def again(_: LlamaEngine) -> SelfTest:
        raise AssertionError("the verdict is remembered")

    monkeypatch.setattr(LlamaEngine, "self_test", again)
    with Running(config) as run:
        second = run.answer(prompt(700))
        assert second.cached == {"disk": 640}
        assert run.health["cache"]["self_test"]["passed"] is True
    assert second.tokens == first.tokens


def test_a_failed_self_test_keeps_every_tier_off_and_is_not_remembered(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(gguf_model("llama"), tmp_path / "d")
    verdict = SelfTest(False, False, "importing state has no effect on this engine")
    with monkeypatch.context() as patched:
        patched.setattr(LlamaEngine, "self_test", lambda _: verdict)
        with Running(config) as run:
            run.answer(prompt(300))
            run.answer(prompt(300, seed=2))
            assert run.answer(prompt(300)).cached == {}
            reason = "self-test: importing state has no effect on this engine"
            assert run.health["cache"]["disk"] == {"on": False, "reason": reason}
            assert run.health["cache"]["ram"]["reason"] == reason
            assert run.health["cache"]["self_test"]["passed"] is False
    assert BlockStore.inspect(tmp_path / "d").usage().objects == 0
    with Running(config) as run:
        assert run.health["cache"]["disk"]["on"] is True


def test_a_model_replaced_at_the_same_path_starts_cold(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(gguf_model("llama"), model)
    with Running(settings(model, tmp_path / "d")) as run:
        run.answer(prompt(300))
    other = gguf_model("llama", seed=7)
    with Running(settings(other, None)) as run:
        want = run.answer(prompt(300)).tokens
    shutil.copy(other, model)
    with Running(settings(model, tmp_path / "d")) as run:
        replaced = run.answer(prompt(300))
        assert replaced.cached == {}
        assert replaced.tokens == want
    names = BlockStore.inspect(tmp_path / "d").namespaces()
    assert len(names) == 2


def test_a_copy_of_the_model_elsewhere_shares_its_prompts(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        run.answer(prompt(300))
    copy = tmp_path / "another name.gguf"
    shutil.copy(gguf_model("llama"), copy)
    with Running(settings(copy, tmp_path / "d")) as run:
        assert run.answer(prompt(300)).cached == {"disk": 256}


def test_two_servers_on_one_directory_share(gguf_model: ModelShelf, tmp_path: Path) -> None:
    config = settings(gguf_model("llama"), tmp_path / "d")
    with Running(config) as one, Running(config) as two:
        one.answer(prompt(300))
        assert two.answer(prompt(300)).cached == {}, "still in the first one's RAM"
        cache = one.service._cache
        assert cache is not None
        cache.flush()
        assert two.answer(prompt(300, seed=2)).cached == {}
        assert two.answer(prompt(300)).cached == {"ram": 256}
        cache.flush()
    with Running(config) as three:
        assert three.answer(prompt(300)).cached == {"disk": 256}
        assert three.answer(prompt(300, seed=2)).cached == {"disk": 256}


def test_ram_without_disk_and_neither(gguf_model: ModelShelf) -> None:
    with Running(settings(gguf_model("llama"), None)) as run:
        run.answer(prompt(300))
        run.answer(prompt(300, seed=2))
        assert run.answer(prompt(300)).cached == {"ram": 256}
        assert run.health["cache"]["disk"] == {"on": False, "reason": "no --cache-disk"}
        assert run.health["cache"]["ram"]["on"] is True
        assert run.health["cache"]["ram"]["blocks"] >= 8
    with Running(settings(gguf_model("llama"), None, ram_bytes=0)) as run:
        run.answer(prompt(300))
        assert run.answer(prompt(300)).cached == {"live": 256}
        assert run.health["cache"]["ram"]["on"] is False


def test_a_flush_makes_what_was_answered_durable(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        run.answer(prompt(700), 1)
        until = time.monotonic() + 10
        # Ten blocks and, when the turn has ended, a moment after the answer, its tail.
        while run.health["cache"]["ram"]["unsaved_blocks"] < 11 and time.monotonic() < until:
            time.sleep(0.01)
        flushed = run.service.flush(60)
        assert (flushed.blocks, flushed.left, flushed.complete) == (11, 0, True)
        assert run.health["cache"]["ram"]["unsaved_blocks"] == 0


def test_a_flush_does_not_depend_on_an_engine_that_hangs(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What RAM has becomes durable all the same; a tail that is in the engine only does not."""
    monkeypatch.setattr(module, "_SETTLE_S", 0.05)
    monkeypatch.setattr(keeper, "TAIL_WAIT_S", 3600.0)
    hangs, goes_on = threading.Event(), threading.Event()
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        run.answer(prompt(700), 5)
        scheduler = run.service._scheduler
        assert scheduler is not None
        scheduler._errands.move(lambda _: (hangs.set(), goes_on.wait(60)))
        try:
            assert hangs.wait(20)
            flushed = run.service.flush(60)
        finally:
            goes_on.set()
        assert flushed.complete
        assert flushed.left == 0
        assert flushed.blocks == 704 // 64


def test_where_a_flush_has_nowhere_to_go_it_says_so(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("llama")
    with pytest.raises(NotReady, match="Loading"):
        Service(settings(model, tmp_path / "d")).flush(1)
    with Running(settings(model, None)) as run, pytest.raises(Unsupported, match="--cache-disk"):
        run.service.flush(1)
    chosen = settings(model, tmp_path / "d", spill_on=frozenset({"shutdown"}))
    with Running(chosen) as run, pytest.raises(Unsupported, match="leaves out flush"):
        run.service.flush(1)
    verdict = SelfTest(False, False, "it lies")
    monkeypatch.setattr(LlamaEngine, "self_test", lambda _: verdict)
    with Running(settings(model, tmp_path / "e")) as run, pytest.raises(NotReady, match="it lies"):
        run.service.flush(1)


def with_slots(model: Path, path: Path, ram_bytes: int = 0) -> Settings:
    config = settings(model, None, ram_bytes=ram_bytes)
    return replace(config, serve=ServeConfig(slot_files=SlotFilesConfig(path, 0)))


@pytest.mark.parametrize("ram_bytes", [0, 256 * MIB])
def test_slots_are_saved_without_any_tier(
    gguf_model: ModelShelf, tmp_path: Path, ram_bytes: int
) -> None:
    asked = prompt(200)
    with Running(with_slots(gguf_model("llama"), tmp_path / "s", ram_bytes)) as run:
        assert run.health["cache"]["ram"]["on"] is bool(ram_bytes)
        run.answer(asked, 4)
        assert run.service.slot_action("save", 0, "a").tokens == 203
        assert run.service.slot_action("erase", 0, "").tokens == 203
        assert run.service.slot_action("restore", 0, "a").tokens == 203
        assert run.service.slot_actions() in ({}, {0: "restore"})
    with pytest.raises(NotReady):
        run.service.slot_action("save", 0, "a")
    # The model's content is in the file's namespace, though no store needs it.
    with (
        Running(with_slots(gguf_model("llama", seed=5), tmp_path / "s")) as run,
        pytest.raises(SlotFileInvalid, match="model_0 is"),
    ):
        run.service.slot_action("restore", 0, "a")


def test_slot_files_are_off_where_state_can_not_be_moved_or_is_not_known(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_slots(gguf_model("llama"), tmp_path / "s")
    with Running(settings(config.engine.model, None)) as run, pytest.raises(SlotFilesOff):
        run.service.slot_action("save", 0, "a")
    with monkeypatch.context() as patch:
        patch.setattr(LlamaEngine, "self_test", lambda _: SelfTest(False, False, "no luck"))
        with Running(config) as run, pytest.raises(SlotFilesOff, match="no luck"):
            run.service.slot_action("save", 0, "a")

    def fail(*_: object) -> bytes:
        raise OSError("unreadable")

    monkeypatch.setattr(module, "remembered_digest", fail)
    with Running(config) as run, pytest.raises(SlotFilesOff, match="hashed"):
        run.service.slot_action("save", 0, "a")


def test_what_fails_to_load_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.doc").write_text("mine")
    model = tmp_path / "cut.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    for config, error in (
        (settings(tmp_path / "none.gguf", None), ModelLoadError),
        (settings(tmp_path / "text.gguf", tmp_path / "d"), ModelLoadError),
        (settings(model, None), ModelLoadError),
        (settings(model, foreign), StoreFormatError),
    ):
        service = Service(config)
        service.start()
        assert not service.wait_loaded(60)
        assert service.state == "failed"
        assert isinstance(service.failure, error)
        with pytest.raises(NotReady):
            _ = service.engine
        service.stop(lambda _: None)
        assert service.state == "stopped"
    assert not (tmp_path / "d").exists(), "nothing is made for a model that is none"
    assert [p.name for p in foreign.iterdir()] == ["thesis.doc"]


def test_a_bug_in_loading_is_a_failure_not_a_hang(
    gguf_model: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "LlamaEngine", broken)
    service = Service(settings(gguf_model("llama"), None))
    service.start()
    assert not service.wait_loaded(60)
    assert isinstance(service.failure, EngineError)
    assert str(service.failure) == "loading failed: ZeroDivisionError: oops"
    service.stop(lambda _: None)


def test_before_and_after_its_life_it_is_not_ready(gguf_model: ModelShelf) -> None:
    service = Service(settings(gguf_model("llama"), None))
    request = GenerationRequest(np.array([5], np.uint32))
    assert not service.wait_loaded(0.01)
    assert service.health()["status"] == "loading model"
    with pytest.raises(NotReady, match="Loading model"):
        service.submit(request, lambda _: None)
    service.start()
    assert service.wait_loaded(60)
    assert service.engine.limits.vocabulary == 512
    service.stop(lambda _: None)
    with pytest.raises(NotReady, match="stopping"):
        service.submit(request, lambda _: None)
    service.stop(lambda _: None)


def test_a_slow_hash_does_not_hold_up_requests(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiers open when the model's content is known; until then prompts are computed."""
    go = threading.Event()
    digest = module.remembered_digest

    def slow(*args: Any) -> bytes:
        go.wait(60)
        return digest(*args)

    monkeypatch.setattr(module, "remembered_digest", slow)
    monkeypatch.setattr(module, "_HASH_WAIT_S", 0.05)
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        assert run.answer(prompt(300)).cached == {}
        assert run.health["cache"]["disk"]["reason"] == "the model's content is being hashed"
        go.set()
        run.service._opener.join(60)
        assert run.answer(prompt(300)).cached == {}, "what came before has no name"
        run.answer(prompt(300, seed=2))
        assert run.answer(prompt(300)).cached == {"ram": 256}


def test_a_model_that_can_not_be_hashed_is_not_cached_on_disk(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bytes:
        raise OSError("input/output error")

    monkeypatch.setattr(module, "remembered_digest", fail)
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        run.answer(prompt(300))
        assert run.health["cache"]["disk"]["on"] is False
        assert "could not be hashed" in run.health["cache"]["disk"]["reason"]


def test_stopping_while_the_model_is_hashed_stops_the_hashing(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless(_path: Path, _recall: Any, _remember: Any, stop: Any) -> bytes:
        begun.set()
        while not stop():
            threading.Event().wait(0.01)
        raise InterruptedError

    monkeypatch.setattr(module, "remembered_digest", endless)
    monkeypatch.setattr(module, "_HASH_WAIT_S", 0.05)
    with Running(settings(gguf_model("llama"), tmp_path / "d")):
        assert begun.wait(10)


def test_notes_that_fail_cost_only_what_they_save(
    gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreIndexError("the index is damaged")

    monkeypatch.setattr(BlockStore, "note", fail)
    monkeypatch.setattr(BlockStore, "set_note", fail)
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        run.answer(prompt(300))
    monkeypatch.undo()
    with Running(settings(gguf_model("llama"), tmp_path / "d")) as run:
        assert run.answer(prompt(300)).cached == {"disk": 256}


def test_stopping_while_the_model_loads_does_not_wait_for_it(
    gguf_model: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of many GB takes minutes; llama.cpp asks between tensors whether to go on."""
    loading, load = threading.Event(), module.LlamaEngine

    def late(config: EngineConfig, stop: Any) -> LlamaEngine:
        loading.set()
        while not stop():
            threading.Event().wait(0.01)
        return load(config, stop)

    monkeypatch.setattr(module, "LlamaEngine", late)
    service = Service(settings(gguf_model("llama"), None))
    service.start()
    assert loading.wait(10)
    service.stop(lambda _: None)
    assert service.state == "stopped"
    assert isinstance(service.failure, ModelLoadError)
    assert "stopped while the model loaded" in str(service.failure)

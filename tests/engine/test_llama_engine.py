import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import models
import numpy as np
import pytest
from engine_suite import (
    SIZE,
    EngineSuite,
    Saved,
    alike,
    go_on,
    prefill,
    restore,
    restore_runs,
    tokens,
)
from models import ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine import llama_blobs
from spillcache.engine.base import Chunk
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_state import LlamaState
from spillcache.errors import (
    ConfigError,
    ContextFullError,
    EngineError,
    ModelLoadError,
    StateRejected,
)
from spillcache.namespace import Namespace
from spillcache.state import HEADROOM_BYTES, Part

KINDS = ["llama", "gemma3", "lfm2", "qwen35", "mamba", "mamba2"]


def model_of(shelf: ModelShelf, kind: str, **shape: Any) -> Path:
    return shelf(kind, **({"n_swa": 128} if kind == "gemma3" else {}) | shape)


def open_engine(model: Path, **changes: Any) -> LlamaEngine:
    values = {"context_tokens": 1024, "ubatch_tokens": 128, "slots": 2, "threads": 1}
    return LlamaEngine(EngineConfig(model=model, **values | changes))


class LlamaSuite(EngineSuite):
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def engine(self, gguf_model: ModelShelf, kind: str) -> Iterator[LlamaEngine]:
        engine = open_engine(model_of(gguf_model, kind), **self.options)
        yield engine
        engine.close()

    @pytest.fixture
    def stranger(self, gguf_model: ModelShelf, kind: str) -> Saved:
        """State of a model of the same kind with other sizes."""
        layers = {"llama": 6, "gemma3": 12}.get(kind, 8)
        other = open_engine(model_of(gguf_model, kind, n_layer=layers), **self.options)
        saved = prefill(other, 0, tokens(SIZE))
        other.close()
        return saved

    @pytest.fixture
    def header_bytes(self, engine: LlamaEngine) -> Callable[[Part], Sequence[int]]:
        """Offsets of what is no data: counts, positions, types and sizes of rows."""

        def offsets(part: Part) -> list[int]:
            if part is Part.BOUNDARY:
                return [0, 4, 8, 12, 16, 20, 24]
            layout = engine._state.kv if part is Part.KV else engine._state.window
            assert layout is not None
            cells = 8 + layout.cells * layout.cell_bytes
            return [0, 4, 8, 12, cells, cells + 4, cells + 8, cells + 12, layout.data[-1][0] - 9]

        return offsets


class TestLlamaEngine(LlamaSuite):
    """The suite on every memory kind."""


class TestWithoutFlashAttention(LlamaSuite):
    """V is stored transposed."""

    options: ClassVar[dict[str, Any]] = {"flash_attention": "off"}

    @pytest.fixture(params=["llama", "gemma3"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestFullWindows(LlamaSuite):
    """The sliding window's cells are all kept."""

    options: ClassVar[dict[str, Any]] = {"swa_full": True}

    @pytest.fixture(params=["gemma3"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_a_window_that_is_gone_is_left_out(self, engine: LlamaEngine) -> None:
        saved = prefill(engine, 0, tokens(12 * SIZE))
        assert {p: bytes(v) for p, v in engine.export(0, 0).items()} == saved[0], "nothing goes"

    def test_a_window_model_goes_back_as_far_as_its_windows_reach(
        self, engine: LlamaEngine, cold: object
    ) -> None:
        prefill(engine, 0, tokens(12 * SIZE))
        assert all(engine.can_truncate(0, length) for length in range(12 * SIZE + 1))


@pytest.fixture
def plain(gguf_model: ModelShelf) -> Path:
    return gguf_model("llama")


# Identity.


def digest(engine: LlamaEngine) -> bytes:
    engine.close()
    return Namespace.of(engine.identity).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"type_k": "q8_0"},
        {"type_k": "bf16"},
        {"type_v": "bf16"},
        {"flash_attention": "off"},
        {"namespace_tag": "other"},
        {"block_tokens": 32},
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
)
def test_what_changes_the_state_changes_the_identity(plain: Path, changes: dict[str, Any]) -> None:
    base = {"flash_attention": "on"}
    assert digest(open_engine(plain, **base)) != digest(open_engine(plain, **base | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 2},
        {"ubatch_tokens": 512},
        {"slots": 1},
        {"context_tokens": 2048},
        {"mmap": False},
        {"chat_template": "chatml"},
        {"flash_attention": "auto"},  # what it came to is on
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
)
def test_what_does_not_change_the_state_does_not_change_the_identity(
    plain: Path, changes: dict[str, Any]
) -> None:
    base = {"flash_attention": "on"}
    assert digest(open_engine(plain, **base)) == digest(open_engine(plain, **base | changes))


def test_a_context_past_the_rope_switch_is_another_setting(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    model = models._Model(path, "llama", models.Shape())
    models._header(model, "llama")
    model.gguf.add_rope_scaling_orig_ctx_len(1024)
    models._vocabulary(model)
    models._llama(model)
    model.save()
    short, exact, long = (open_engine(path, context_tokens=n) for n in (512, 1024, 2048))
    assert [e.identity["rope_long"] for e in (short, exact, long)] == [False, False, True]
    assert digest(short) == digest(exact) != digest(long)


def test_the_rotation_switch_is_identity(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(open_engine(plain))
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert digest(open_engine(plain)) != before


# What it is made of.


def test_geometries(gguf_model: ModelShelf) -> None:
    found = {}
    for kind in KINDS:
        engine = open_engine(model_of(gguf_model, kind))
        g = engine.geometry
        found[kind] = (g.has_kv, g.window_blocks, g.has_boundary, g.boundary_stride)
        if g.has_kv and engine._state.recurrent is not None:
            assert engine._state.kv is not None
            between = g.boundary_stride * engine._state.kv.size
            assert engine._state.recurrent.size <= between, "no more than the blocks between them"
        assert g.boundary_stride % 2 == 0, "a call's end: calls are two blocks long"
        engine.close()
    assert found["llama"] == (True, 0, False, 0)
    assert found["gemma3"] == (True, 2, False, 0)
    assert found["lfm2"][:3] == found["qwen35"][:3] == (True, 0, True)
    assert found["mamba"] == found["mamba2"] == (False, 0, True, 32)


def test_the_context_is_what_was_asked_for_or_trained(gguf_model: ModelShelf) -> None:
    trained = open_engine(gguf_model("llama", n_ctx=512), context_tokens=0)
    assert trained.limits.context_tokens == trained.limits.train_tokens == 512
    trained.close()
    rounded = open_engine(gguf_model("llama"), context_tokens=300)
    assert rounded.limits.context_tokens == 512
    rounded.close()
    least = open_engine(gguf_model("llama"), context_tokens=1)
    assert least.limits.context_tokens == 256
    least.close()


def test_info(gguf_model: ModelShelf) -> None:
    model = gguf_model("llama")
    engine = open_engine(model)
    info = engine.info
    assert info.name == model.stem
    assert info.description.startswith("llama")
    assert info.bos_token == "<s>"
    assert info.eos_token == "</s>"
    assert info.chat_template == models.CHATML
    assert 0 < info.size_bytes < model.stat().st_size
    engine.close()


def test_a_ubatch_below_a_block_is_refused(plain: Path) -> None:
    with pytest.raises(ConfigError, match="-ub must be at least 64"):
        open_engine(plain, ubatch_tokens=63)


def test_calls_end_with_whole_blocks(plain: Path) -> None:
    engine = open_engine(plain, ubatch_tokens=200)
    assert engine.limits.call_tokens == 192
    engine.close()


def test_what_fails_while_it_opens_is_freed(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = LlamaEngine.close
    monkeypatch.setattr(LlamaEngine, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(ConfigError, match="--chat-template"):
        open_engine(plain, chat_template="nosuch")
    with pytest.raises(ModelLoadError, match="flash attention off"):
        open_engine(plain, type_v="q8_0", flash_attention="off")
    assert len(closed) == 2
    assert all(engine._model is None and engine._context is None for engine in closed)


def test_text_of_a_closed_engine(plain: Path) -> None:
    engine = open_engine(plain)
    ids = engine.tokenize("hello", add_special=True, parse_special=False)
    assert ids[0] == models.BOS
    assert engine.detokenize(ids) == "hello"
    assert engine.token_bytes(models.FIRST_BYTE + 200) == bytes([200])
    assert engine.is_end(models.EOS)
    assert engine.is_end(models.IM_END)
    assert not engine.is_end(ids[-1])
    assert "<|im_start|>user\nhi" in engine.chat_prompt([{"role": "user", "content": "hi"}])
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.tokenize("hello", add_special=True, parse_special=False)
    with pytest.raises(EngineError, match="closed"):
        engine.is_end(1)


# llama.cpp's word is not taken on trust.


def short_by_one(function: Any) -> Any:
    return lambda *args: function(*args) - 1


def test_an_export_of_another_length_than_announced_is_refused(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(plain)
    saved = prefill(engine, 0, tokens(SIZE))
    api = engine._api
    with monkeypatch.context() as patch:
        patch.setattr(
            api, "llama_state_seq_get_data_ext", short_by_one(api.llama_state_seq_get_data_ext)
        )
        with pytest.raises(StateRejected, match="exported"):
            engine.export(0, 0)
    again = engine.export(0, 0)
    assert bytes(again[Part.KV]) == saved[0][Part.KV]
    with monkeypatch.context() as patch:
        patch.setattr(
            api, "llama_state_seq_set_data_ext", short_by_one(api.llama_state_seq_set_data_ext)
        )
        engine.clear(0)
        with pytest.raises(StateRejected, match="took"):
            engine.import_(0, 0, saved[0])
    engine.clear(0)
    engine.decode([Chunk(1, tokens(SIZE, 2))])
    engine.import_(0, 0, saved[0])
    assert bytes(engine.export(0, 0)[Part.KV]) == saved[0][Part.KV], "no cell was left over"
    engine.close()


def test_a_truncate_that_llama_cpp_refuses_is_refused(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(plain)
    engine.decode([Chunk(0, tokens(100))])
    with monkeypatch.context() as patch:
        patch.setattr(engine._api, "llama_memory_seq_rm", lambda *_: False)
        with pytest.raises(StateRejected, match=r"llama\.cpp can't"):
            engine.truncate(0, 50)
    assert engine.length(0) == 100
    engine.close()


def test_a_state_layout_that_is_not_known_turns_the_tiers_off(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LlamaState.read

    def strange(blob: bytes, second: int, **options: Any) -> LlamaState:
        return read(blob[:-1], second, **options)

    monkeypatch.setattr(LlamaState, "read", strange)
    engine = open_engine(plain)
    verdict = engine.self_test()
    assert not verdict.passed
    assert "does not know" in verdict.detail
    assert engine.geometry.parts == ()
    engine.decode([Chunk(0, tokens(10), logits=True)])
    assert np.isfinite(engine.logits(0)).all(), "it still answers"
    engine.close()


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "qwen35"])
def test_a_run_of_blocks_goes_out_and_in_where_it_lies(gguf_model: ModelShelf, kind: str) -> None:
    """And is, split, what the blocks give one by one."""
    engine, other = (open_engine(model_of(gguf_model, kind), context_tokens=4096) for _ in "ab")
    saved = prefill(engine, 0, tokens(24 * SIZE + 5))
    size = engine.part_bytes[Part.KV]
    memory = memoryview(bytearray(HEADROOM_BYTES + 40 * size + (1 << 20)))
    other.import_run(1, 0, [{Part.KV: saved[0][Part.KV]}])
    for block, count in ((1, 5), (6, 10)):
        used = engine.export_run(0, block, count, memory)
        assert 0 < used <= count * size
        payload = memory[HEADROOM_BYTES : HEADROOM_BYTES + used]
        split = engine.split_run(payload, count)
        assert split == [saved[n][Part.KV] for n in range(block, block + count)]
        assert other.import_in_place(1, block, count, memory[: HEADROOM_BYTES + used])
    assert other.length(1) == 16 * SIZE
    for block in range(16):
        assert other.export(1, block)[Part.KV] == saved[block][Part.KV]
    assert engine.export_run(0, 20, 5, memory) == 0  # a tail
    assert engine.export_run(0, 0, 5, memory[: 4 * size]) == 0
    with pytest.raises(StateRejected, match="follow"):
        other.import_in_place(1, 6, 10, memory[: HEADROOM_BYTES + used])
    with pytest.raises(StateRejected):
        other.import_in_place(1, 16, 10, memory[: HEADROOM_BYTES + used + 1])
    with pytest.raises(StateRejected, match="a run of 10 blocks"):
        engine.split_run(payload[:1000], 10)
    assert engine._state.kv is not None
    swapped, one, two = bytearray(payload), 8, 8 + engine._state.kv.cell_bytes
    for at, other_at in ((one, two), (two, one)):  # the positions of the first two cells
        swapped[at : at + 4] = payload[other_at : other_at + 4]
    with pytest.raises(StateRejected, match="not in order"):
        engine.split_run(swapped, 10)
    engine.close()
    other.close()


def test_a_block_that_is_only_kv_is_a_run_of_one(gguf_model: ModelShelf) -> None:
    engine = open_engine(model_of(gguf_model, "llama"))
    saved = prefill(engine, 0, tokens(SIZE))
    memory = memoryview(bytearray(1 << 20))
    used = engine.export_run(0, 0, 1, memory)
    assert memory[HEADROOM_BYTES : HEADROOM_BYTES + used] == saved[0][Part.KV]
    assert engine.import_in_place(1, 0, 1, memory[: HEADROOM_BYTES + used])
    assert engine.export(1, 0)[Part.KV] == saved[0][Part.KV]
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_block_that_is_half_taken_leaves_nothing(
    gguf_model: ModelShelf, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes straight into the sequence, which may then have one of its two sections: once it is
    cleared, nothing is left of that.
    """
    engine, wanted, tail = open_engine(model_of(gguf_model, kind)), tokens(3 * SIZE), tokens(9, 2)
    saved = prefill(engine, 0, wanted)
    expected = go_on(engine, 0, tail)
    take = engine._memory.set

    def half(*args: Any) -> None:
        take(*args)
        raise StateRejected("the second section was not taken")

    engine.clear(0)
    with monkeypatch.context() as patch:
        patch.setattr(engine._memory, "set", half)
        with pytest.raises(StateRejected):
            restore(engine, 0, saved)
    engine.clear(0)
    assert engine._memory.oldest(0) == -1
    prefill(engine, 0, wanted)
    assert alike(go_on(engine, 0, tail), expected)
    engine.clear(0)
    restore(engine, 0, saved)
    assert alike(go_on(engine, 0, tail), expected)
    engine.close()


@pytest.mark.parametrize("kind", ["gemma3", "lfm2", "mamba"])
def test_a_block_with_other_parts_is_none(gguf_model: ModelShelf, kind: str) -> None:
    engine = open_engine(model_of(gguf_model, kind))
    prefill(engine, 0, tokens(2 * SIZE))
    memory = memoryview(bytearray(1 << 20))
    assert engine.export_run(0, 0, 1, memory) == 0
    assert not any(memory)
    assert not engine.import_in_place(1, 0, 1, memory)
    engine.close()


@pytest.mark.parametrize("options", [{"kind": "mamba"}, {"flash_attention": "off"}])
def test_where_blocks_can_not_be_split_there_are_no_runs(
    gguf_model: ModelShelf, options: dict[str, str]
) -> None:
    kind = options.pop("kind", "llama")
    engine = open_engine(model_of(gguf_model, kind), **options)
    prefill(engine, 0, tokens(4 * SIZE))
    memory = memoryview(bytearray(1 << 20))
    assert engine.export_run(0, 0, 4, memory) == 0
    assert not engine.import_in_place(1, 0, 4, memory)
    engine.close()


def test_a_large_boundary_grows_the_buffer(gguf_model: ModelShelf) -> None:
    """More than the first MiB: what was read before stays valid."""
    engine = open_engine(gguf_model("mamba", n_embd=512, n_layer=16))
    assert engine._state.recurrent is not None
    saved = prefill(engine, 0, tokens(SIZE))
    assert len(saved[0][Part.BOUNDARY]) == engine._state.recurrent.size
    assert engine._state.recurrent.size > 1 << 20
    engine.clear(0)
    engine.import_(0, 0, saved[0])
    assert engine.restored(0)
    engine.close()


def test_kv_and_boundary_share_a_buffer_that_grows(
    gguf_model: ModelShelf,
) -> None:
    engine = open_engine(gguf_model("qwen35"))
    engine.decode([Chunk(0, tokens(SIZE))])
    apart = {p: bytes(v) for p, v in engine.export(0, 0, boundary=True).items()}
    engine._memory._buffer = bytearray(16)
    together = engine.export(0, 0, boundary=True)
    assert {p: bytes(v) for p, v in together.items()} == apart
    assert ctypes.sizeof(ctypes.c_uint8) * len(engine._memory._buffer) >= sum(
        map(len, apart.values())
    )
    engine.close()


def test_a_block_that_finds_no_cells_is_told_from_one_that_is_refused(
    gguf_model: ModelShelf,
) -> None:
    engine = open_engine(model_of(gguf_model, "llama"), context_tokens=256)
    saved = prefill(engine, 0, tokens(3 * SIZE))
    engine.import_(1, 0, saved[0])
    with pytest.raises(ContextFullError, match="no room"):
        engine.import_(1, 1, saved[1])
    engine.clear(1)
    assert [bytes(engine.export(0, block)[Part.KV]) for block in range(3)] == [
        block[Part.KV] for block in saved
    ], "nothing was overwritten"
    engine.close()


def test_forks_that_share_a_long_prefix_do_not_fill_the_ring(gguf_model: ModelShelf) -> None:
    """Window cells that two sequences share are never taken again by llama.cpp."""
    model = model_of(gguf_model, "gemma3")
    engine = open_engine(model, slots=3, context_tokens=4096)
    try:
        prompt = tokens(20 * SIZE)
        prefill(engine, 0, prompt)
        assert all(engine.fork(0, s, len(prompt)) for s in (1, 2))
        for sequence in (1, 2, 0):
            prefill(engine, sequence, tokens(30 * SIZE, sequence), start=20 * SIZE)
        assert [engine.length(s) for s in range(3)] == [30 * SIZE] * 3
    finally:
        engine.close()


def test_a_fork_takes_its_last_token_back(gguf_model: ModelShelf) -> None:
    engine = open_engine(model_of(gguf_model, "gemma3"), context_tokens=2048)
    try:
        prompt = tokens(12 * SIZE)
        prefill(engine, 0, prompt)
        assert engine.fork(0, 1, len(prompt))
        engine.truncate(1, len(prompt) - 1)
        rows = [go_on(engine, 1, prompt[-1:])]
        engine.truncate(0, len(prompt) - 1)
        rows.append(go_on(engine, 0, prompt[-1:]))
        assert alike(*rows)
    finally:
        engine.close()


@pytest.mark.parametrize("neighbour", [0, 3])
@pytest.mark.parametrize("blocks", [2, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cleared_is_gone_and_nothing_else(
    gguf_model: ModelShelf, kind: str, blocks: int, neighbour: int
) -> None:
    """A short sequence and one that holds most of the cells, alone and beside another."""
    engine = open_engine(model_of(gguf_model, kind))
    try:
        kept, tail = tokens(neighbour * SIZE, 2), tokens(9, 3)
        saved = prefill(engine, 1, kept)
        prefill(engine, 0, tokens(blocks * SIZE))
        engine.clear(0)
        assert (engine.length(0), engine.length(1)) == (0, len(kept))
        assert engine._memory.oldest(0) == -1
        for block, state in enumerate(saved):
            now = engine.export(1, block, boundary=block == neighbour - 1)
            assert (Part.KV in now) == engine.geometry.has_kv
            assert all(payload == state[part] for part, payload in now.items())
        rows = go_on(engine, 0, tail)
        engine._forget_all()
        assert alike(rows, go_on(engine, 0, tail))
    finally:
        engine.close()


def processors_of_this_thread() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


@pytest.mark.parametrize("blob_bytes", [1, 40_000, 100_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_in_as_several_blobs_gives_the_same_bits(
    gguf_model: ModelShelf, kind: str, blob_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_blobs, "BLOB_BYTES", blob_bytes)
    engine = open_engine(model_of(gguf_model, kind))
    saved, tail = prefill(engine, 0, tokens(12 * SIZE)), tokens(9, 2)
    cold = go_on(engine, 0, tail)
    engine._forget_all()
    sizes, take = [], engine._memory.set

    def watched(sequence: int, blob: Any, size: int, flags: int = 0) -> None:
        sizes.append(size)
        take(sequence, blob, size, flags)

    monkeypatch.setattr(engine._memory, "set", watched)
    free = processors_of_this_thread()
    restore_runs(engine, saved)
    assert processors_of_this_thread() == free
    assert np.array_equal(go_on(engine, 0, tail), cold)
    if engine.geometry.has_kv:
        assert len(sizes) > 2
        assert engine.export(0, 3)[Part.KV] == saved[3][Part.KV]
    engine.close()


def test_a_run_that_is_half_taken_leaves_nothing(
    gguf_model: ModelShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anybody still read what the caller lets go of then."""
    monkeypatch.setattr(llama_blobs, "BLOB_BYTES", 1)
    engine = open_engine(model_of(gguf_model, "gemma3"))
    saved, tail = prefill(engine, 0, tokens(6 * SIZE)), tokens(9, 2)
    expected, joined, free = go_on(engine, 0, tail), [], processors_of_this_thread()
    take, join = engine._memory.set, engine._imports._blobs._join

    def third(*args: Any) -> None:
        if len(joined) > 2:
            raise StateRejected("no")
        take(*args)

    def slow(*args: Any) -> memoryview:
        time.sleep(0.02)
        blob = join(*args)
        joined.append(len(blob))
        return blob

    engine.clear(0)
    with monkeypatch.context() as patch:
        patch.setattr(engine._memory, "set", third)
        patch.setattr(engine._imports._blobs, "_join", slow)
        with pytest.raises(StateRejected, match="no"):
            restore_runs(engine, saved)
    assert processors_of_this_thread() == free
    count = len(joined)
    time.sleep(0.1)
    assert 2 < len(joined) == count < 6
    assert engine._memory.oldest(engine._spare) == -1
    engine.clear(0)
    assert engine._memory.oldest(0) == -1
    restore_runs(engine, saved)
    assert alike(go_on(engine, 0, tail), expected)
    engine.close()


def test_windows_begin_where_they_were_expected(gguf_model: ModelShelf) -> None:
    engine = open_engine(model_of(gguf_model, "gemma3"))
    try:
        saved = prefill(engine, 0, tokens(6 * SIZE))
        only_kv = [{Part.KV: state[Part.KV]} for state in saved]
        engine.clear(0)
        engine.expect_window(0, 2)  # the first import would undo it
        engine.import_(0, 0, only_kv[0])
        assert not engine._sequences[0].window_at
        for _ in range(2):
            engine.expect_window(0, 2)
            assert engine._sequences[0].window_at == 2 * SIZE
        with pytest.raises(StateRejected, match="windows are to begin at position 128"):
            engine.import_(0, 1, saved[1])
        for states in (saved[1:], only_kv[1:], only_kv[1:3] + saved[3:]):
            with pytest.raises(StateRejected, match="windows are to begin at position 128"):
                engine.import_run(0, 1, states)
        assert engine.import_run(0, 1, only_kv[1:2] + saved[2:4]) == 3
        engine.import_run(0, 4, saved[4:])
        assert engine.restored(0)
    finally:
        engine.close()


@pytest.mark.parametrize("beside", [1, 40, 128, 300])
@pytest.mark.parametrize("at_once", [True, False])
def test_restored_windows_find_room_beside_others(
    gguf_model: ModelShelf, beside: int, at_once: bool
) -> None:
    """Wherever the ring of window cells stands: the cells of a cold run are others' in part."""
    engine = open_engine(model_of(gguf_model, "gemma3"), context_tokens=4096)
    try:
        blocks = 2 * engine._imports.ring // SIZE + 3
        prompt, more, neighbour = tokens(blocks * SIZE), tokens(9, 4), tokens(beside, 5)
        saved = prefill(engine, 0, prompt)

        def speak() -> None:
            for at in range(0, beside, SIZE):
                engine.decode([Chunk(1, neighbour[at : at + SIZE])])

        engine._forget_all()
        speak()
        other = go_on(engine, 1, more)
        for end in range(2, blocks):
            engine._forget_all()
            prefill(engine, 0, prompt[: end * SIZE])
            cold = go_on(engine, 0, more)
            engine._forget_all()
            speak()
            if at_once:
                assert restore_runs(engine, saved[:end]) == [end]
            else:
                first = end - engine.geometry.window_blocks
                restore(engine, 0, saved[:end], expect=first if first > 0 else None)
            assert alike(go_on(engine, 0, more), cold), end
            assert alike(go_on(engine, 1, more), other), end
    finally:
        engine.close()


def test_restored_windows_lie_in_the_cells_of_a_cold_run(gguf_model: ModelShelf) -> None:
    """However often the ring of window cells has turned, and from where: a cell that lies elsewhere
    is another sum.
    """
    engine = open_engine(model_of(gguf_model, "gemma3"), slots=1, context_tokens=4096)
    try:
        ring = engine._imports.ring
        assert ring % SIZE == 0
        blocks = 3 * ring // SIZE
        prompt, more = tokens(blocks * SIZE), tokens(9, 4)
        saved = prefill(engine, 0, prompt)
        for end in (ring // SIZE, *range(ring // SIZE + 1, blocks, 3), blocks):
            rows = []
            first = max(1, end - engine.geometry.window_blocks)
            for how in ("cold", "warm", "early", "at once"):
                # As at a server's start: where llama.cpp looks for cells first depends on the past.
                engine._forget_all()
                if how == "cold":
                    prefill(engine, 0, prompt[: end * SIZE])
                elif how == "at once":
                    assert restore_runs(engine, saved[:end]) == [end]
                else:
                    restore(engine, 0, saved[:end], expect=first if how == "early" else None)
                rows.append(go_on(engine, 0, more))
            assert all(np.array_equal(rows[0], row) for row in rows), end
    finally:
        engine.close()

"""LoRA adapters of the llama.cpp engine: loaded, switched, told apart by content, refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from models import ModelShelf, write_adapter
from numpy.typing import NDArray

from spillcache.config import AdapterFile, EngineConfig
from spillcache.engine.base import AdapterScales, Chunk
from spillcache.engine.llama_adapters import LlamaAdapters
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_library import library
from spillcache.errors import EngineLibraryError, ModelLoadError

TOKENS = np.arange(5, 105, dtype=np.uint32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    paths = [folder / "first.gguf", folder / "second.gguf"]
    for seed, path in enumerate(paths):
        write_adapter(path, seed)
    return paths


@pytest.fixture(scope="module")
def engine(gguf_model: ModelShelf, files: list[Path]) -> Any:
    adapters = (AdapterFile(files[0]), AdapterFile(files[1], 0.5))
    made = LlamaEngine(
        EngineConfig(gguf_model("llama"), context_tokens=512, threads=1, adapters=adapters)
    )
    yield made
    made.close()


def logits(engine: LlamaEngine, scales: AdapterScales) -> NDArray[np.float32]:
    engine.clear(0)
    engine.use_adapters(scales)
    engine.decode([Chunk(0, TOKENS, logits=True)])
    return engine.logits(0)


def test_what_was_loaded_is_told(engine: LlamaEngine, files: list[Path]) -> None:
    first, second = engine.adapters
    assert (first.id, first.name, first.scale) == (0, "first.gguf", 1.0)
    assert (second.id, second.name, second.scale) == (1, "second.gguf", 0.5)
    assert [a.digest for a in engine.adapters] == [blake3(f.read_bytes()).digest() for f in files]


def test_every_set_computes_something_else_and_always_the_same(engine: LlamaEngine) -> None:
    sets: list[AdapterScales] = [
        (), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 1.0)),
    ]  # fmt: skip
    first = [logits(engine, scales) for scales in sets]
    for i, one in enumerate(first):
        assert all(np.abs(one - other).max() > 0.01 for other in first[:i])
    for scales, one in zip(reversed(sets), reversed(first), strict=True):
        assert np.array_equal(logits(engine, scales), one)


def test_a_state_is_the_adapters_own(engine: LlamaEngine) -> None:
    logits(engine, ())
    plain = {part: bytes(data) for part, data in engine.export(0, 0).items()}
    logits(engine, ((0, 1.0),))
    assert {part: bytes(data) for part, data in engine.export(0, 0).items()} != plain


def test_an_engine_without_adapters_computes_as_before(
    gguf_model: ModelShelf, engine: LlamaEngine
) -> None:
    bare = LlamaEngine(EngineConfig(gguf_model("llama"), context_tokens=512, threads=1))
    try:
        assert bare.adapters == ()
        assert np.array_equal(logits(bare, ()), logits(engine, ()))
    finally:
        bare.close()


def load(gguf_model: ModelShelf, path: Path) -> None:
    adapters = (AdapterFile(path),)
    LlamaEngine(
        EngineConfig(gguf_model("llama"), context_tokens=512, threads=1, adapters=adapters)
    ).close()


def test_what_is_no_adapter_of_the_model_is_refused(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf can't be read"):
        load(gguf_model, tmp_path / "none.gguf")
    with pytest.raises(ModelLoadError, match="can't load the adapter"):
        load(gguf_model, gguf_model("gemma3"))
    other = tmp_path / "other.gguf"
    write_adapter(other, 0, n_embd=256, n_head=2)
    with pytest.raises(ModelLoadError, match="can't load the adapter"):
        load(gguf_model, other)


class FakeApi(SimpleNamespace):
    """As much of the library as loading an adapter needs."""

    def __init__(self, path: Path, activated: int = 0, replaced: bool = False) -> None:
        super().__init__()
        self.llama_set_adapters_lora = None
        self.llama_adapter_get_alora_n_invocation_tokens = lambda _: activated
        self._path, self._replaced = path, replaced

    def llama_adapter_lora_init(self, _model: Any, _path: bytes) -> str:
        if self._replaced:
            self._path.write_bytes(b"another one")
        return "handle"


def fake_library(api: Any) -> Any:
    return SimpleNamespace(api=api, log=library().log)


def test_a_file_that_is_replaced_while_it_loads_is_not_mistaken(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    lib = fake_library(FakeApi(path, replaced=True))
    with pytest.raises(ModelLoadError, match="changed while it was loaded"):
        LlamaAdapters(lib, None, [AdapterFile(path)])


def test_activated_adapters_and_old_libraries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    with pytest.raises(ModelLoadError, match="activated LoRA"):
        LlamaAdapters(fake_library(FakeApi(path, activated=3)), None, [AdapterFile(path)])
    with pytest.raises(EngineLibraryError, match="LoRA"):
        LlamaAdapters(fake_library(SimpleNamespace()), None, [AdapterFile(path)])
    assert LlamaAdapters(fake_library(SimpleNamespace()), None, []).known == ()


def test_a_stop_ends_the_hashing(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    with pytest.raises(ModelLoadError, match="stopped"):
        LlamaAdapters(fake_library(FakeApi(path)), None, [AdapterFile(path)], lambda: True)

"""What a user may say of devices, metadata and RoPE reaches the library, and the namespace where it
changes state.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import BOS, ModelShelf

from spillcache.config import EngineConfig, PlacementConfig, RopeConfig
from spillcache.engine import llama_placement
from spillcache.engine.base import Chunk, Logits
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import ConfigError

PROMPT = np.array([BOS, *range(20, 140)], np.uint32)


@pytest.fixture(scope="module")
def path(gguf_model: ModelShelf) -> Path:
    return gguf_model("llama")


@contextmanager
def engine_of(path: Path, **config: Any) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(EngineConfig(path, context_tokens=512, threads=1, **config))
    try:
        yield engine
    finally:
        engine.close()


def outcome(path: Path, **config: Any) -> tuple[Logits, Mapping[str, Any]]:
    with engine_of(path, **config) as engine:
        engine.decode([Chunk(0, PROMPT, logits=True)])
        return engine.logits(0), engine.identity


@pytest.fixture(scope="module")
def plain(path: Path) -> tuple[Logits, Mapping[str, Any]]:
    return outcome(path)


@pytest.mark.parametrize(
    "config",
    [
        {"rope": RopeConfig(freq_base=500.0)},
        {"rope": RopeConfig(freq_scale=0.25)},
        {"rope": RopeConfig(scaling="yarn", freq_scale=0.25, yarn_orig_ctx=64)},
        {"rope": RopeConfig("yarn", None, 0.25, 64, 1.0, 1.0, 1.0, 32.0)},
        {"overrides": (("llama.rope.freq_base", "float", 500.0),)},
    ],
    ids=["base", "scale", "yarn", "all", "metadata"],
)
def test_what_changes_state_is_another_namespace(
    path: Path, plain: tuple[Logits, Mapping[str, Any]], config: dict[str, Any]
) -> None:
    logits, identity = outcome(path, **config)
    assert not np.array_equal(logits, plain[0])
    assert dict(identity) != dict(plain[1])
    assert set(plain[1]) < set(identity)


def test_each_value_has_its_own(path: Path) -> None:
    found = set()
    for field in dataclasses.fields(RopeConfig):
        value = "linear" if field.name == "scaling" else 64 if "ctx" in field.name else 1.5
        with engine_of(path, rope=RopeConfig(**{field.name: value})) as engine:
            found.add(tuple(sorted(engine.identity.items())))
    assert len(found) == len(dataclasses.fields(RopeConfig))


@pytest.mark.parametrize(
    "config",
    [
        {"mmap": False},
        {"mlock": True},
        {"mlock": True, "mmap": False},
        {"direct_io": True},
        {"placement": PlacementConfig("layer", (1.0,), 0, ((r"blk\.0\..*", "CPU"),), False)},
        {"overrides": (("general.name", "str", "other"), ("x.y", "int", 5), ("x.z", "bool", True))},
    ],
    ids=["no mmap", "mlock", "mlock alone", "direct", "places", "harmless metadata"],
)
def test_where_it_lies_changes_no_answer(
    path: Path, plain: tuple[Logits, Mapping[str, Any]], config: dict[str, Any]
) -> None:
    logits, identity = outcome(path, **config)
    assert np.array_equal(logits, plain[0])
    if "overrides" not in config:
        assert dict(identity) == dict(plain[1])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"placement": PlacementConfig(tensors=(("x", "TPU"),))},
            "there is no buffer type TPU; there are CPU",
        ),
        ({"placement": PlacementConfig(tensor_split=(1.0,) * 999)}, "devices at most"),
        ({"overrides": (("k" * 128, "int", 1),)}, "more than 127 bytes"),
        ({"overrides": (("k", "str", "v" * 128),)}, "more than 127 bytes"),
    ],
)
def test_what_there_is_not(path: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says), engine_of(path, **config):
        pass


def test_metadata_that_the_tokeniser_follows(path: Path) -> None:
    with engine_of(path, overrides=(("tokenizer.ggml.add_bos_token", "bool", False),)) as engine:
        assert engine.tokenize("a", add_special=True, parse_special=True) == [102]


@pytest.mark.parametrize("missing", ["library", "functions"])
def test_a_library_that_tells_no_buffer_types(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    class Nothing:
        pass

    api: Any = Nothing()
    if missing == "functions":
        api.llama_cpp = Nothing()
        api.llama_cpp._lib = Nothing()
        api.llama_cpp._lib._name = "x"
        make: Callable[[str], Any] = lambda _: Nothing()  # noqa: E731
        monkeypatch.setattr(llama_placement.ctypes, "CDLL", make)
    with pytest.raises(ConfigError, match="tells no"):
        llama_placement._buffer_types(api)

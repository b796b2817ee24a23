"""The tests' own models: the library loads each, and their bytes depend on what they should."""

from pathlib import Path

import pytest
from llama_cpp import llama_cpp
from models import BOS, FIRST_BYTE, IM_END, KINDS, ModelShelf, write_model

CASES = [*((kind, {}) for kind in KINDS), ("gemma3", {"n_swa": 512}), ("llama", {"n_vocab": 300})]


@pytest.mark.parametrize(("kind", "overrides"), CASES)
def test_the_library_loads_each(
    gguf_model: ModelShelf, kind: str, overrides: dict[str, int]
) -> None:
    path = gguf_model(kind, **overrides)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    assert model
    try:
        vocab = llama_cpp.llama_model_get_vocab(model)
        assert llama_cpp.llama_vocab_n_tokens(vocab) == overrides.get("n_vocab", 512)
        assert llama_cpp.llama_vocab_bos(vocab) == BOS
        assert llama_cpp.llama_vocab_is_eog(vocab, IM_END)
        window = overrides.get("n_swa", 64) if kind == "gemma3" else 0
        assert llama_cpp.llama_model_n_swa(model) == window
        assert llama_cpp.llama_model_is_recurrent(model) == kind.startswith("mamba")
        assert llama_cpp.llama_model_is_hybrid(model) == (kind in {"lfm2", "qwen35"})
        text = "Hé, w!".encode()
        ids = (llama_cpp.llama_token * 32)()
        count = llama_cpp.llama_tokenize(vocab, text, len(text), ids, 32, True, True)
        space = FIRST_BYTE + 256
        expected = [FIRST_BYTE + byte if byte != ord(" ") else space for byte in text]
        assert list(ids[:count]) == [BOS, *expected]
    finally:
        llama_cpp.llama_model_free(model)


def test_bytes_depend_on_kind_and_shape_alone(tmp_path: Path) -> None:
    contents = []
    for name, overrides in (("a", {}), ("b", {}), ("c", {"seed": 1}), ("d", {"n_layer": 2})):
        write_model(tmp_path / name, "llama", **overrides)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def test_a_shelf_writes_each_once(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path)
    path = shelf("llama", seed=2)
    before = path.stat()
    assert shelf("llama", seed=2) == path
    assert path.stat() == before
    assert shelf("llama", seed=3) != path
    assert {each.suffix for each in tmp_path.iterdir()} == {".gguf"}


@pytest.mark.parametrize(
    ("kind", "overrides"), [("llama", {"n_vocab": 100}), ("lfm2", {"n_head": 3})]
)
def test_shapes_that_can_not_be_are_refused(
    tmp_path: Path, kind: str, overrides: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="must be"):
        write_model(tmp_path / "model.gguf", kind, **overrides)

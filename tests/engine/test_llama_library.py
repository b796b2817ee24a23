import builtins
import ctypes
import gc
import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
from blake3 import blake3
from models import ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine import llama_library
from spillcache.engine.llama_library import (
    NEEDED,
    Library,
    LibraryLog,
    check_model_file,
    library,
    load_model,
    model_files,
    new_context,
)
from spillcache.errors import EngineLibraryError, ModelLoadError


@pytest.fixture
def lib() -> Library:
    return library()


# The library.


def test_it_is_loaded_once(lib: Library) -> None:
    assert library() is lib
    assert lib.api is llama_cpp


def test_the_digest_is_of_the_files_content(lib: Library) -> None:
    files = lib._loaded_files()
    names = {path.name.split(".")[0] for path in files}
    assert {"libllama", "libggml"} <= names
    assert len(files) == len(set(files)), "links are followed: each counts once"
    expected = blake3(b"".join(blake3(path.read_bytes()).digest() for path in files)).digest()
    assert lib.digest == expected == lib.digest


def test_another_build_of_the_same_version_has_another_digest(
    lib: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lib.digest
    folder = tmp_path / "lib"
    folder.mkdir()
    for path in lib._loaded_files():
        shutil.copy(path, folder / path.name)
    (folder / "notes.txt").write_text("not a library")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
    assert lib.digest == before
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    with open(next(other.glob("libllama*")), "ab") as file:
        file.write(b"x")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(other))
    assert lib.digest != before


def test_version_and_devices(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = importlib.metadata.version("llama-cpp-python")
    assert lib.version.startswith(ours)
    assert "CPU" in lib.devices
    assert "\n" not in lib.devices
    native = SimpleNamespace(llama_version=lambda: b"b1234")
    monkeypatch.setattr(lib, "api", native)
    assert lib.version == f"{ours} b1234"
    monkeypatch.setattr(lib, "api", SimpleNamespace())
    assert lib.version == ours


@pytest.mark.parametrize("name", NEEDED)
def test_a_library_that_lacks_a_function_is_named_too_old(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(llama_cpp, name)
    with pytest.raises(EngineLibraryError, match=rf"lacks {name}; install llama-cpp-python"):
        Library()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(EngineLibraryError, match=r"pip install 'spillcache\[llama\]'"):
        Library()


@pytest.mark.parametrize("error", [OSError("no such file"), RuntimeError("undefined symbol")])
def test_a_library_that_does_not_load(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def fail(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "llama_cpp":
            raise error
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(EngineLibraryError, match=f"does not load: {error}"):
        Library()


def test_a_path_without_a_library(tmp_path: Path) -> None:
    """As a user meets it: LLAMA_CPP_LIB_PATH points at an empty folder."""
    code = (
        "from spillcache.engine.llama_library import library\n"
        "from spillcache.errors import EngineLibraryError\n"
        "try:\n    library()\n"
        "except EngineLibraryError as error:\n    print(error.code, error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert child.stdout.startswith("ENGINE_LIBRARY the llama.cpp library does not load:")


# Its log.


class Said:
    """A library whose log can be spoken into."""

    llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

    def llama_log_set(self, callback: Any, _user: Any) -> None:
        self.say = callback


def test_errors_are_kept_and_all_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    said = Said()
    log = LibraryLog(said)
    gc.collect()
    with caplog.at_level(logging.DEBUG, "spillcache.llama"):
        said.say(2, b"loading ", None)
        said.say(5, b"tensors\n", None)
        said.say(4, b"first\n  \nsec", None)
        said.say(4, b"ond\n", None)
        said.say(4, b"caf\xc3", None)
        said.say(4, b"\xa9\n", None)
        for number in range(4):
            said.say(4, b"error %d\n" % number, None)
    assert [r.getMessage() for r in caplog.records][:4] == [
        "loading tensors", "first", "  ", "second",
    ]  # fmt: skip
    assert list(log.errors) == [f"error {n}" for n in range(4)], "the last four"


# Models.


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"there is no model file .*nosuch\.gguf"):
        check_model_file(tmp_path / "nosuch.gguf")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is not a file"):
        check_model_file(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"<html>not found</html>", b"gguf" + bytes(99)])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="is not a GGUF model"):
        check_model_file(path)


def test_a_model_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(ModelLoadError, match="can't be read: Permission denied"):
        check_model_file(path)


@pytest.mark.parametrize("keep", [4, 100, 0.5, 0.999])
def test_a_truncated_model_is_refused_with_llama_cpps_reason(
    lib: Library, gguf_model: ModelShelf, tmp_path: Path, keep: float
) -> None:
    whole = gguf_model("llama").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(ModelLoadError, match=r"llama.cpp can't load .*cut.gguf: (?!no reason)"):
        load_model(lib, EngineConfig(path))


def test_an_earlier_failure_is_not_the_reason_of_a_later_one(
    lib: Library, gguf_model: ModelShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError):
        load_model(lib, EngineConfig(tmp_path / "one.gguf"))
    assert lib.log.errors
    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", lambda *_: None)
    with pytest.raises(ModelLoadError, match="no reason given; is there enough memory"):
        load_model(lib, EngineConfig(gguf_model("llama")))


@pytest.mark.parametrize(("layers", "gpu", "warned"), [(1, False, 1), (1, True, 0), (0, False, 0)])
def test_layers_for_a_gpu_that_the_library_does_not_know(
    lib: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    layers: int, gpu: bool, warned: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(lib.api, "llama_supports_gpu_offload", lambda: gpu)
    (tmp_path / "odd.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError):
        load_model(lib, EngineConfig(tmp_path / "odd.gguf", gpu_layers=layers))
    said = [r.message for r in caplog.records if r.message.startswith("-ngl: ")]
    assert len(said) == warned


def test_parts_of_a_split_model() -> None:
    assert model_files(Path("/m/x.gguf")) == [Path("/m/x.gguf")]
    assert model_files(Path("/m/x-00001-of-00003.gguf")) == [
        Path(f"/m/x-0000{i}-of-00003.gguf") for i in (1, 2, 3)
    ]
    assert model_files(Path("/m/a-00002-of-00001.gguf-b.gguf")) == [
        Path("/m/a-00002-of-00001.gguf-b.gguf")
    ]


def test_a_missing_part_is_named(lib: Library, gguf_model: ModelShelf, tmp_path: Path) -> None:
    first = tmp_path / "x-00001-of-00002.gguf"
    shutil.copy(gguf_model("llama"), first)
    with pytest.raises(ModelLoadError, match=r"x-00002-of-00002\.gguf"):
        load_model(lib, EngineConfig(first))


@pytest.mark.parametrize("mmap", [True, False])
def test_a_model_loads_from_any_name(
    lib: Library, gguf_model: ModelShelf, tmp_path: Path, mmap: bool
) -> None:
    path = tmp_path / "ein Modell – größer.gguf"
    shutil.copy(gguf_model("llama"), path)
    model = load_model(lib, EngineConfig(path, mmap=mmap))
    assert llama_cpp.llama_model_n_layer(model) == 4
    llama_cpp.llama_model_free(model)


# Contexts.


def test_a_context_that_llama_cpp_refuses_names_the_settings(
    lib: Library, gguf_model: ModelShelf
) -> None:
    """Quantised V needs flash attention."""
    config = EngineConfig(gguf_model("llama"), type_v="q8_0", flash_attention="off")
    model = load_model(lib, config)
    with pytest.raises(ModelLoadError, match="K f16, V q8_0, flash attention off") as caught:
        new_context(lib, model, config, 2, 256)
    assert "no reason" not in str(caught.value)
    llama_cpp.llama_model_free(model)


def test_a_context_is_what_was_asked_for(lib: Library, gguf_model: ModelShelf) -> None:
    config = EngineConfig(gguf_model("llama"), ubatch_tokens=128, threads=3)
    model = load_model(lib, config)
    context = new_context(lib, model, config, 4, 512)
    assert llama_cpp.llama_n_ctx(context) == 512
    assert llama_cpp.llama_n_batch(context) == llama_cpp.llama_n_ubatch(context) == 128
    assert llama_cpp.llama_n_seq_max(context) == 4
    assert llama_cpp.llama_n_threads(context) == 3
    llama_cpp.llama_free(context)
    unsaid = new_context(lib, model, EngineConfig(config.model), 1, 256)
    assert llama_cpp.llama_n_threads(unsaid) == len(os.sched_getaffinity(0))
    llama_cpp.llama_free(unsaid)
    llama_cpp.llama_model_free(model)


def test_a_second_thread_waits_for_the_first_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(llama_library, "_library", None)
    monkeypatch.setattr(llama_library, "Library", make)
    assert library() is library() is made[0]
    assert len(made) == 1

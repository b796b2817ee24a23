"""Fixtures that more than one room uses."""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from models import ModelShelf

from spillcache.cli.model_path import find_model

_OMP_PAUSE_SOFT = 1


@pytest.fixture(scope="session")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> ModelShelf:
    """``gguf_model(kind, **overrides) -> Path``: a tiny model, written once per test session."""
    return ModelShelf(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """gemma3-270m, assembled from its package once per machine."""
    return find_model("gemma3-270m")


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """``filesystem(MiB) -> Path``: a filesystem of that size, gone after the test."""
    mounted: list[Path] = []

    def make(size_mib: int) -> Path:
        path = tmp_path / "small"
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)]
        try:
            done = subprocess.run(mount, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount here")
        if done.returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(autouse=True)
def no_idle_workers() -> Iterator[None]:
    """OpenMP keeps a thread's workers when their work is done. Where there are more of them than
    processors, all sleep between the steps of a call, which then takes four times as long.
    """
    yield
    library = _openmp()
    if library is not None:
        library.omp_pause_resource_all(_OMP_PAUSE_SOFT)


@cache
def _openmp() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
    return library if hasattr(library, "omp_pause_resource_all") else None

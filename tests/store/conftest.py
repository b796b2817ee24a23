from collections.abc import Iterator
from pathlib import Path

import pytest
from store_tools import config

from spillcache.store.block_store import BlockStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """An empty store with the smallest quota."""
    with BlockStore.open(config(tmp_path / "cache")) as opened:
        yield opened

import json
from pathlib import Path
from typing import Any

import pytest
from care_tools import BLUE, RED, blocks_of, config, put

from spillcache.store.block_store import BlockStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        put(store, RED, 5)
        put(store, BLUE, 3)
    return path


def test_hidden_and_shown_beside_a_store_in_use(cli: Any, directory: Path) -> None:
    with BlockStore.open(config(directory)) as store:
        ended = cli("invalidate", str(directory), RED.id.hex()[:8], "--reason", " a bad\n build ")
        assert (ended.code, ended.err) == (0, "")
        assert f"{RED.id.hex()} is hidden" in ended.out
        assert (blocks_of(store, RED), blocks_of(store, BLUE)) == (0, 3)
        assert {info.reason for info in store.namespaces()} == {"a bad build", ""}
        words = ("--cache-disk", str(directory), RED.id.hex(), "--undo", "--json")
        report = json.loads(cli("invalidate", *words).out)
        assert report == {"path": str(directory), "namespace": RED.id.hex(), "hidden": False}
        assert blocks_of(store, RED) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which namespace"),
        ([RED.id.hex()], "say why"),
        ([RED.id.hex(), "--reason", "  "], "say why"),
        ([RED.id.hex(), "--reason", "x", "--undo"], "say why"),
        (["ffffffff", "--undo"], "has no namespace"),
    ],
)
def test_what_can_not_be_meant(cli: Any, directory: Path, words: list[str], said: str) -> None:
    ended = cli("invalidate", str(directory), *words)
    assert ended.code == 2
    assert said in ended.err

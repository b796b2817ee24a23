"""Children run this package's modules, whatever lies where the server was started."""

import json
import sys
from pathlib import Path

import pytest

from spillcache.config import StoreConfig
from spillcache.engine.grammar_trial import GrammarTrials
from spillcache.errors import RequestError
from spillcache.own_child import module_command, own_environment
from spillcache.store import probe
from spillcache.store.block_store import BlockStore
from spillcache.store.probe import Health, health

SLOW = {"allOf": [{"pattern": f"a.*b{n}.*c"} for n in range(20)], "type": "string"}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory with a file that is called as one of Python's modules."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "signal.py").write_text("import pathlib\npathlib.Path('ran').touch()\nraise OSError")
    monkeypatch.chdir(folder)
    return folder


def test_a_grammar_is_tried(elsewhere: Path) -> None:
    GrammarTrials().check("json_schema", '{"type": "string", "pattern": "a+"}')
    with pytest.raises(RequestError, match="compiling it takes more than"):
        GrammarTrials().check("json_schema", json.dumps(SLOW))
    assert not (elsewhere / "ran").exists()


@pytest.fixture
def index(tmp_path):
    with BlockStore.open(StoreConfig(tmp_path / "cache", min_free_bytes=0)):
        return tmp_path / "cache" / "index"


def test_an_index_is_probed(elsewhere: Path, index: Path) -> None:
    found = health(index)
    assert not (elsewhere / "ran").exists()
    assert found is Health.SOUND


def test_a_child_that_can_not_begin_says_nothing_of_the_index(index: Path, monkeypatch) -> None:
    monkeypatch.setattr(probe, "own_environment", lambda: {"PYTHONHOME": "/nowhere"})
    assert health(index) is Health.UNKNOWN


def test_modules_are_found_where_this_process_finds_them(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", ["/first", "", "/second"])
    assert own_environment()["PYTHONPATH"] == "/first:/second"
    assert module_command("a.b", "c") == [sys.executable, "-P", "-m", "a.b", "c"]

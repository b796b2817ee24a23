"""Who is alone with a store, and what becomes of those who wait."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from store_tools import NAMESPACE, check_all, config, objects

from spillcache.errors import StoreFormatError
from spillcache.store import tenancy
from spillcache.store.block_store import BlockStore
from spillcache.store.index_sum import INDEX_SUM
from spillcache.store.tenancy import Tenancy, alone_with

HOLD = """
import sys
from pathlib import Path
from spillcache.store.tenancy import Tenancy
share = Tenancy(Path(sys.argv[1]))
print(share.is_alone, flush=True)
sys.stdin.readline()
share.share()
print("shared", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process, alone with the store that it is given; a line makes it share it."""
    children: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def enter(path: Path, found: list[bool]) -> threading.Thread:
    def work() -> None:
        share = Tenancy(path)
        found.append(share.is_alone)
        share.end()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_alone_or_not(tmp_path):
    with BlockStore.open(config(tmp_path)), alone_with(tmp_path) as alone:
        assert not alone
    with alone_with(tmp_path) as alone:
        assert alone
        with alone_with(tmp_path) as second:
            assert not second
    with alone_with(tmp_path) as alone:
        assert alone


def test_who_waits_for_one_that_dies_is_alone(tmp_path, holder, caplog, monkeypatch):
    monkeypatch.setattr(tenancy, "_QUIET_S", 0.05)
    caplog.set_level(logging.WARNING)
    child, found = holder(tmp_path), []
    thread = enter(tmp_path, found)
    thread.join(0.3)
    assert thread.is_alive()
    assert caplog.text.count(f"waiting for a process that works on {tmp_path} alone") == 1
    os.kill(child.pid, signal.SIGKILL)
    thread.join(10)
    assert found == [True]


def test_who_waits_for_one_that_lets_others_in_is_not(tmp_path, holder):
    child, found = holder(tmp_path), []
    thread = enter(tmp_path, found)
    child.stdin.write("\n")
    child.stdin.flush()
    thread.join(10)
    assert found == [False]


def _append(shares: list[Tenancy], path: Path) -> None:
    shares.append(Tenancy(path))


def test_several_that_wait_agree_on_who_is_alone(tmp_path):
    for _ in range(20):
        shares: list[Tenancy] = []
        enter = partial(_append, shares, tmp_path)
        threads = [threading.Thread(target=enter) for _ in range(3)]
        for thread in threads:
            thread.start()
        # Whoever is alone lets the others in.
        while len(shares) < 3:
            for each in shares:
                if each.is_alone:
                    each.share()
        for thread in threads:
            thread.join(10)
        with alone_with(tmp_path) as alone:
            assert not alone
        for each in shares:
            each.end()


def test_the_last_one_does_what_is_to_be_done(tmp_path):
    done: list[str] = []
    first = Tenancy(tmp_path)
    first.share()
    second = Tenancy(tmp_path)
    first.end(lambda: done.append("first"))
    second.end(lambda: done.append("second"))
    assert done == ["second"]


def open_meanwhile(path: Path, how, found: list[object]) -> threading.Thread:
    def work() -> None:
        try:
            with how() as store:
                found.append(store.usage().objects)
        except StoreFormatError as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_store_that_is_deleted_while_others_wait(tmp_path, holder):
    """A server makes a new one; what only cares for it says that there is none."""
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        store.put(NAMESPACE, objects(1, 3))
    child = holder(path)
    served, cared = [], []
    care = open_meanwhile(path, lambda: BlockStore.visit(path), cared)
    care.join(0.3)
    for each in path.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    child.kill()
    care.join(10)
    assert "holds no spillcache store" in str(cared)
    assert list(path.iterdir()) == []
    child = holder(path)
    serve = open_meanwhile(path, lambda: BlockStore.open(config(path)), served)
    serve.join(0.3)
    for each in path.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    child.kill()
    serve.join(10)
    assert served == [0]


def test_who_comes_after_a_kill_looks_at_the_index(tmp_path, holder):
    """The sum of the index must not outlive its first change, whoever was in the way."""
    with BlockStore.open(config(tmp_path)) as store:
        store.put(NAMESPACE, objects(1, 3))
    child, found = holder(tmp_path), []
    thread = open_meanwhile(tmp_path, lambda: BlockStore.open(config(tmp_path)), found)
    thread.join(0.3)
    assert (tmp_path / INDEX_SUM).exists()
    child.kill()
    thread.join(10)
    assert found == [3]
    with BlockStore.open(config(tmp_path)) as store:
        assert not (tmp_path / INDEX_SUM).exists()
        check_all(store, objects(1, 3))

"""What a kill −9 of a busy server loses."""

import os
import subprocess
import sys
import time
from pathlib import Path

from busy_child import DIRTY_S
from models import ModelShelf

from spillcache.chain import BlockHash
from spillcache.config import StoreConfig
from spillcache.state import Part
from spillcache.store.block_store import BlockStore

SLACK_S = 3.0
"""For a machine that has other things to do, too."""
ENOUGH = 20


def test_a_kill_of_a_busy_server_loses_what_was_dirty_for_less_than_its_time(
    gguf_model: ModelShelf, tmp_path: Path
) -> None:
    log, script = tmp_path / "offered", Path(__file__).parent / "busy_child.py"
    command = [sys.executable, str(script), str(gguf_model("llama")), str(tmp_path / "d"), str(log)]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    try:
        until = time.monotonic() + 90
        while len(old_in(log)) <= ENOUGH:
            assert child.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()
    old = old_in(log)
    assert len(old) > ENOUGH
    with BlockStore.open(StoreConfig(tmp_path / "d", min_free_bytes=0)) as store:
        lost = [key for key in old if not on_disk(store, *key)]
    assert not lost, f"{len(lost)} of {len(old)}"


def read(log: Path) -> dict[tuple[str, str], float]:
    """(namespace, block) → when it was first offered."""
    found: dict[tuple[str, str], float] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        at, *key = line.split()
        if len(key) == 2 and len(key[1]) == 64:  # the last line may be cut
            found.setdefault((key[0], key[1]), float(at))
    return found


def old_in(log: Path) -> list[tuple[str, str]]:
    """The blocks that were offered so long before the last one that they must be on disk."""
    offered = read(log)
    last = max(offered.values(), default=0.0)
    return [key for key, at in offered.items() if at < last - DIRTY_S - SLACK_S]


def on_disk(store: BlockStore, namespace: str, block: str) -> bool:
    [parts] = store.find(bytes.fromhex(namespace), [BlockHash(bytes.fromhex(block))], (Part.KV,))
    return bool(parts)

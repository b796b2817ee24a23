"""Temporary files of saves: whoever is at work on one has it locked."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slot_tools import Fails, conversation, names, read, state_of, write

from spillcache.store.files import Files
from spillcache.store.slot_folder import open_slot_folder
from spillcache.store.slot_temporary import PREFIX, create_temporary, remove_left_behind
from spillcache.store.small_files import TEMPORARY

SAVE = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from slot_tools import conversation, front_of, writer_of
writer = writer_of(Path(sys.argv[1]) / "a", conversation(64))
writer.begin()
writer.write(front_of(writer))
print("half", flush=True)
time.sleep(60)
"""


def test_what_a_killed_save_leaves_behind_goes_at_the_next_start_and_not_before(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", SAVE, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saving:
        assert saving.stdout is not None
        try:
            assert saving.stdout.readline() == "half\n"
            half = names(tmp_path)
            assert len(half) == 1
            assert half[0].startswith(PREFIX)
            os.utime(tmp_path / half[0], (0, 0))
            open_slot_folder(tmp_path, 0)  # another server on the same folder
            assert names(tmp_path) == half
        finally:
            saving.send_signal(signal.SIGKILL)
    open_slot_folder(tmp_path, 0)
    assert names(tmp_path) == []


def test_only_saves_own_files_are_removed(tmp_path: Path) -> None:
    kept = ["mine", f"{TEMPORARY}1-other", f"{PREFIX}folder", f"{PREFIX}link"]
    for name in ("mine", kept[1], f"{PREFIX}1-dead"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / kept[2]).mkdir()
    (tmp_path / kept[3]).symlink_to(tmp_path / "mine")
    open_slot_folder(tmp_path, 0)
    assert names(tmp_path) == sorted(kept)


class Removes(Files):
    """Another server finds the new file before it is locked."""

    def __init__(self, times: int, *, holds: bool = False) -> None:
        super().__init__()
        self.times = times
        self.holds = holds
        self.held: list[int] = []

    def create(self, path: Path) -> int:
        fd = super().create(path)
        if self.times:
            self.times -= 1
            if self.holds:
                self.held.append(os.open(path, os.O_RDONLY))
                assert self.lock(self.held[-1])
                path.unlink()
            else:
                remove_left_behind(path)
        return fd


@pytest.mark.parametrize("holds", [True, False])
def test_a_file_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, holds: bool
) -> None:
    chain, files = conversation(16), Removes(2, holds=holds)
    write(tmp_path / "a", chain, state_of(chain), files=files)
    assert files.times == 0
    assert read(tmp_path / "a").tokens == 16
    assert names(tmp_path) == ["a"]
    for fd in files.held:
        os.close(fd)


def test_somebody_who_removes_all_of_them_is_not_fought_for_ever(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="removes temporary files"):
        create_temporary(Removes(1000), tmp_path)
    assert names(tmp_path) == []


def test_a_file_that_can_not_be_looked_at_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(OSError, match="no"):
            create_temporary(files, tmp_path)
    assert names(tmp_path) == []


def test_without_locks_only_age_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = conversation(16)
    write(tmp_path / "a", chain, state_of(chain), files=Fails("lock", OSError(errno.ENOLCK, "no")))
    old, new = (tmp_path / f"{PREFIX}{name}" for name in ("old", "new"))
    for each in (old, new):
        each.write_text("x")
    os.utime(old, (0, time.time() - 7200))
    monkeypatch.setattr(Files, "lock", Fails("lock", OSError(errno.ENOLCK, "no")).lock)
    open_slot_folder(tmp_path, 0)
    assert names(tmp_path) == [new.name, "a"]

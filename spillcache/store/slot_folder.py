"""The directory of slot files: made, looked after and measured. Any thread."""

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spillcache.config import expanded, format_size
from spillcache.errors import ConfigError, SlotFileInvalid, SlotFileNoRoom
from spillcache.store.cipher import Cipher
from spillcache.store.files import DIRECTORY_MODE, Files
from spillcache.store.slot_names import check_name
from spillcache.store.slot_temporary import remove_left_behind
from spillcache.store.steps import Steps


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """An absolute path, what is to stay free there, and the key that files are encrypted with."""

    path: Path
    min_free_bytes: int
    """0: never mind that."""
    cipher: Cipher | None = None
    files: Callable[[], Files] = Files
    """Makes the file layer of one action."""
    steps: Callable[[], Steps] = Steps
    """Makes the thread that an action reads or writes on."""

    def path_of(self, name: str) -> Path:
        """Where the slot file ``name`` lies; raises SlotFileInvalid for what is no name."""
        return self.path / check_name(name)

    def check_target(self, path: Path) -> None:
        """Raise SlotFileInvalid where something other than a file has the name; OSError.

        A link is replaced, and not followed.
        """
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
                raise SlotFileInvalid(
                    f"filename: what has that name is {what}; nothing was written. Give another "
                    "name",
                    param="filename",
                )

    def check_room(self, files: Files, size_bytes: int) -> None:
        """Raise SlotFileNoRoom unless a file of that size fits, and the rest stays free; OSError.

        An older file of the same name is there until the new one is whole, so it does not help.
        """
        free = files.free_bytes(self.path)
        if size_bytes + self.min_free_bytes > free:
            kept = f" and {format_size(self.min_free_bytes)} are to stay free"
            raise SlotFileNoRoom(
                f"the slot takes {format_size(size_bytes)}, the filesystem has "
                f"{format_size(free)}{kept if self.min_free_bytes else ''}; nothing was written. "
                "Delete what is not needed, or see --slot-save-min-free"
            )


def open_slot_folder(path: Path, min_free_bytes: int, cipher: Cipher | None = None) -> SlotFolder:
    """The folder, made if there is none, without what killed processes left behind.

    Raises ConfigError.
    """
    try:
        whole = expanded(path).resolve()
        whole.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        if not os.access(whole, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(0, "it can't be written to")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"--slot-save-path: {path}: {reason}") from error
    _clean(whole)
    return SlotFolder(whole, min_free_bytes, cipher)


def _clean(path: Path) -> None:
    """Remove temporary files of processes that died; never raises."""
    with contextlib.suppress(OSError):
        for each in path.iterdir():
            remove_left_behind(each)

"""Whether an index is sound, found out in a child process: a damaged LMDB file may kill whoever
reads it through LMDB.

    python -m spillcache.store.probe DIR/index [SECONDS]

Exit code 0: sound, as far as was looked; 1: damaged; 3: could not be told.
"""

import contextlib
import logging
import signal
import struct
import subprocess
import sys
import time
from enum import IntEnum
from pathlib import Path

import lmdb

from spillcache.errors import StoreError
from spillcache.own_child import module_command, own_environment
from spillcache.store.audit import Audit
from spillcache.store.index import DAMAGE, Index
from spillcache.store.lmdb_pages import PageDamage, UnknownVersion, check_pages

AT_OPEN_S = 2.0
"""How long an open may be held up after a kill. A million objects take longer, and are then looked
at in part; ``repair`` looks at all.
"""
_ROWS_S = 0.5
"""For the rows at least, however long the pages took."""
LONGEST_S = 24 * 3600.0
_SLACK_S = 20.0
_ALSO_DAMAGE = (
    lmdb.NotFoundError,  # of a database: its name is gone
    lmdb.IncompatibleError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CursorFullError,
)
_OF_DAMAGE = frozenset(
    {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)

log = logging.getLogger("spillcache.store")


class Health(IntEnum):
    """What a probe found; its exit code."""

    SOUND = 0
    DAMAGED = 4
    """Not 1, which is how Python ends that can't even begin."""
    UNKNOWN = 3
    """It failed for another reason: memory, open files, the disk. Nothing may be concluded."""


def health(index: Path, limit_s: float = AT_OPEN_S) -> Health:
    """Look through an index in a child process, which may die of what it finds. Nobody may have it
    open.
    """
    if not (index / "data.mdb").exists():
        return Health.SOUND
    if not sys.executable:
        return Health.UNKNOWN
    command = module_command("spillcache.store.probe", str(index), str(limit_s))
    try:
        done = subprocess.run(  # noqa: S603 - this very module, nothing from outside
            command,
            env=own_environment(),
            capture_output=True,
            timeout=limit_s + _SLACK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the index could not be probed: %s", error)
        return Health.UNKNOWN
    return verdict(done.returncode)


def verdict(code: int) -> Health:
    """What a child's return code says; below zero it is the signal that ended it."""
    if code in (Health.SOUND, Health.DAMAGED):
        return Health(code)
    return Health.DAMAGED if -code in _OF_DAMAGE else Health.UNKNOWN


def walk(index: Path, limit_s: float) -> Health:
    """Look at every page and row, for at most ``limit_s`` and a little; here, not in a child."""
    try:
        _look(index, limit_s)
    except (PageDamage, struct.error, ValueError) as error:
        return _damaged(error)
    except StoreError as error:
        causes = (*DAMAGE, *_ALSO_DAMAGE)
        return _damaged(error) if isinstance(error.__cause__, causes) else Health.UNKNOWN
    except (OSError, lmdb.Error):
        return Health.UNKNOWN
    return Health.SOUND


def _damaged(error: Exception) -> Health:
    sys.stderr.write(f"the index is damaged: {error}\n")
    return Health.DAMAGED


def _look(index: Path, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    with contextlib.suppress(UnknownVersion):  # LMDB will say what it thinks of it
        check_pages(index / "data.mdb", limit_s)
    opened = Index(index, read_only=True)
    try:
        with opened.read() as catalog:
            deadline = max(deadline, time.monotonic() + _ROWS_S)
            for finding in Audit(catalog, deadline).findings():
                raise PageDamage(finding)
    finally:
        opened.close()


def main(arguments: list[str]) -> int:
    """See the module."""
    limit_s = float(arguments[1]) if len(arguments) > 1 else LONGEST_S
    return walk(Path(arguments[0]), limit_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

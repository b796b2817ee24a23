"""What the server writes: lines on stderr, all of one form, through ``logging``."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OURS = "spillcache"


@contextmanager
def log_to_stderr(level: str) -> Iterator[None]:
    """Within the block, log records go to stderr: ``2026-01-31 23:59:59 spillcache: warning: …``.

    ``level``: the least of ours that is shown; of other libraries, warnings and worse are.
    """
    handler = _Stderr()
    handler.setFormatter(_Line("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    before = ours.level
    ours.setLevel(level.upper())
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(before)


class _Stderr(logging.Handler):
    """Looks up ``sys.stderr`` for each line: it may be replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class _Line(logging.Formatter):
    """Who, how bad if it is bad, and what; one line, but for a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — logging's name
        who = _OURS if record.name.split(".")[0] == _OURS else record.name
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Paths of requests and words of libraries may hold anything.
        what = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.message)
        return f"{record.asctime} {who}: {level}{what}"

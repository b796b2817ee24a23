"""What the server writes: lines on stderr, all of one form, through ``logging``."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

_OURS = "spillcache"


@contextmanager
def log_to_stderr(level: str, style: str = "text") -> Iterator[None]:
    """Within the block, log records go to stderr: ``2026-01-31 23:59:59 spillcache: warning: …``,
    or, with the style "json", an object a line.

    ``level``: the least of ours that is shown; of other libraries, warnings and worse are.
    """
    handler = _Stderr()
    text = _Line("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(_Object() if style == "json" else text)
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


class _Object(logging.Formatter):
    """One JSON object: when (UTC), how bad, who, what, and the event's own fields.

    Those come from ``extra={"event": NAME, "fields": {…}}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if event := getattr(record, "event", None):
            entry["event"] = event
            entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)

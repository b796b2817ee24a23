"""The server's lines on stderr: one form, and none breaks out of it."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spillcache.serve.server_log import log_to_stderr

ours = logging.getLogger("spillcache.serve")
theirs = logging.getLogger("uvicorn.error")


def lines(capsys):
    return [line[20:] for line in capsys.readouterr().err.splitlines()]


def test_one_form_for_all(capsys):
    with log_to_stderr("info"):
        ours.info("listening on %s", "x")
        ours.warning("slow")
        ours.debug("not shown")
        theirs.info("not shown")
        theirs.error("broken")
    assert lines(capsys) == [
        "spillcache: listening on x",
        "spillcache: warning: slow",
        "uvicorn.error: error: broken",
    ]


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("warning", 2), ("error", 1)])
def test_levels(capsys, level, shown):
    with log_to_stderr(level):
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            ours.log(number, "x")
    assert len(lines(capsys)) == shown


def test_a_message_stays_on_its_line_and_a_traceback_follows(capsys):
    with log_to_stderr("info"):
        try:
            raise ValueError("why")
        except ValueError:
            ours.exception("GET /a\n2026-01-01 forged \x1b[31m é")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(r"spillcache: error: GET /a\n2026-01-01 forged \x1b[31m é")
    assert rest[-1] == "ValueError: why"


def test_afterwards_nothing_is_left(capsys):
    before = ours.parent.level, list(logging.getLogger().handlers)
    with log_to_stderr("debug"):
        pass
    assert (ours.parent.level, logging.getLogger().handlers) == before
    assert capsys.readouterr().err == ""


def test_a_line_that_can_not_be_written_breaks_nothing(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with log_to_stderr("info"):
        ours.warning("nobody reads this")


def objects(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_object_a_line(capsys):
    with log_to_stderr("info", "json"):
        ours.info("listening on %s", "x\ny")
        ours.debug("not shown")
        fields = {"code": "ENGINE", "where": Path("/x")}
        ours.warning("slow", extra={"event": "waiting", "fields": fields})
        try:
            raise ValueError("boom")
        except ValueError:
            theirs.exception("broken")
    first, second, third = objects(capsys)
    when = datetime.fromisoformat(first.pop("time"))
    assert when.tzinfo is not None
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60
    assert first == {"level": "info", "logger": "spillcache.serve", "message": "listening on x\ny"}
    assert (second["event"], second["code"], second["where"]) == ("waiting", "ENGINE", "/x")
    assert (second["level"], second["message"]) == ("warning", "slow")
    assert third["logger"] == "uvicorn.error"
    assert third["traceback"].endswith("ValueError: boom")

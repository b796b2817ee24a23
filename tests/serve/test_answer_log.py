"""A line per request, a warning for a long wait, and never a word of a prompt."""

import logging

import httpx
import pytest
from fake_service import wait_until

from spillcache.errors import DecodeError, NotReady
from spillcache.serve import answer_events

ASK = {"prompt": "a secret prompt"}


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "spillcache.serve")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_a_line(http, service, said, stream):
    service.script.cached = {"live": 0, "ram": 3, "disk": 4}
    http.post("/v1/completions", json={**ASK, "stream": stream})
    line = (
        "answered: 16 prompt tokens (3 ram, 4 disk, 9 computed), first token after 0.05 s, "
        "4 generated (stop), 100.0 per s"
    )
    assert said() == [("INFO", line)]


@pytest.mark.parametrize(
    ("error", "level"), [(DecodeError("it broke"), "WARNING"), (NotReady("stopping"), "INFO")]
)
def test_a_failure_is_a_line(http, service, said, error, level):
    service.script.fail_after, service.script.failure = 1, error
    http.post("/v1/completions", json={**ASK, "stream": True})
    assert said() == [(level, f"not answered: {error} ({error.code})")]


def test_a_client_that_leaves_is_a_line(http, service, said):
    service.script.hold_at = 1
    with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as response:
        next(response.iter_raw())
    assert wait_until(lambda: said() == [("INFO", "not answered: the client left")])


@pytest.mark.parametrize("queued", [True, False])
def test_a_long_wait_for_a_slot_is_warned_of(url, service, said, monkeypatch, queued):
    monkeypatch.setattr(answer_events, "LONG_WAIT_S", 0.05)
    service.script.hold_at, service.script.queued = 0, queued
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=ASK, timeout=0.5)
    warning = ("WARNING", "a request has waited 0 s for a slot; --parallel gives more of them")
    assert (warning in said()) == queued


def test_nothing_of_a_prompt_is_logged(http, service, said):
    http.post("/v1/completions", json=ASK)
    http.post("/v1/completions", json={**ASK, "temperature": -1})
    assert "secret" not in str(said())


def test_answers_and_failures_have_fields_for_machines(http, service, caplog):
    caplog.set_level(logging.INFO, "spillcache.serve")
    http.post("/v1/completions", json=ASK)
    service.script.fail_after, service.script.failure = 0, DecodeError("it broke")
    http.post("/v1/completions", json=ASK)
    answered, failed = caplog.records
    assert answered.event == "answered"
    assert answered.fields["prompt_tokens"] == 16
    assert answered.fields["cached_tokens"] == {"disk": 4}
    assert answered.fields["finish_reason"] == "stop"
    assert answered.fields["prompt_ms"] == 50.0
    assert (failed.event, failed.fields) == ("not_answered", {"code": "ENGINE_DECODE"})

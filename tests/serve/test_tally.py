import logging
from typing import Any

import numpy as np
import pytest

from spillcache.metrics import Metrics
from spillcache.serve.answer_text import AnswerText
from spillcache.serve.job import GenerationRequest, Ticket
from spillcache.serve.slots import Job
from spillcache.serve.tally import LOOK_TOKENS, WARN_EVERY_S, Tally

TOKENS = LOOK_TOKENS // 4


def job(restored: dict[Any, int], cached: dict[Any, int], *, done: bool = True) -> Job:
    request = GenerationRequest(np.zeros(TOKENS + 100, np.uint32))
    made = Job(request, lambda _: None, Ticket(), AnswerText(lambda _: b"", ()))
    made.restored.update(restored)
    made.cached = cached
    made.prompt_done = 1.0 if done else 0.0
    return made


def test_prompts_are_counted_by_source() -> None:
    metrics = Metrics()
    Tally(metrics).prompt(job({"disk": TOKENS}, {"disk": TOKENS}))
    for source, tokens in (("disk", TOKENS), ("computed", 100)):
        name, labels = "spillcache_prompt_tokens_total", {"source": source}
        assert metrics.registry.get_sample_value(name, labels) == tokens


@pytest.mark.parametrize(
    ("restored", "cached", "done", "warns"),
    [
        ({"disk": TOKENS}, {"disk": TOKENS}, True, False),
        ({"disk": TOKENS}, {"disk": TOKENS // 2 + 1}, True, False),
        ({"disk": TOKENS}, {}, True, True),
        ({"ram": TOKENS}, {"disk": TOKENS // 2 - 1}, True, True),
        ({"disk": TOKENS}, {"disk": TOKENS}, False, True),  # clients that leave
        ({}, {"live": TOKENS}, True, False),
    ],
)
def test_a_warning_when_much_is_restored_and_little_reused(
    restored: dict[Any, int],
    cached: dict[Any, int],
    done: bool,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tally = Tally(Metrics())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tally.end(job(restored, cached, done=done))
        assert not caplog.text, "too little to tell"
        tally.end(job(restored, cached, done=done))
    assert (f"of the last {4 * TOKENS} tokens that were restored" in caplog.text) == warns


def test_the_warning_is_not_repeated_at_every_look(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    tally = Tally(Metrics(), lambda: now[0])

    def looks(count: int) -> int:
        caplog.clear()
        for _ in range(count):
            tally.end(job({"disk": LOOK_TOKENS}, {}))
        return len(caplog.records)

    assert looks(5) == 1
    now[0] += WARN_EVERY_S - 1
    assert looks(5) == 0
    now[0] += 1
    assert looks(5) == 1


def test_the_first_token_and_the_times_between() -> None:
    now, metrics = 100.0, Metrics()
    tally, asked = (
        Tally(metrics, lambda: now),
        job({"ram": 64, "disk": 64}, {"ram": 64, "disk": 64}),
    )
    asked.submitted = 99.8
    for now in (100.0, 100.02, 100.05):  # noqa: B007 — the clock reads it
        tally.token(asked)
    value = metrics.registry.get_sample_value
    disk = {"tier": "disk"}
    assert value("spillcache_ttft_seconds_count", disk) == 1
    assert value("spillcache_ttft_seconds_sum", disk) == pytest.approx(0.2)
    assert value("spillcache_inter_token_seconds_count") == 2
    assert value("spillcache_inter_token_seconds_sum") == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("cached", "tier"),
    [
        ({}, "computed"),
        ({"live": 5}, "live"),
        ({"live": 5, "ram": 5}, "ram"),
        ({"ram": 0}, "computed"),
    ],
)
def test_the_tier_is_the_slowest_that_was_used(cached: dict[Any, int], tier: str) -> None:
    metrics = Metrics()
    Tally(metrics).token(job({}, cached))
    assert metrics.registry.get_sample_value("spillcache_ttft_seconds_count", {"tier": tier}) == 1


def test_restores_that_were_of_use() -> None:
    metrics = Metrics()
    for tokens in ({"ram": 64}, {"ram": 64, "disk": 64}, {}):
        Tally(metrics).restored(tokens, 0.5)
    value = metrics.registry.get_sample_value
    assert value("spillcache_restore_seconds_sum", {"tier": "ram"}) == 0.5
    assert value("spillcache_restore_seconds_count", {"tier": "disk"}) == 1

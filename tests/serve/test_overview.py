"""What ``GET /cache`` says, and how little it asks for it."""

import threading
from typing import Any

import numpy as np
import pytest
from fake_service import FakeEngine

from spillcache.cache.held import Held, HeldBlock
from spillcache.chain import BlockHash, Chain
from spillcache.errors import DecodeError, PromptTooLong
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace
from spillcache.serve.answer_text import AnswerText
from spillcache.serve.job import ErrorEvent, GenerationRequest, Ticket
from spillcache.serve.overview import BLOCKS, TREE_S, Overview
from spillcache.serve.recent_requests import MOST, RecentRequests
from spillcache.serve.slot_facts import Glance
from spillcache.serve.slots import Job, Phase, Slot
from spillcache.state import Geometry

NS = Namespace.of({"model": "x"})


def job(tokens: int = 100, **changes: Any) -> Job:
    made = Job(
        GenerationRequest(np.zeros(tokens, np.uint32)),
        lambda _: None,
        Ticket(),
        AnswerText(lambda _: b"", ()),
    )
    for field, value in changes.items():
        setattr(made, field, value)
    return made


class Cache:
    """Holds one block, and counts how often it is asked."""

    geometry = Geometry()

    def __init__(self, took_s: float = 0.0) -> None:
        self.asked: list[int] = []
        self.took_s = took_s
        self.now = 1000.0
        self.hold: threading.Event | None = None

    def clock(self) -> float:
        return self.now

    def facts(self, most: int) -> Held:
        self.asked.append(most)
        if self.hold is not None:
            self.hold.wait(10)
        self.now += self.took_s
        block = HeldBlock(NS.id, BlockHash(b"h" * 32), BlockHash(b"r" * 32), 0, 64, 5.0, 10)
        return Held([block], complete=False)


def overview(cache: Cache, slots: list[Slot] | None = None, metrics: Metrics | None = None) -> Any:
    made = Overview(
        FakeEngine(),  # type: ignore[arg-type]
        Glance(slots or [], RecentRequests()),
        metrics or Metrics(),
        cache.clock,
    )

    def take(cache: Any = cache) -> dict[str, Any]:
        return made.take(cache, {"ram": {}, "disk": {}})

    return take


def test_counters_are_told_as_they_are() -> None:
    metrics = Metrics()
    metrics.prompt_tokens.labels("ram").inc(5)
    metrics.requests.labels("stop").inc(2)
    metrics.generated_tokens.inc(9)
    metrics.disk_bytes.set(4096)
    metrics.queued.set(3)
    found = overview(Cache(), [Slot(0)], metrics)()
    assert found["prompt_tokens"] == {"live": 0, "ram": 5, "disk": 0, "computed": 0}
    assert found["requests"] == {"waiting": 3, "ended": {"stop": 2}}
    assert found["generated_tokens"] == 9
    assert found["tiers"]["disk"] == {"bytes": 4096}
    assert found["tiers"]["live"] == {"tokens": 0, "context_tokens": 4096}
    assert found["recent"] == []


@pytest.mark.parametrize(("took_s", "fresh_s"), [(0.0, TREE_S), (1.0, 20.0)])
def test_a_tree_is_made_once_in_a_while(took_s: float, fresh_s: float) -> None:
    cache = Cache(took_s)
    take = overview(cache)
    tree = take()["tree"]
    assert (len(tree["runs"]), tree["blocks"], tree["complete"]) == (1, 1, False)
    cache.now += fresh_s - 0.1
    assert take()["tree"] is tree
    assert cache.asked == [BLOCKS]
    cache.now += 0.2
    take()
    assert len(cache.asked) == 2


def test_without_a_cache_there_is_no_tree() -> None:
    assert overview(Cache())(None)["tree"] == {"runs": [], "blocks": 0, "complete": True}


def test_nobody_waits_for_a_disk_that_hangs_a_second_time() -> None:
    cache = Cache()
    cache.hold = threading.Event()
    take = overview(cache)
    first = threading.Thread(target=take, daemon=True)
    first.start()
    while not cache.asked:
        pass
    assert take()["tree"]["runs"] == []
    assert len(cache.asked) == 1
    cache.hold.set()
    first.join(10)
    assert len(take()["tree"]["runs"]) == 1


def test_slots_are_told_in_numbers() -> None:
    working = Slot(1, phase=Phase.DECODE, chain=Chain(NS, 64, [0] * 130))
    working.job = job(120, cached={"disk": 64}, answer=[1] * 10)
    glance = Glance([Slot(0), working], RecentRequests())
    assert glance.slots() == [
        {
            "id": 0, "phase": "idle", "tokens": 0, "prompt_tokens": 0, "reused_tokens": 0,
            "generated_tokens": 0,
        },
        {
            "id": 1, "phase": "decode", "tokens": 130, "prompt_tokens": 120, "reused_tokens": 64,
            "generated_tokens": 10,
        },
    ]  # fmt: skip
    assert working.chain is not None
    tail = working.chain.hash_of(2)
    assert glance.live_blocks() == {*working.chain.hashes, tail}
    working.phase = Phase.PREFILL
    assert glance.live_blocks() == set()


def test_requests_are_remembered_in_numbers() -> None:
    recent = RecentRequests()
    done = job(submitted=10.0, prompt_done=10.25, cached={"ram": 64}, decision="restore")
    done.answer = [1, 2, 3]
    recent.add(done)
    recent.add(job(cached={"ram": 64}))
    failed, answered = recent.listed()
    assert {"prompt_tokens", "first_token_ms"} <= answered.keys() == failed.keys()
    assert (answered["live"], answered["ram"], answered["computed"]) == (0, 64, 36)
    assert (answered["first_token_ms"], answered["generated_tokens"]) == (250.0, 3)
    assert answered["decision"] == "restore"
    assert (failed["number"], answered["number"]) == (2, 1)
    assert (failed["ram"], failed["computed"], failed["first_token_ms"]) == (0, 0, None)
    assert failed["decision"] is None
    for row in (failed, answered):
        assert all(
            v is None or isinstance(v, int | float)
            for k, v in row.items()
            if k not in {"decision", "outcome"}
        )
    for _ in range(MOST + 5):
        recent.add(job())
    assert [row["number"] for row in recent.listed()] == list(range(MOST + 7, 7, -1))


def test_how_a_request_ended_is_told() -> None:
    recent = RecentRequests()
    ended = [job() for _ in range(5)]
    for one, reason in zip(ended, ("stop", "length"), strict=False):
        one.emit(one.done(reason, 0))
    ended[2].emit(ErrorEvent(PromptTooLong("too long", "prompt")))
    ended[3].emit(ErrorEvent(DecodeError("it broke")))
    ended[4].ticket.cancel()
    ended[4].emit(ErrorEvent(DecodeError("it broke")))
    for one in ended:
        recent.add(one)
    outcomes = [row["outcome"] for row in recent.listed()[::-1]]
    assert outcomes == ["stop", "length", "refused", "failed", "cancelled"]

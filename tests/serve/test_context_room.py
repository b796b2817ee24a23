"""Who gives way, and which slot a prompt takes."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from spillcache.chain import Chain
from spillcache.namespace import Namespace
from spillcache.serve.context_room import gives_way
from spillcache.serve.job import GenerationRequest
from spillcache.serve.slot_choice import choose
from spillcache.serve.slots import Phase, Slot
from spillcache.state import Geometry


def slot(index: int, *, started: float | None = None, last_use: float = 0.0) -> Slot:
    made = Slot(index)
    made.last_use = last_use
    if started is not None:
        job: Any = SimpleNamespace(started=started)
        made.job, made.phase = job, Phase.DECODE
    return made


def engine(*lengths: int) -> Any:
    return SimpleNamespace(length=lambda index: lengths[index])


def test_the_youngest_request_gives_way_whoever_asks() -> None:
    slots = [slot(0, started=1.0), slot(1, started=3.0), slot(2, started=2.0)]
    assert gives_way(slots, engine(10, 10, 10)) is slots[1]


def test_an_idle_slot_goes_before_any_request() -> None:
    slots = [slot(0, started=1.0), slot(1, last_use=5.0), slot(2, last_use=4.0)]
    assert gives_way(slots, engine(10, 10, 10)) is slots[2]
    assert gives_way(slots, engine(10, 10, 0)) is slots[1]


def test_who_is_alone_does_not_give_way() -> None:
    assert gives_way([slot(0, started=1.0), slot(1)], engine(10, 0)) is None


def test_an_empty_slot_is_taken_before_one_that_holds_a_conversation() -> None:
    chain = Chain(Namespace.of({"engine": "x"}), 64, np.arange(100, dtype=np.uint32))
    slots = [slot(0, last_use=1.0), slot(1, last_use=2.0), slot(2, last_use=3.0)]
    assert choose(slots, chain, engine(70, 70, 0), reuse=False).slot is slots[2]
    assert choose(slots, chain, engine(70, 70, 70), reuse=False).slot is slots[0]


def holding(index: int, chain: Chain) -> Slot:
    made = slot(index, last_use=float(index))
    made.chain = chain
    return made


def test_the_slot_that_a_request_names_is_taken_if_it_is_idle() -> None:
    tokens = np.arange(192, dtype=np.uint32)
    chain = Chain(Namespace.of({"engine": "x"}), 64, tokens)
    wanted = GenerationRequest(tokens, slot=1)
    slots = [holding(0, chain), slot(1, last_use=9.0), slot(2)]
    held = engine(192, 70, 0)
    held.geometry, held.can_truncate = Geometry(64), lambda *_: True
    longer = Chain(Namespace.of({"engine": "x"}), 64, np.arange(200, dtype=np.uint32))
    choice = choose(slots, longer, held, wanted, reuse=True)
    assert (choice.slot.index, choice.source.index, choice.live) == (1, 0, 192), "forked there"
    assert choice.oldest is slots[1], "a restore goes there, too"
    assert choose(slots, longer, held, wanted, reuse=False).slot is slots[1]
    slots[1].phase = Phase.DECODE
    assert choose(slots, longer, held, wanted, reuse=True).slot is slots[0]
    assert choose(slots, longer, held, reuse=True).slot is slots[0], "where it lives"

"""Which slot takes a prompt, and how much of the prompt the engine's sequences already hold."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spillcache.chain import Chain
from spillcache.engine.base import Engine
from spillcache.errors import StateRejected
from spillcache.serve.job import GenerationRequest, Parted
from spillcache.serve.prompt_plan import live_prefix
from spillcache.serve.slots import Phase, Slot

log = logging.getLogger("spillcache.serve")

_NOBODYS = GenerationRequest(np.empty(0, np.uint32))
_SHARED_MIN = 16
"""Prompts that share less are not one conversation: all begin with a few of the same tokens."""
_TOKENS_TOLD = 8
_CHARACTERS_TOLD = 24


@dataclass(frozen=True, slots=True)
class Choice:
    """Take ``slot``; the first ``live`` tokens of the prompt are those of ``source``'s sequence.

    ``oldest``: an empty slot, or the idle one that was not used for longest, for a prompt that goes
    on from none.
    """

    slot: Slot
    source: Slot
    live: int
    oldest: Slot


def choose(
    slots: Sequence[Slot],
    chain: Chain,
    engine: Engine,
    request: GenerationRequest = _NOBODYS,
    *,
    reuse: bool,
) -> Choice:
    """The choice for a prompt; at least one slot is idle. ``reuse``: whether live state may be
    used. Of ``request`` its hints count: the slot that it wants, and whose prompt it is.

    A conversation goes on in its own slot. A prompt that only shares a beginning with it is forked
    into the least recently used idle slot, so that the other conversation stays live, unless most
    of that would be kept anyway. A session's prompt takes the slot that served the session last,
    also where its history was rewritten, unless another slot holds more of it: then that is forked
    there. The slot that a request names is taken in the same way, if it is idle.
    """
    idle = [slot for slot in slots if slot.phase is Phase.IDLE]
    session, number = request.session, request.slot
    if number is not None:
        own = next((slot for slot in idle if slot.index == number), None)
    else:
        own = next((slot for slot in idle if session and slot.session == session), None)
    oldest = own or min(idle, key=lambda slot: (engine.length(slot.index) > 0, slot.precedence))
    if not reuse:
        return Choice(oldest, oldest, 0, oldest)
    lives = [(usable_live(slot, chain, engine), slot) for slot in slots]
    live, source = max(
        lives, key=lambda pair: (pair[0], pair[1] is own, pair[1].phase is Phase.IDLE)
    )
    if live == 0:
        return Choice(oldest, oldest, 0, oldest)
    others = bool(session and source.session) or (number is not None and own is not None)
    most = 2 * live >= engine.length(source.index) and not others
    if source is own or (source.phase is Phase.IDLE and most):
        return Choice(source, source, live, oldest)
    return Choice(oldest, source, live, oldest)


def usable_live(slot: Slot, chain: Chain, engine: Engine) -> int:
    """How many of the prompt's tokens can go on from what ``slot``'s sequence holds."""
    held = engine.length(slot.index)
    if slot.chain is None or not held or slot.chain.root != chain.root:
        return 0
    if slot.phase is Phase.RESTORE:
        return 0
    shared = min(slot.chain.shared(chain.tokens), held)
    live = live_prefix(held, shared, len(chain), engine.geometry)
    # The whole prompt is only of use if its last token can be taken back.
    needed = min(live, len(chain) - 1)
    return live if engine.can_truncate(slot.index, needed) else 0


def parting(slots: Sequence[Slot], chain: Chain, engine: Engine) -> Parted | None:
    """Where the prompt parts from the sequence that it has most of; None where it has little of
    any, or goes on from its end.

    What stands there is told at the level of debugging only: it is a piece of prompts.
    """
    near = [slot for slot in slots if slot.chain is not None and slot.chain.root == chain.root]
    shared, _, other = max(
        ((slot.chain.shared(chain.tokens), -slot.index, slot.chain) for slot in near if slot.chain),
        default=(0, 0, chain),
        key=lambda found: found[:2],
    )
    if shared < _SHARED_MIN or shared == min(len(other), len(chain)):
        return None
    if log.isEnabledFor(logging.DEBUG):
        told = [
            engine.detokenize(tokens[shared : shared + _TOKENS_TOLD].tolist())[:_CHARACTERS_TOLD]
            for tokens in (chain.tokens, other.tokens)
        ]
        log.debug("a prompt parts at token %d: %r, where there was %r", shared, *told)
    return Parted(shared, len(other) - shared)


def take_live(choice: Choice, engine: Engine) -> bool:
    """Truncate or fork; False, and an empty sequence, when that can't be done. Engine's thread."""
    slot, source, live = choice.slot, choice.source, choice.live
    try:
        if source is slot:
            engine.truncate(slot.index, live)
            return True
        return engine.fork(source.index, slot.index, live)
    except StateRejected as error:
        log.warning("a live prefix could not be used: %s", error)
        engine.clear(slot.index)
        return False

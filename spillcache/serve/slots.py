"""A slot: one engine sequence, the tokens it holds, and the job that uses it."""

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from spillcache.cache.match import Match
from spillcache.cache.restore import RestoreStream
from spillcache.chain import BlockHash, Chain
from spillcache.engine.base import AdapterScales, Sampler, Tokens
from spillcache.errors import RequestError
from spillcache.serve.answer_text import AnswerText
from spillcache.serve.job import (
    Decision,
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    GenerationRequest,
    Listener,
    Outcome,
    Parted,
    Ticket,
    Tier,
    Timings,
    Usage,
)
from spillcache.state import BlockState, Part


@dataclass(slots=True, eq=False)
class Job:
    """A request in work: what was asked, what has been answered, and the clocks."""

    request: GenerationRequest
    listener: Listener
    ticket: Ticket
    text: AnswerText
    adapters: AdapterScales = ()
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    prompt_done: float = 0.0
    last_token: float = 0.0
    answer: list[int] = field(default_factory=list)
    sampler: Sampler | None = None
    cached: dict[Tier, int] = field(default_factory=dict)
    kept: int = 0
    """See Usage."""
    restore_s: float = 0.0
    restored_bytes: int = 0
    restored: Counter[Tier] = field(default_factory=Counter)
    """Prompt tokens imported, whether or not the answer went on from them."""
    refused: Counter[str] = field(default_factory=Counter)
    """Prompt tokens that a tier held and that were computed all the same, by the reason's code."""
    doubted: list[BlockHash] = field(default_factory=list)
    fault: str = ""
    """What the engine said of the doubted ones."""
    cold: bool = False
    """It failed while it went on from restored state."""
    outcome: Outcome = "cancelled"
    """How it ended; until it has ended, what it is if nothing more comes."""

    @property
    def reuses(self) -> bool:
        """Whether it may go on from what is held anywhere."""
        return self.request.cache_prompt and not self.cold

    decision: Decision = "off"
    parted: Parted | None = None

    @property
    def tokens(self) -> Tokens:
        """The prompt and what has been answered: what a slot must hold to go on."""
        return np.concatenate([self.request.tokens, np.array(self.answer, np.uint32)])

    def count_cached(self, tokens: dict[Tier, int]) -> None:
        """Note where all of the prompt's state comes from; its last token is computed in any
        case.
        """
        self.cached, self.kept = {}, 0
        left = len(self.request.tokens) - 1
        for tier, count in tokens.items():
            if min(count, left):
                self.cached[tier] = min(count, left)
            left -= min(count, left)

    def count_kept(self, start: int, stop: int) -> None:
        """Note that the tiers hold the state of tokens ``start`` to ``stop``; only the prompt's
        count.
        """
        if not self.prompt_done:
            known = sum(self.cached.values()) + self.kept
            self.kept += max(0, stop - max(start, known))

    def usage(self) -> Usage:
        """The token counts as they are now."""
        return Usage(len(self.request.tokens), len(self.answer), dict(self.cached), self.kept)

    @property
    def first_usage(self) -> Usage | None:
        """The token counts, while the answer has but its first token."""
        return self.usage() if len(self.answer) == 1 else None

    def emit(self, event: Event) -> None:
        """Tell the listener, unless the client has left."""
        if self.ticket.cancelled:
            return
        if isinstance(event, DoneEvent):
            self.outcome = event.reason
        elif isinstance(event, ErrorEvent):
            self.outcome = "refused" if isinstance(event.error, RequestError) else "failed"
        self.listener(event)

    def done(self, reason: FinishReason, slot: int) -> DoneEvent:
        """The event that ends the answer, in ``slot``."""
        now = time.monotonic()
        done = self.prompt_done or now
        rest = self.text.finish()
        timings = Timings(
            queue_ms=1000 * (self.started - self.submitted),
            restore_ms=1000 * self.restore_s,
            restored_bytes=self.restored_bytes,
            restored=dict(self.restored),
            refused=dict(+self.refused),
            prompt_ms=1000 * (done - self.started),
            predicted_ms=1000 * (now - done),
            decision=self.decision,
            parted=self.parted,
        )
        return DoneEvent(rest, reason, self.text.stopped, self.usage(), timings, slot)

    def close(self) -> None:
        """Free the sampler; may be called twice."""
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None


class Phase(Enum):
    """What a slot does next."""

    IDLE = "idle"
    RESTORE = "restore"
    PREFILL = "prefill"
    DECODE = "decode"
    FILE = "file"
    """A slot action has it: no request is given it until that is over."""


@dataclass(slots=True)
class Restore:
    """A restore in progress into a slot."""

    match: Match
    stream: RestoreStream
    started: float
    last_block: float
    deadline: float
    failed: set[BlockHash] = field(default_factory=set)
    attempts: int = 1
    blocks: int = 0
    size: int = 0
    """Payload bytes imported so far."""
    restored: Counter[Tier] = field(default_factory=Counter)
    """Tokens imported, in all attempts."""
    refused: Counter[str] = field(default_factory=Counter)
    """Tokens that were given up, by the reason's code."""
    import_s: float = 0.0
    """What importing them took, without waiting for them."""
    decision: Decision = "restore"
    singly: bool = False
    """Blocks go in one by one: one of several that went in together was refused."""
    is_full: bool = False
    """The context had no room for a block: somebody must give way before it goes on."""

    def close(self) -> None:
        """Stop reading; the stream releases the match."""
        self.stream.close()


SESSION_S = 600.0
"""So long after its last request a session's slot outlasts those of requests without one."""


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the engine. ``chain`` starts with the tokens that the sequence holds."""

    index: int
    chain: Chain | None = None
    job: Job | None = None
    phase: Phase = Phase.IDLE
    restore: Restore | None = None
    boundary: tuple[int, BlockState] | None = None
    """The latest boundary met while decoding: kept when the turn ends."""
    action: str = ""
    """What a slot action does with it: save, restore or erase."""
    session: bytes = b""
    """The digest of the session that it served last, if clients name one."""
    last_use: float = 0.0
    on_trial: int = 0
    """Restored blocks in the sequence that have not given logits yet: see ``trial``."""
    unkept: bool = False
    """Whether a request that stores nothing computed some of it, so that the tiers lack it."""
    tail_on_trial: BlockHash | None = None
    """The tail among them, if there is one."""
    unverified: bool = False
    """Whether it is being filled from a slot file of which not all is verified; such a slot is
    emptied before a request begins in another one. See ``SlotImport``.
    """
    tail_due: float | None = None
    """When the tail of the conversation that rests here is copied out; None: it is, or is not to
    be. See ``Keeper``.
    """

    @property
    def precedence(self) -> tuple[bool, float]:
        """Of idle slots, the lowest gives way first: one that serves no session, or none that was
        heard of lately, and of those the one that was not used for longest.
        """
        is_kept = bool(self.session) and time.monotonic() - self.last_use < SESSION_S
        return is_kept, self.last_use

    def begin(self, job: Job, chain: Chain, restore: Restore | None) -> None:
        """``job`` takes it, for ``chain``: its prompt, and what of the answer there is."""
        self.job, self.chain, self.last_use = job, chain, time.monotonic()
        self.boundary, self.restore, self.session = None, restore, job.request.session
        self.phase = Phase.PREFILL if restore is None else Phase.RESTORE

    def keep_boundary(self, block: int, state: BlockState) -> None:
        """Copy the boundary at the end of ``block``, in place of an earlier one."""
        if Part.BOUNDARY in state:
            self.boundary = (block, {Part.BOUNDARY: bytes(state[Part.BOUNDARY])})

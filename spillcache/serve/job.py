"""A request on its way through the scheduler, and what comes back from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spillcache.engine.base import Limits, SamplingParams, Tokens, TokenShares
from spillcache.errors import PromptTooLong, RequestError, SpillcacheError

FinishReason = Literal["stop", "length"]
Tier = Literal["live", "ram", "disk"]
Outcome = Literal["stop", "length", "refused", "failed", "cancelled"]
"""How a request ended: its answer is complete, or ended at a limit; what it asked for can't be; the
answer could not go on; the client left.
"""
Decision = Literal["off", "live", "miss", "restore", "partial", "compute", "gave_up", "failed"]
"""How a prompt's state came about.

off: the cache was not asked; live: a slot went on; miss: no tier held anything of it; restore: all
that the tiers held; partial: less, since the rest was quicker to compute; compute: nothing of it,
likewise; gave_up: a restore turned out slower than computing and was ended; failed: it met errors.
"""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to answer."""

    tokens: Tokens
    max_tokens: int | None = None
    """None: until the context is full."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    salt: bytes = b""
    cache_prompt: bool = True
    """False: neither reuse nor store anything."""
    cache_store: bool = True
    """False: reuse, but store nothing."""
    session: bytes = b""
    """A digest of the client's name for the conversation, or nothing: a hint, see ``session``."""
    slot: int | None = None
    """The slot that the client wants, if it is idle: a hint."""
    lora: tuple[tuple[int, float], ...] | None = None
    """LoRA adapters, (id, scale), as the client named them; None: the server's choice."""
    spelled: Mapping[int, bytes] = field(default_factory=dict)
    """Control tokens that are part of the answer's text, and what they are in it."""

    @property
    def stores(self) -> bool:
        """Whether anything of it may be kept."""
        return self.cache_store and self.cache_prompt


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. ``cached``: by the tier each reused prompt token came from; all others were
    computed.
    """

    prompt: int
    generated: int
    cached: dict[Tier, int]
    kept: int = 0
    """Prompt tokens that were computed and whose state, in whole blocks, the tiers have taken."""

    @property
    def cached_total(self) -> int:
        """Prompt tokens that were not computed again."""
        return sum(self.cached.values())


@dataclass(frozen=True, slots=True)
class Parted:
    """Where a prompt parts from the sequence in a slot that it has most of."""

    at: int
    """How many tokens they share."""
    lost: int
    """How many that sequence has after them: computed once, and of no use to this prompt."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Times in milliseconds, as llama-server's ``timings`` count them."""

    queue_ms: float
    restore_ms: float
    """Reading and importing cached state (0 when live or cold)."""
    restored_bytes: int
    restored: dict[Tier, int]
    """Prompt tokens imported by tier, whether or not the answer went on from them."""
    refused: dict[str, int]
    """Prompt tokens that a tier held and that were computed all the same, by reason."""
    prompt_ms: float
    """From the start of work on the prompt to its last logits, restore included."""
    predicted_ms: float
    """From then to the last token."""
    decision: Decision = "off"
    parted: Parted | None = None


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A piece of the answer; ``text`` may be empty while a character or a stop string is
    incomplete.
    """

    text: str
    token: int
    shares: TokenShares | None = None
    """How likely it was, if that was asked for."""
    usage: Usage | None = None
    """What became of the prompt; with the first piece of an answer only."""


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The end of the answer. ``text``: what was still held back."""

    text: str
    reason: FinishReason
    stop_string: str | None
    usage: Usage
    timings: Timings
    slot: int = 0
    """Which one it had, at the end."""
    is_last: bool = True
    """False: another answer to the same prompt follows."""


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The answer can't go on."""

    error: SpillcacheError


Event = TextEvent | DoneEvent | ErrorEvent
Listener = Callable[[Event], None]
"""Called on the scheduler's thread; must not block. Nothing follows a DoneEvent or an
ErrorEvent.
"""


class Ticket:
    """The handle of a submitted request; ``cancel`` may be called on any thread, any number of
    times.
    """

    __slots__ = ("_cancelled", "started")

    def __init__(self) -> None:
        self._cancelled = False
        self.started = False
        """Whether the request has been given a slot; the scheduler says so."""

    def cancel(self) -> None:
        """Stop the work on this request soon; no event follows."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled


def check_request(request: GenerationRequest, limits: Limits) -> None:
    """Raise RequestError for an empty prompt or a token id outside the vocabulary, PromptTooLong
    for one that leaves no room for an answer.
    """
    count = len(request.tokens)
    if count == 0:
        raise RequestError("the prompt is empty", param="prompt")
    if int(request.tokens.max()) >= limits.vocabulary:
        raise RequestError("the prompt has a token id outside the vocabulary", param="prompt")
    if count >= limits.context_tokens:
        raise PromptTooLong(
            f"the prompt has {count} tokens and the context holds {limits.context_tokens}, one of "
            "which the answer needs; shorten it or start the server with a larger -c",
            param="prompt",
        )

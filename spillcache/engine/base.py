"""The engine contract: tokens in, logits and state out.

An engine holds ``limits.sequences`` sequences over one shared context. A sequence is a list of
positions 0 … length - 1; the caller keeps the tokens. Unless a docstring says otherwise, methods
are called on one thread, the engine's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from spillcache.errors import NotOffered, StateRejected
from spillcache.namespace import FieldValue
from spillcache.state import BlockState, Buffer, Geometry, Part

Tokens = NDArray[np.uint32]
Logits = NDArray[np.float32]
Embedding = NDArray[np.float32]
Objects = Sequence[Mapping[str, Any]]
"""JSON objects: messages, tools."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits. All counts are tokens but ``sequences``."""

    context_tokens: int
    """Cells shared by all sequences; one sequence may use all of them."""
    train_tokens: int
    """The context that the model was trained for."""
    call_tokens: int
    """The most tokens in one ``decode`` call (a ubatch); a multiple of ``block_tokens``."""
    sequences: int
    vocabulary: int


AdapterScales = tuple[tuple[int, float], ...]
"""LoRA adapters to compute with: (id, scale), ascending ids, no scale of 0; empty: the model alone.

Scales are rounded to float32, as the engine takes them.
"""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that was loaded with the model."""

    id: int
    name: str
    """The file's."""
    digest: bytes
    """BLAKE3 of the file's content, as it was loaded."""
    scale: float
    """What requests that say nothing get at start."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the model says about itself, for people and for ``/v1/models`` and ``/props``."""

    name: str
    description: str
    size_bytes: int
    parameters: int
    embedding: int
    bos_token: str
    eos_token: str
    chat_template: str
    """The Jinja text or built-in name in use."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens that ``decode`` appends to one sequence."""

    sequence: int
    tokens: Tokens
    logits: bool = False
    """Whether the logits after the last token are wanted."""


SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""The steps of sampling, by llama-server's names and in its order."""

GrammarKind = Literal["gbnf", "json_schema"]


class Guide(ABC):  # noqa: B024 - what it holds is the engine's own
    """A compiled grammar that answers must follow; made by ``Engine.guide``. Any number of answers
    may use it, on any thread.
    """


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, in llama.cpp's terms: biases, the grammar, then ``samplers``,
    then a draw.
    """

    temperature: float = 0.8
    """0 or less: greedy, so that only biases, penalties, DRY and the grammar matter."""
    top_k: int = 40
    """0 or less: off."""
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    """None: a random one."""
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    """Tokens that the penalties look back on; -1: the whole context."""
    ignore_eos: bool = False
    typical_p: float = 1.0
    """1: off."""
    top_n_sigma: float = -1.0
    """0 or less: off."""
    min_keep: int = 0
    """Tokens that top_p, min_p, typical_p and xtc leave at least; there is always one."""
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    """0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """-1: the whole context."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    """1 or 2: this instead of ``samplers``, but for the temperature."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: tuple[str, ...] = SAMPLERS
    """Some of SAMPLERS; what is not among them is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these tokens; minus infinity forbids one."""
    n_probs: int | None = None
    """How many likeliest tokens ``Sampler.shares`` tells; 0: only the chosen one; None: nothing."""
    post_sampling_probs: bool = False
    """Whether they are told as probabilities among what was left to draw from, rather than as
    logarithms of the model's own.
    """
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class TokenShares:
    """How likely a chosen token was, and the likeliest ones: (token, share), the likeliest first.

    Shares are natural logarithms of the model's probabilities, or probabilities if ``drawn``: those
    after all samplers.
    """

    token: int
    share: float
    top: tuple[tuple[int, float], ...]
    drawn: bool


class Sampler(ABC):
    """One answer's sampler chain with its random state; created by ``Engine.sampler``, used on the
    engine's thread.
    """

    ended: bool = False
    """Whether the answer is complete with the last token: its grammar allows no other."""
    shares: TokenShares | None = None
    """Those of the last token, if they were asked for."""

    @abstractmethod
    def sample(self, sequence: int) -> int:
        """The next token, from the logits that the last ``decode`` call left for ``sequence``;
        accepts it. Raises RequestError where the grammar turns out too complex, or leaves no token.
        """

    @abstractmethod
    def close(self) -> None:
        """Free it; may be called twice."""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The vocabulary's tokens for filling in the middle; None: there is no such token."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repository: int | None = None
    file: int | None = None

    @property
    def missing(self) -> list[str]:
        """Which of the three needed ones there are not."""
        return [name for name in ("prefix", "suffix", "middle") if getattr(self, name) is None]


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The verdict of ``Engine.self_test``."""

    passed: bool
    exact: bool
    """Bit for bit, rather than within what two cold cell layouts differ."""
    detail: str
    """A sentence for the log, ``/health`` and ``doctor``."""


class Engine(ABC):
    """See the module. ``identity``, ``geometry``, ``limits`` and ``info`` are fixed once it is
    made.
    """

    identity: Mapping[str, FieldValue]
    """All that changes the meaning of the state, but the content of the model files: fields of a
    Namespace.
    """
    geometry: Geometry
    limits: Limits
    info: ModelInfo
    part_bytes: Mapping[Part, int]
    """The payload of each part of a whole block; a tail's have no more."""
    adapters: Sequence[Adapter] = ()
    """Their ids are their places."""
    fim: FimTokens = FimTokens()

    # Text. Any thread.

    @abstractmethod
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special``: BOS and the like; ``parse_special``: control
        tokens in the text.
        """

    @abstractmethod
    def least_tokens(self, text: str, most: int) -> int:
        """At least how many tokens ``text`` has, control tokens in it included, found in a small
        part of the time that tokenising takes; counted no further than ``most`` + 1.
        """

    @abstractmethod
    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for, maybe a part of a UTF-8 character; a control token's
        name if ``special``, else none for it.
        """

    @abstractmethod
    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of ``tokens``, control tokens left out unless ``special``; bytes that are not
        UTF-8 become U+FFFD.
        """

    @abstractmethod
    def chat_prompt(
        self,
        messages: Objects,
        *,
        add_generation_prompt: bool = True,
        tools: Objects | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's chat template; it is given ``tools`` as
        OpenAI has them, and further ``variables``.

        Tokenise it with ``add_special=False`` when it starts with BOS, ``parse_special=True``.
        Raises RequestError when the template refuses the messages (an unknown role, an order it
        does not know).
        """

    @abstractmethod
    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends an answer (EOS, EOT)."""

    @abstractmethod
    def guide(self, kind: GrammarKind, text: str) -> Guide:
        """Compile a grammar (GBNF, or a JSON schema as JSON); may take a second, the first one two.

        Raises RequestError, which says what is wrong with it, and Unsupported where grammars are
        not offered.
        """

    # Sequences.

    @abstractmethod
    def length(self, sequence: int) -> int:
        """How many positions the sequence holds."""

    @abstractmethod
    def decode(self, chunks: Sequence[Chunk]) -> None:
        """Append every chunk to its sequence in one call of at most ``limits.call_tokens`` tokens.

        At most one chunk per sequence. Raises ContextFullError, with nothing changed, when the
        context has no room, and DecodeError when the call failed: then the sequences in it must be
        cleared.
        """

    @abstractmethod
    def use_adapters(self, scales: AdapterScales) -> None:
        """What ``decode`` computes with from now on: one set for all chunks of a call."""

    @abstractmethod
    def logits(self, sequence: int) -> Logits:
        """A copy of the logits that the last ``decode`` call left for ``sequence``: float32
        [vocabulary].
        """

    @abstractmethod
    def sampler(self, params: SamplingParams, history: Tokens) -> Sampler:
        """A sampler for one answer; ``history``: the prompt's tokens, for the penalties."""

    @abstractmethod
    def export(self, sequence: int, block: int, *, boundary: bool = False) -> BlockState:
        """The state parts of block ``block``, right after the call that completed it; or of the
        sequence's tail, if it ends within that block.

        ``kv`` and ``window`` (where the engine has them) of the block's positions and, if
        ``boundary`` and the sequence ends with this very block, the ``boundary``. A window that the
        engine no longer has, or never had (placeholders), is left out. The views are the engine's
        and stay valid until its next call: copy what you keep. Raises StateRejected.
        """

    def export_run(self, sequence: int, block: int, count: int, memory: memoryview) -> int:  # noqa: ARG002
        """Write the ``kv`` of ``count`` whole blocks, from ``block`` on, as one payload, without a
        copy in between: the payload's bytes; 0 where the engine can't, or ``memory`` is too small.

        ``memory``: HEADROOM_BYTES that are the engine's to overwrite, and room for the payload. The
        payload of one block is that of ``export``, and there is one only where blocks have no other
        parts; that of several is at most as large as theirs together (``split_run``).
        """
        return 0

    def split_run(self, payload: Buffer, count: int) -> Sequence[Buffer]:
        """The ``kv`` of each block in the payload of a run of ``count`` blocks, copied; any thread.

        Raises StateRejected.
        """
        raise StateRejected(f"a run of {count} blocks in {len(payload)} bytes")

    @abstractmethod
    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        """Append block ``block`` to a sequence of exactly ``block`` blocks, from its state parts.

        ``tokens``: how many positions it has; fewer than a whole block's in a tail, which comes
        last and with all its parts. Blocks come in ascending order; parts that are not needed there
        (old windows, boundaries before the end) may be missing. The payloads are copied before it
        returns. Raises StateRejected, and ContextFullError where the cells are used up: after
        either the sequence must be cleared.
        """

    def import_run(self, sequence: int, block: int, states: Sequence[BlockState]) -> int:
        """As ``import_``, for as many of these whole blocks, from ``block`` on, as the engine takes
        at once: how many that was. Where one is rejected, it is the first, or one of the
        ``StateRejected.blocks``.
        """
        self.import_(sequence, block, states[0])
        return 1

    def import_in_place(self, sequence: int, block: int, count: int, memory: memoryview) -> bool:  # noqa: ARG002
        """As ``import_``, without a copy, of what ``export_run`` gave for these blocks.

        ``memory``: HEADROOM_BYTES that are the engine's to overwrite, and the payload. False, with
        nothing done, where the engine can't.
        """
        return False

    def expect_window(self, sequence: int, block: int) -> None:  # noqa: B027 - most need not
        """Prepare, if that may be done already, for blocks that are still to be imported, without a
        ``window`` up to ``block``, which has one: until then the sequence is only imported to, or
        cleared. Unless this is called, that block's import does it. Raises as ``import_``.
        """

    @abstractmethod
    def restored(self, sequence: int) -> bool:
        """Whether everything that decoding needs after the last ``import_`` is there; call before
        ``decode``.
        """

    @abstractmethod
    def can_truncate(self, sequence: int, length: int) -> bool:
        """Whether ``truncate`` to ``length`` would leave a state that decoding can go on from."""

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Forget all positions from ``length`` on; raises StateRejected when ``can_truncate`` says
        no.
        """

    @abstractmethod
    def fork(self, source: int, target: int, length: int) -> bool:
        """Make ``target`` (cleared first) share the first ``length`` positions of ``source``,
        without a copy.

        False, and ``target`` empty, when a window or boundary is missing there: import the prefix
        instead.
        """

    @abstractmethod
    def clear(self, sequence: int) -> None:
        """Empty the sequence; always succeeds."""

    def embed(self, tokens: Tokens) -> Embedding:  # noqa: ARG002
        """The vector of a text of these tokens, of length 1: float32 [embedding]; in one call,
        and no sequence is touched.

        Raises NotOffered where embeddings are off, PromptTooLong for more tokens than a call takes,
        Unsupported for a model that does not say how to pool, DecodeError.
        """
        raise NotOffered("embeddings are not served: start the server with --embeddings")

    @abstractmethod
    def self_test(self) -> SelfTest:
        """Prove that state survives export and import on this library, model and device; needs an
        idle engine.

        Leaves every sequence empty.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model and the context; may be called twice."""

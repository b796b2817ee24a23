"""Grammars that answers follow, compiled by llguidance: which tokens may come next.

llama.cpp's own sampler for grammars can be kept busy for minutes by one of twenty lines, and ends
the process over others. llguidance computes the same masks within bounds: of time, of memory, and
of the grammar's size; what compiling takes is tried first (``grammar_trial``).
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillcache.engine.base import GrammarKind, Guide
from spillcache.engine.closed_schema import closed
from spillcache.engine.gbnf import lark_of
from spillcache.engine.grammar_trial import GrammarTrials, matcher_of
from spillcache.engine.grammar_words import reason_of
from spillcache.errors import NotOffered, RequestError

SCHEMA_CHARACTERS_MAX = 1 << 18


class Steps:
    """One answer's way through a grammar; one thread at a time."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros((vocabulary + 31) // 32, np.uint32)
        self._vocabulary = vocabulary

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next; much quicker than ``allowed``."""
        return bool(self._matcher.validate_tokens([token]))

    def allowed(self) -> NDArray[np.int64]:
        """The tokens that may come next, at least one. Raises RequestError where there is none."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self._vocabulary])

    def take(self, token: int) -> bool:
        """Go on with ``token``; whether the grammar is complete and nothing can follow."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"grammar: {reason_of(self._matcher.get_error())}", "grammar")


class TokenGuide(Guide):
    """See Guide."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._copying = threading.Lock()

    def start(self) -> Steps:
        """A way through it from its beginning."""
        with self._copying:
            return Steps(self._matcher.deep_copy(), self._vocabulary)


class _Vocabulary:
    """What llguidance's TokenizerWrapper asks of a tokeniser."""

    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], ends: list[int], tokenize: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        # A model without an end of its own: a token that no grammar wants.
        self.eos_token_id = ends[0] if ends else 0
        # Control tokens stand for no text.
        self.special_token_ids = [token for token, data in enumerate(tokens) if not data]
        self._tokenize = tokenize
        self._ids = {data: token for token, data in enumerate(tokens) if data}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text that a grammar leaves no choice about: those that the model would
        write, if they spell it exactly, which where a space is put before it they don't.
        """
        tokens = self._tokenize(text.decode())
        if b"".join(self.tokens[token] for token in tokens) == text:
            return tokens
        return self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        found: list[int] = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((n for n in lengths if text[:n] in self._ids), 0)
            if not length:
                break
            found.append(self._ids[text[:length]])
            text = text[length:]
        return found


class Guides:
    """Makes them for one vocabulary: ``tokens`` gives what each token stands for, ``ends`` those
    that end an answer. Both are asked once, for the first grammar: it takes seconds. ``tokenize``:
    the tokens of a plain text. Any thread.
    """

    def __init__(
        self,
        tokens: Callable[[], list[bytes]],
        ends: Callable[[], list[int]],
        tokenize: Callable[[str], list[int]],
    ) -> None:
        self._tokens, self._ends, self._tokenize = tokens, ends, tokenize
        self._tokenizer: Any = None
        self._making = threading.Lock()
        self._trials = GrammarTrials()

    def make(self, kind: GrammarKind, text: str) -> Guide:
        """See Engine.guide."""
        try:
            import llguidance as api  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise NotOffered(
                "grammars and JSON schemas need llguidance; run: pip install 'spillcache[llama]'",
                "grammar",
            ) from error
        _check(kind, text)
        if kind == "json_schema":
            text = closed(text)
        self._trials.check(kind, text)
        tokenizer = self._known_tokenizer(api)
        matcher = matcher_of(api, tokenizer, kind, text)
        if matcher.is_error():
            field = "grammar" if kind == "gbnf" else "json_schema"
            raise RequestError(f"{field}: {reason_of(matcher.get_error())}", field)
        return TokenGuide(matcher, tokenizer.vocab_size)

    def _known_tokenizer(self, api: Any) -> Any:
        with self._making:
            if self._tokenizer is None:
                ends = self._ends()
                vocabulary = _Vocabulary(self._tokens(), ends, self._tokenize)
                wrapped = api.TokenizerWrapper(vocabulary)
                self._tokenizer = api.LLTokenizer(wrapped, eos_token=ends or None)
            return self._tokenizer


def _check(kind: GrammarKind, text: str) -> None:
    """What can be told at once. Raises RequestError."""
    if kind == "gbnf":
        lark_of(text)
    elif len(text) > SCHEMA_CHARACTERS_MAX:
        raise RequestError(
            f"json_schema: it has {len(text):,} characters, and may have "
            f"{SCHEMA_CHARACTERS_MAX:,}; make it smaller",
            "json_schema",
        )

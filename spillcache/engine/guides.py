"""Grammars that answers follow, compiled by llguidance: which tokens may come next.

llama.cpp's own sampler for grammars can be kept busy for minutes by one of twenty lines, and ends
the process over others. llguidance computes the same masks within bounds: of time, of memory, and
of the grammar's size.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillcache.engine.base import GrammarKind, Guide
from spillcache.engine.gbnf import lark_of
from spillcache.errors import NotOffered, RequestError

SCHEMA_CHARACTERS_MAX = 1 << 18
_REASON_CHARACTERS_MAX = 300
_JSON_OPTIONS: Any = {
    # As llama.cpp reads it: one of them, whether or not another would fit as well.
    "coerce_one_of": True,
    # Else a model may go on with blanks for ever.
    "whitespace_pattern": r"[ \n\r\t]{0,40}",
}


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
        """The tokens that may come next. Raises RequestError where there is none."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits[: self._vocabulary])
        if not len(found):
            raise RequestError("grammar: no token of the model can go on from here", "grammar")
        return found

    def take(self, token: int) -> bool:
        """Go on with ``token``; whether the grammar is complete and nothing can follow."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"grammar: {_reason(self._matcher.get_error())}", "grammar")


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


class Guides:
    """Makes them for one vocabulary, whose ``make_tokenizer`` takes seconds: it is called once, for
    the first grammar. Any thread.
    """

    def __init__(self, make_tokenizer: Callable[[], Any]) -> None:
        self._make_tokenizer = make_tokenizer
        self._tokenizer: Any = None
        self._making = threading.Lock()

    def make(self, kind: GrammarKind, text: str) -> Guide:
        """See Engine.guide."""
        try:
            import llguidance as api  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise NotOffered(
                "grammars and JSON schemas need llguidance; run: pip install 'spillcache[llama]'",
                "grammar",
            ) from error
        if kind == "gbnf":
            grammar = api.LLMatcher.grammar_from_lark(lark_of(text))
        else:
            grammar = api.LLMatcher.grammar_from_json_schema(
                _checked_schema(text), overrides=_JSON_OPTIONS
            )
        tokenizer = self._known_tokenizer()
        limits = api.LLParserLimits(verbose_errors=False)
        matcher = api.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            field = "grammar" if kind == "gbnf" else "json_schema"
            raise RequestError(f"{field}: {_reason(matcher.get_error())}", field)
        return TokenGuide(matcher, tokenizer.vocab_size)

    def _known_tokenizer(self) -> Any:
        with self._making:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
            return self._tokenizer


def _checked_schema(text: str) -> str:
    if len(text) > SCHEMA_CHARACTERS_MAX:
        raise RequestError(
            f"json_schema: more than {SCHEMA_CHARACTERS_MAX} characters", "json_schema"
        )
    return text


def _reason(words: str) -> str:
    """The library's first line: what follows may quote the grammar, or what was answered."""
    return " ".join(words.strip().split("\n", 1)[0].split())[:_REASON_CHARACTERS_MAX]

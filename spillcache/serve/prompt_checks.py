"""What can be told of a prompt before it is tokenised, or of ids that a client sent."""

from collections.abc import Sequence

from spillcache.engine.base import Engine
from spillcache.errors import PromptTooLong, RequestError

_TOKEN_BYTES_MAX = 256
"""No vocabulary has longer tokens, but for runs of white space in some."""


def check_length(engine: Engine, text: str, param: str) -> None:
    """Raise PromptTooLong for text that no tokeniser could fit into the context: tokenising it
    would take minutes only to be refused. May take a second: not on the event loop.
    """
    context = engine.limits.context_tokens
    if len(text) > context * _TOKEN_BYTES_MAX:
        raise PromptTooLong(
            f"{param}: the text has {len(text)} characters and the context holds {context} tokens; "
            "shorten it",
            param,
        )
    if len(text) > context and engine.least_tokens(text, context) > context:
        raise PromptTooLong(
            f"{param}: the text has more than {context} tokens, which is all that the context "
            "holds; shorten it",
            param,
        )


def check_count(engine: Engine, pieces: Sequence[object], param: str) -> None:
    """Raise PromptTooLong for more token ids and texts than the context has tokens."""
    if len(pieces) > engine.limits.context_tokens:
        raise PromptTooLong(
            f"{param}: it has {len(pieces):,} token ids, and the context holds "
            f"{engine.limits.context_tokens:,}; shorten it",
            param,
        )


def check_token_ids(engine: Engine, tokens: list[int], param: str) -> None:
    """Raise RequestError when an id is none of the vocabulary's."""
    size = engine.limits.vocabulary
    if tokens and (min(tokens) < 0 or max(tokens) >= size):
        raise RequestError(f"{param}: token ids must lie in 0 … {size - 1}", param)

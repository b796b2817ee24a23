"""Prompts for filling in the middle, laid out as llama-server does."""

from collections.abc import Sequence

from spillcache.engine.base import Engine
from spillcache.errors import NotOffered
from spillcache.serve.schema import InfillBody

WINDOW_TOKENS = 2048
"""Of the code around the gap: three quarters before it, a quarter behind. llama-server's default of
``-b``."""
_REPOSITORY, _FILE = "myproject\n", "filename\n"
"""What llama-server calls them."""
_SNIPPET = "\n\n--- snippet ---\n\n"


def infill_tokens(engine: Engine, body: InfillBody, typed: list[int]) -> list[int]:
    """The prompt's token ids; ``typed``: those of ``prompt``. Raises NotOffered for a model without
    the tokens that it takes, and RequestError.
    """
    fim = engine.fim
    if fim.missing:
        raise NotOffered(
            "the model can't fill in the middle: its vocabulary has no token for "
            f"{' and none for '.join(fim.missing)}",
            "input_prefix",
        )
    before, behind = _plain(engine, body.input_prefix), _plain(engine, body.input_suffix)
    before = before[-3 * (WINDOW_TOKENS // 4) :]
    behind = behind[: max(0, WINDOW_TOKENS // 4 - 2 - len(typed))]
    marks: list[int] = [mark for mark in (fim.prefix, fim.suffix, fim.middle) if mark is not None]
    code = [marks[0], *before, *typed, marks[1], *behind, marks[2]]
    room = engine.limits.context_tokens - WINDOW_TOKENS - 2 * max(0, body.n_predict or 0)
    others = _others(engine, body)
    return (others[-room:] if room > 0 else []) + _begin(engine) + code


def _others(engine: Engine, body: InfillBody) -> list[int]:
    """The texts of ``input_extra``, each behind its name, and the name of the file at hand."""
    fim = engine.fim
    tokens: list[int] = []
    if fim.repository is not None:
        tokens += [fim.repository, *_plain(engine, _REPOSITORY)]
    for chunk in body.input_extra or ():
        if fim.file is not None:
            tokens += [fim.file, *_plain(engine, f"{chunk.filename}\n")]
        else:
            tokens += _plain(engine, _SNIPPET)
        tokens += _plain(engine, chunk.text)
    if fim.file is not None:
        tokens += [fim.file, *_plain(engine, _FILE)]
    return tokens


def _begin(engine: Engine) -> list[int]:
    """BOS, where the model wants one: llama-server has it behind the other files."""
    start: Sequence[int] = engine.tokenize("", add_special=True, parse_special=False)
    return list(start[:1])


def _plain(engine: Engine, text: str) -> list[int]:
    return engine.tokenize(text, add_special=False, parse_special=False)

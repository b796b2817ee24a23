"""One prompt and its answer: their tokens, also when the answer comes back as text.

A client sends an answer back as text, and its next prompt holds it. Tokenised again, that text may
be cut differently from how the model wrote it, and all that follows would be computed anew. So
where an answer's tokens are not those that the tokeniser makes of its text, they are remembered
(``token_memory``); where a later prompt has exactly the same text up to that answer's end, they
take the place of the tokeniser's. All other tokens of a prompt are the tokeniser's, which gives the
same ones every time: so the whole earlier prompt comes out as it was.

What may be replaced is a **span**: from a control token to another, or to the prompt's end.
Templates put control tokens between turns, and the tokeniser joins no text across them: so the
tokens on both sides stay what they are. A text is known by a BLAKE3 of all that precedes its end,
keyed by the request's salt: what other tenants said is not found.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from blake3 import blake3

from spillcache.chain import as_tokens
from spillcache.engine.base import Engine
from spillcache.errors import SpillcacheError
from spillcache.serve.job import GenerationRequest
from spillcache.serve.token_memory import TokenMemory

log = logging.getLogger("spillcache.serve")

_CONTEXT = "spillcache v1 token memory"
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of the last ``size`` bytes of a text."""

    size: int
    tokens: list[int]

    def pack(self) -> bytes:
        """As TokenMemory keeps it: u32 little-endian, the size first."""
        return as_tokens([self.size, *self.tokens]).astype("<u4").tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> "Span":
        """What ``pack`` made."""
        size, *tokens = np.frombuffer(data, "<u4").tolist()
        return cls(size, tokens)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place in a text: so many bytes and so many tokens precede it."""

    byte: int
    token: int


class Turn:
    """See the module. ``tokens`` comes first, then ``learn``; one thread at a time, not the event
    loop's: both may take long.

    ``reads`` and ``stores``: whether the request may use, and leave, anything.
    """

    def __init__(
        self,
        engine: Engine,
        memory: TokenMemory,
        salt: bytes = b"",
        *,
        reads: bool = True,
        stores: bool = True,
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._reads = reads
        self._stores = stores
        self._key = blake3(salt, derive_key_context=_CONTEXT).digest()
        self._text: Any = blake3(key=self._key)
        self._open: tuple[bytes, list[int], bool] | None = None
        """The prompt's last span: its text, its tokens, and whether the tokeniser added some."""
        self.known = 0
        """How many of the prompt's tokens are remembered ones."""
        self.spelled: Mapping[int, bytes] = {}
        """Control tokens that the answer's reader must see, and their texts."""
        self.stops: tuple[str, ...] = ()
        """Texts that end the answer, beside the request's own."""

    def request(self, asked: GenerationRequest) -> GenerationRequest:
        """What the scheduler is asked for."""
        return replace(asked, spelled=self.spelled, stop=(*asked.stop, *self.stops))

    def tokens(self, text: str, *, add_special: bool) -> list[int]:
        """The token ids of a prompt. Raises as ``Engine.tokenize``."""
        raw = text.encode(errors="surrogatepass")
        scope = self._key + bytes([add_special])
        fresh = self._fresh(text, raw, scope)
        added = self._added() if add_special else []
        cuts = _cuts(self._engine, raw, fresh, added)
        if self._stores and len(cuts) > 1:
            last = cuts[-2]
            mark = self._engine.token_bytes(fresh[last.token], special=True)
            self._memory.prompts.put(scope, raw[: last.byte], mark, fresh[: last.token])
        tokens, start = self._recall(raw, fresh, cuts, len(added))
        self._open = (raw[start.byte :], tokens[start.token :], add_special and not start.byte)
        return tokens

    def _fresh(self, text: str, raw: bytes, scope: bytes) -> list[int]:
        """The tokeniser's tokens: of all of the text, or of what is new in it."""
        known = self._memory.prompts.longest(scope, raw) if self._reads else None
        if known is None:
            special = bool(scope[-1])
            return self._engine.tokenize(text, add_special=special, parse_special=True)
        rest = raw[len(known.text) :].decode(errors="surrogatepass")
        return known.tokens + self._engine.tokenize(rest, add_special=False, parse_special=True)

    def _added(self) -> list[int]:
        """What the tokeniser puts around every text."""
        return self._engine.tokenize("", add_special=True, parse_special=False)

    def _recall(
        self, raw: bytes, fresh: list[int], cuts: list[_Cut], added: int
    ) -> tuple[list[int], _Cut]:
        """The tokens with what is known in its place, and where the last span begins in them."""
        starts = {0: 0} | {cut.byte: cut.token for cut in cuts[:-1]}
        tokens: list[int] = []
        done, last = _Cut(0, 0), _Cut(0, 0)
        for end, span in self._known(raw, cuts):
            start = starts.get(end.byte - span.size)
            if start is None or start < done.token:
                continue
            piece = raw[end.byte - span.size : end.byte]
            if not self._says(fresh[max(start, added) : end.token], piece):
                continue
            tokens += fresh[done.token : start]
            last, done = _Cut(end.byte - span.size, len(tokens)), end
            tokens += span.tokens
            self.known += len(span.tokens)
        shift = len(tokens) - done.token
        for cut in cuts[:-1]:
            if cut.byte >= done.byte and cut.byte < len(raw):
                last = _Cut(cut.byte, cut.token + shift)
        return tokens + fresh[done.token :], last

    def _known(self, raw: bytes, cuts: list[_Cut]) -> list[tuple[_Cut, Span]]:
        """Where spans end that are known, in the text's order; afterwards all text is hashed."""
        if not self._reads or self._memory.empty:
            self._text.update(raw)
            return []
        ends: dict[bytes, _Cut] = {}
        before = 0
        for cut in cuts:
            self._text.update(raw[before : cut.byte])
            ends[self._text.digest()] = cut
            before = cut.byte
        found = self._memory.find(list(ends))
        return [(end, Span.unpack(found[key])) for key, end in ends.items() if key in found]

    def _says(self, tokens: Sequence[int], text: bytes) -> bool:
        """Whether tokens and text belong together: some tokenisers add or drop white space."""
        said = b"".join(self._engine.token_bytes(token, special=True) for token in tokens)
        return said.translate(None, _SPACE) == text.translate(None, _SPACE)

    def learn(self, answer: Sequence[int], stop: str | None = None) -> None:
        """Remember the answer's tokens, if the tokeniser would give others for its text.

        ``stop``: the stop string that ended it, which the client did not see. The text is
        remembered with and without the white space at its end, since many templates trim that.
        Raises nothing: the answer is out.
        """
        if not self._stores or self._open is None or not answer:
            return
        try:
            self._learn_texts(answer, stop)
        except SpillcacheError as error:  # the engine is closed: the answer is out all the same
            log.debug("an answer's tokens are not remembered: %s", error)
        except Exception:
            log.exception("an answer's tokens are not remembered")

    def _learn_texts(self, answer: Sequence[int], stop: str | None) -> None:
        pieces = [self._engine.token_bytes(token, special=True) for token in answer]
        whole = b"".join(pieces)
        if stop is not None and stop.encode() in whole:
            whole = whole[: whole.index(stop.encode())]
        for text in dict.fromkeys((whole, whole.rstrip(_SPACE))):
            self._learn(text, answer, pieces)

    def _learn(self, text: bytes, answer: Sequence[int], pieces: list[bytes]) -> None:
        if self._open is None:
            return
        before, tokens, special = self._open
        try:
            said = (before + text).decode()
            kept = self._cut(text, answer, pieces)
        except UnicodeDecodeError:
            return  # it ends within a character, so it can't come back
        fresh = self._engine.tokenize(said, add_special=special, parse_special=True)
        if kept is None or (known := tokens + kept) == fresh:
            return
        key = self._text.copy().update(text).digest()
        self._memory.put(key, Span(len(before) + len(text), known).pack())
        log.debug("an answer's %d tokens are remembered: its text gives others", len(answer))

    def _cut(self, text: bytes, answer: Sequence[int], pieces: list[bytes]) -> list[int] | None:
        """The answer's tokens within ``text``, its beginning; what a token has of it only in part
        is tokenised. None where that can't be done.
        """
        size = count = 0
        while count < len(pieces) and size + len(pieces[count]) <= len(text):
            size += len(pieces[count])
            count += 1
        kept = list(answer[:count])
        if rest := text[size:]:
            more = self._engine.tokenize(rest.decode(), add_special=False, parse_special=False)
            if b"".join(map(self._engine.token_bytes, more)) != rest:
                return None  # the tokeniser puts a space before every text
            kept += more
        return kept


def _cuts(engine: Engine, raw: bytes, tokens: list[int], added: list[int]) -> list[_Cut]:
    """Where the text's control tokens begin, and its end; only the end where that can't be told.

    ``added``: tokens before the text that are not in it.
    """
    end = _Cut(len(raw), len(tokens))
    if tokens[: len(added)] != added:
        return [end]
    ids = np.asarray(tokens, np.int64)
    names = {
        token: engine.token_bytes(token, special=True)
        for token in np.unique(ids).tolist()
        if not engine.token_bytes(token) or engine.is_end(token)
    }
    cuts: list[_Cut] = []
    at = 0
    for index in np.flatnonzero(np.isin(ids, list(names))).tolist():
        if index < len(added):
            continue
        name = names[tokens[index]]
        found = raw.find(name, at)
        if found < 0 or not name:
            return [end]
        cuts.append(_Cut(found, index))
        at = found + len(name)
    return [*cuts, end]

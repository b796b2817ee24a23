"""Text and tokens of a llama.cpp model; any thread."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spillcache.engine.base import FimTokens
from spillcache.engine.chat_template import ChatTemplate, pick_template
from spillcache.engine.guides import Guides
from spillcache.engine.special_texts import Special, SpecialTexts
from spillcache.errors import EngineError, RequestError

LONG_BYTES = 1 << 14
"""Shorter texts are tokenised in no time, whatever is in them."""


class LlamaText:
    """A model's vocabulary and chat template.

    HTTP threads may tokenise while the model is about to be freed, and a long text takes seconds:
    so users are counted rather than locked out, and ``close`` waits for them. What the engine's
    thread asks for at every token is remembered, and waits for nobody.
    """

    def __init__(self, api: Any, model: Any, chat_template: str | None) -> None:
        self._api = api
        self._vocab: Any = api.llama_model_get_vocab(model)
        self._changed = threading.Condition()
        self._users = 0
        self._closed = False
        self._ends: dict[int, bool] = {}
        self._all_ends: list[int] | None = None
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, bytes] = {}
        self._looking = threading.Lock()
        self._specials: SpecialTexts | None = None
        self.size = int(api.llama_vocab_n_tokens(self._vocab))
        self.bos_token = self._name(api.llama_vocab_bos(self._vocab))
        self.eos_token = self._name(api.llama_vocab_eos(self._vocab))
        added = self._tokenize(b"", True, False)
        self._adds_end = len(added) > int(api.llama_vocab_get_add_bos(self._vocab))
        own: bytes | None = api.llama_model_chat_template(model, None)
        source = pick_template(
            own.decode(errors="replace") if own else None, chat_template, self._has_token
        )
        self.template = ChatTemplate(source, self.bos_token, self.eos_token)
        self.guides = Guides(
            self._all_bytes,
            self.ends,
            lambda text: self.tokenize(text, add_special=False, parse_special=False),
        )
        self.fim = FimTokens(
            *(
                token if token >= 0 else None
                for name in ("pre", "suf", "mid", "rep", "sep")
                for token in [int(getattr(api, f"llama_vocab_fim_{name}")(self._vocab))]
            )
        )

    def close(self, timeout_s: float = 1.0) -> bool:
        """Refuse further use; whether everyone has left, so that the model may be freed."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: not self._users, timeout_s)

    @contextlib.contextmanager
    def _using(self) -> Iterator[Any]:
        """The vocabulary's handle, good within the block; raises EngineError once closed."""
        with self._changed:
            if self._closed:
                raise EngineError("the engine is closed")
            self._users += 1
        try:
            yield self._vocab
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """See Engine. Raises RequestError for text that can't be encoded as UTF-8."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the text holds a lone surrogate, which is not Unicode") from error
        if len(raw) < LONG_BYTES or (add_special and self._adds_end):
            return self._tokenize(raw, add_special, parse_special)
        tokens = self._tokenize(b"", add_special, parse_special)
        for part in self._special_texts().parts(raw, parse_special=parse_special):
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self._tokenize(part.raw, False, part.parse_special)
        return tokens

    def least_tokens(self, text: str, most: int) -> int:
        """See Engine."""
        return self._special_texts().count(text.encode(errors="replace"), most)

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(raw) + 16
        with self._using() as vocab:
            for _ in range(2):
                tokens = (self._api.llama_token * room)()
                count = self._api.llama_tokenize(
                    vocab, raw, len(raw), tokens, room, add_special, parse_special
                )
                if count >= 0:
                    return tokens[:count]  # type: ignore[no-any-return]
                room = -count
        raise EngineError("llama.cpp could not tokenise the text")

    def prepare(self) -> None:
        """Look through the vocabulary for what long texts need: half a second for a large one."""
        with contextlib.suppress(EngineError):  # closed meanwhile
            self._special_texts()

    def _special_texts(self) -> SpecialTexts:
        """What the tokeniser looks for; waits for ``prepare``, or does its work."""
        with self._looking:
            if self._specials is None:
                self._specials = SpecialTexts(list(self._find_specials()))
            return self._specials

    def _find_specials(self) -> Iterator[Special]:
        api = self._api
        control = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        wanted, kind = control | api.LLAMA_TOKEN_ATTR_USER_DEFINED, api.llama_vocab_get_attr
        with self._using() as vocab:
            for token in range(self.size):
                attributes = kind(vocab, token)
                if attributes & wanted:
                    yield Special(
                        token,
                        api.llama_vocab_get_text(vocab, token),
                        control=bool(attributes & control),
                        lstrip=bool(attributes & api.LLAMA_TOKEN_ATTR_LSTRIP),
                        rstrip=bool(attributes & api.LLAMA_TOKEN_ATTR_RSTRIP),
                    )

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """See Engine."""
        spelled = self._names if special else self._bytes
        known = spelled.get(token)
        if known is None:
            known = spelled[token] = self._spell(token, special=special)
        return known

    def _spell(self, token: int, *, special: bool) -> bytes:
        room = 64
        with self._using() as vocab:
            for _ in range(2):
                buffer = ctypes.create_string_buffer(room)
                count = self._api.llama_token_to_piece(vocab, token, buffer, room, 0, special)
                if count >= 0:
                    return bytes(buffer.raw[:count])
                room = -count
        raise EngineError(f"llama.cpp could not spell token {token}")

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """See Engine."""
        spell = self.full_bytes if special else self.token_bytes
        return b"".join(spell(token) for token in tokens).decode(errors="replace")

    def full_bytes(self, token: int) -> bytes:
        """As ``token_bytes``, but a control token's name, too."""
        return self.token_bytes(token) or self._spell(token, special=True)

    def is_end(self, token: int) -> bool:
        """See Engine."""
        known = self._ends.get(token)
        if known is None:
            with self._using() as vocab:
                known = self._ends[token] = bool(self._api.llama_vocab_is_eog(vocab, token))
        return known

    def ends(self) -> list[int]:
        """All tokens that end an answer; looks through the vocabulary at the first call."""
        if self._all_ends is None:
            with self._using() as vocab:
                ends = self._api.llama_vocab_is_eog
                self._all_ends = [token for token in range(self.size) if ends(vocab, token)]
        return self._all_ends

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """See Engine."""
        return self.template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
        )

    def _all_bytes(self) -> list[bytes]:
        """What each token stands for; a second for a large vocabulary."""
        room = 1 << 14  # more than any token has
        buffer, found = ctypes.create_string_buffer(room), []
        with self._using() as vocab:
            spell = self._api.llama_token_to_piece
            for token in range(self.size):
                count = spell(vocab, token, buffer, room, 0, False)
                found.append(ctypes.string_at(buffer, max(0, count)))
        return found

    def _name(self, token: int) -> str:
        """A token's text, also a control token's; none for an id that means "no such token"."""
        return self._spell(token, special=True).decode(errors="replace") if token >= 0 else ""

    def _has_token(self, text: str) -> bool:
        return len(self.tokenize(text, add_special=False, parse_special=True)) == 1

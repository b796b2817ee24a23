"""Text and tokens of a llama.cpp model; any thread."""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from spillcache.engine.chat_template import ChatTemplate, pick_template
from spillcache.errors import EngineError, RequestError


class LlamaText:
    """A model's vocabulary and chat template.

    A lock guards the handle against ``close``: HTTP threads tokenise while the engine's thread may
    be shutting down.
    """

    def __init__(self, api: Any, model: Any, chat_template: str | None) -> None:
        self._api, self._lock = api, threading.Lock()
        self._vocab: Any = api.llama_model_get_vocab(model)
        self.size = int(api.llama_vocab_n_tokens(self._vocab))
        self.bos_token = self._name(api.llama_vocab_bos(self._vocab))
        self.eos_token = self._name(api.llama_vocab_eos(self._vocab))
        own: bytes | None = api.llama_model_chat_template(model, None)
        source = pick_template(
            own.decode(errors="replace") if own else None, chat_template, self._has_token
        )
        self.template = ChatTemplate(source, self.bos_token, self.eos_token)

    def close(self) -> None:
        """Refuse further use; the caller frees the model afterwards."""
        with self._lock:
            self._vocab = None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """See Engine. Raises RequestError for text that can't be encoded as UTF-8."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the text holds a lone surrogate, which is not Unicode") from error
        room = len(raw) + 16
        with self._lock:
            for _ in range(2):
                tokens = (self._api.llama_token * room)()
                count = self._api.llama_tokenize(
                    self._handle(), raw, len(raw), tokens, room, add_special, parse_special
                )
                if count >= 0:
                    return list(tokens[:count])
                room = -count
        raise EngineError("llama.cpp could not tokenise the text")

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """See Engine; ``special``: also the names of control tokens."""
        room = 64
        with self._lock:
            for _ in range(2):
                buffer = ctypes.create_string_buffer(room)
                count = self._api.llama_token_to_piece(
                    self._handle(), token, buffer, room, 0, special
                )
                if count >= 0:
                    return bytes(buffer.raw[:count])
                room = -count
        raise EngineError(f"llama.cpp could not spell token {token}")

    def detokenize(self, tokens: Sequence[int]) -> str:
        """See Engine."""
        return b"".join(self.token_bytes(token) for token in tokens).decode(errors="replace")

    def is_end(self, token: int) -> bool:
        """See Engine."""
        with self._lock:
            return bool(self._api.llama_vocab_is_eog(self._handle(), token))

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """See Engine."""
        return self.template.render(messages, add_generation_prompt=add_generation_prompt)

    def _handle(self) -> Any:
        if self._vocab is None:
            raise EngineError("the engine is closed")
        return self._vocab

    def _name(self, token: int) -> str:
        return self.token_bytes(token, special=True).decode(errors="replace") if token >= 0 else ""

    def _has_token(self, text: str) -> bool:
        return len(self.tokenize(text, add_special=False, parse_special=True)) == 1

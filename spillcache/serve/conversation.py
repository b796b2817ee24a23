"""A chat on its way to a prompt, and its answer on the way back: tools, ids of calls, thoughts."""

import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from spillcache.engine.base import Engine
from spillcache.serve.answer_parser import AnswerParser
from spillcache.serve.call_texts import CallTexts
from spillcache.serve.thinking import thinking_of
from spillcache.serve.tool_fields import schemas_of
from spillcache.serve.tool_formats import HELD, tool_format
from spillcache.serve.tool_prompt import generic_messages

_DIGITS = string.ascii_letters + string.digits
_ID_DIGITS = 24


class Conversation:
    """One chat request in its model's own terms. ``prompt`` comes first; any thread.

    ``messages`` and ``tools`` are OpenAI's. ``calls``: whether the answer may hold calls; if not,
    the prompt is the same and whatever the model writes is content. ``held``: whether the answer is
    held to ``tool_prompt.call_schema``, so that there is nothing in it but a call.
    """

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        calls: bool = True,
        held: bool = False,
        texts: CallTexts,
    ) -> None:
        template = engine.info.chat_template
        self._engine = engine
        self._messages = messages
        self._tools = list(tools)
        self._texts = texts
        self._format = tool_format(template)
        self._answer = HELD if held else self._format
        self._reads_calls = calls and bool(tools)
        self._thinking = None if held else thinking_of(template)
        self._thinks = False

    def prompt(self, **options: Any) -> str:
        """The prompt's text; may take long. ``options`` and what is raised: as
        ``Engine.chat_prompt``.
        """
        render = self._engine.chat_prompt
        messages = self._texts.restored(self._messages)
        if self._format.generic:
            text = render(generic_messages(messages, self._tools), **options)
        else:
            told = self._with_ids(messages)
            told = _with_thinking(told) if self._format.channels else told
            text = render(told, tools=self._tools, **options)
        self._thinks = self._thinking is not None and self._thinking.is_open(text)
        return text

    def parser(self) -> AnswerParser:
        """A reader of one answer to the prompt."""
        format_ = self._answer if self._reads_calls else None
        schemas = schemas_of(self._tools)
        return AnswerParser(
            format_,
            schemas,
            self._thinking,
            thinks=self._thinks,
            channels=self._answer.channels,
        )

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        return self._answer.stops if self._reads_calls else ()

    def spelled(self) -> dict[int, bytes]:
        """The control tokens that the parser must see, and their texts."""
        seen = self._reads_calls or self._answer.channels
        marks = list(self._answer.spelled) if seen else []
        if self._thinking is not None:
            marks += [self._thinking.opens, self._thinking.closes]
        found: dict[int, bytes] = {}
        for mark in marks:
            tokens = self._engine.tokenize(mark, add_special=False, parse_special=True)
            if len(tokens) == 1 and not self._engine.token_bytes(tokens[0]):
                found[tokens[0]] = mark.encode()
        return found

    def call_id(self, own: str) -> str:
        """See CallIds: the model's own, or one as the template wants it."""
        size = self._format.id_characters
        if own and (not size or len(own) == size):
            return own
        made = "".join(secrets.choice(_DIGITS) for _ in range(size or _ID_DIGITS))
        return made if size else f"call_{made}"

    def learn_call(self, call_id: str, arguments: str) -> None:
        """See CallIds."""
        self._texts.learn(call_id, arguments)

    def _with_ids(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ids as the template wants them: those that other servers gave may be too long for it."""
        size = self._format.id_characters
        if not size:
            return messages
        out = []
        for message in messages:
            kept = dict(message)
            if isinstance(kept.get("tool_call_id"), str):
                kept["tool_call_id"] = _fitting(kept["tool_call_id"], size)
            if isinstance(kept.get("tool_calls"), list):
                kept["tool_calls"] = [
                    {**call, "id": _fitting(str(call.get("id")), size)}
                    if isinstance(call, Mapping)
                    else call
                    for call in kept["tool_calls"]
                ]
            out.append(kept)
        return out


def _with_thinking(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was thought before a call, under the name that gpt-oss' template has for it. It takes
    no thoughts where words come before the call, too.
    """
    return [
        {**message, "thinking": message["reasoning_content"]}
        if message.get("tool_calls") and not message.get("content") and _thought(message)
        else message
        for message in messages
    ]


def _thought(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("reasoning_content"), str)


def _fitting(call_id: str, size: int) -> str:
    """The id, or one of ``size`` letters and digits that stands for it."""
    if len(call_id) == size and call_id.isalnum():
        return call_id
    digest = blake3(call_id.encode(errors="replace")).digest()
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:size])

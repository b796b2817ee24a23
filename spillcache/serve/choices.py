"""Several answers to one prompt (``n``), told as one: each by a form of its own, one after the
other, so that all but the first go on from what the first computed of the prompt.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spillcache.engine.base import Engine
from spillcache.errors import SpillcacheError
from spillcache.serve.answer_format import AnswerForm, AnswerFormat, usage_object
from spillcache.serve.job import DoneEvent, GenerationRequest, TextEvent

_SEEDS = 1 << 32


class Choices:
    """An AnswerForm; ``forms``: at least one, all of a kind."""

    def __init__(self, forms: Sequence[AnswerFormat]) -> None:
        self.forms = forms
        self.end, self.ping = forms[0].end, forms[0].ping
        self._common = {name: forms[0].common[name] for name in ("id", "created")}
        self._number = 0
        self._generated = 0
        self._choices: list[dict[str, Any]] = []

    def about(self, request: GenerationRequest, engine: Engine) -> None:
        """See AnswerForm."""
        for form in self.forms:
            form.about(request, engine)

    def answer(self, text: str, tokens: list[TextEvent], done: DoneEvent) -> dict[str, Any]:
        """All that were answered so far, this one last: their usage together, timings and token ids
        of this one.
        """
        whole = self.forms[self._number].answer(text, tokens, done)
        self._choices += self._numbered([whole])[0]["choices"]
        self._number += 1
        return whole | {"choices": self._choices, "usage": self._usage(done)}

    def head(self) -> list[dict[str, Any]]:
        """See AnswerForm."""
        return self._numbered(self.forms[self._number].head())

    def pieces(self, event: TextEvent | DoneEvent) -> list[dict[str, Any]]:
        """See AnswerForm."""
        return self._numbered(self.forms[self._number].pieces(event))

    def tail(self, done: DoneEvent) -> list[dict[str, Any]]:
        """The end of one choice, and the beginning of the next; usage comes with the last."""
        chunks = self._numbered(self.forms[self._number].tail(done))
        usage = self._usage(done)
        if done.is_last:
            if chunks[-1].get("usage"):
                chunks[-1]["usage"] = usage
            return chunks
        self._number += 1
        return [*chunks[:1], *self.head()]

    def failure(self, error: SpillcacheError) -> dict[str, Any]:
        """See AnswerForm."""
        return self.forms[self._number].failure(error)

    def _usage(self, done: DoneEvent) -> dict[str, Any]:
        """With the tokens of all choices so far; the prompt's count once."""
        self._generated += done.usage.generated
        return usage_object(replace(done.usage, generated=self._generated))

    def _numbered(self, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for one in objects:
            one.update(self._common)
            for choice in one["choices"]:
                choice["index"] = self._number
        return objects


def forms_of(form: AnswerForm) -> Sequence[AnswerForm]:
    """The forms of the choices, or the one that there is."""
    return form.forms if isinstance(form, Choices) else [form]


def requests_of(request: GenerationRequest, count: int) -> list[GenerationRequest]:
    """One for each choice; a seed that was given is the first one's, and the next ones follow."""
    seed = request.sampling.seed
    if seed is None:
        return [request] * count
    return [
        replace(request, sampling=replace(request.sampling, seed=(seed + number) % _SEEDS))
        for number in range(count)
    ]

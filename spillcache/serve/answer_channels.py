"""Answers that are written in channels, as gpt-oss models write them (OpenAI's harmony format).

An answer is messages: ``<|channel|>analysis<|message|>…<|end|>`` is what the model thinks,
``<|start|>assistant<|channel|>final<|message|>…<|return|>`` what it says; a message to a function
(``to=functions.NAME``, before or behind the channel's name) is a call, its text the arguments:
``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>``. The prompt has
written the first message's beginning. The format is described in OpenAI's documentation of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spillcache.serve.call_teller import CallTeller
from spillcache.serve.tool_call import NotACall
from spillcache.serve.tool_objects import read_arguments
from spillcache.serve.tool_source import HEAD_CHARACTERS_MAX, Source, Waiting, begun

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)
"""They are control tokens, and must be seen."""

_HEADS = (_START, _CHANNEL, "to=")
_BREAKS = (*_ENDS, _START, _CHANNEL)
"""What a message's text can't go on after."""
_TO = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*(\w*)")


@dataclass(frozen=True, slots=True)
class Hearer:
    """What becomes of what is read. ``teller``: makes one for a call; None where calls are none."""

    say: Callable[[str], None]
    think: Callable[[str], None]
    teller: Callable[[], CallTeller] | None


def read_channels(source: Source, hearer: Hearer) -> Waiting[None]:
    """A whole answer. What is not in this form is said as it is; raises nothing."""
    while True:
        at = yield from source.skip_space(0)
        if at == len(source.text):
            return
        if (yield from source.starts(at, _HEADS)):
            yield from _message(source, at, hearer)
        else:
            yield from _text(source, hearer.say)


def _message(source: Source, at: int, hearer: Hearer) -> Waiting[None]:
    try:
        end, mark = yield from source.first(at, (_MESSAGE,), HEAD_CHARACTERS_MAX)
    except NotACall:  # a head without an end: it is said as it is
        hearer.say(source.drop(at + 1))
        yield from _text(source, hearer.say)
        return
    head = source.text[at:end]
    channel, to = _CHANNEL_NAME.search(head), _TO.search(head)
    if to is not None and hearer.teller is not None:
        read = partial(_read_call, name=to[1].removeprefix("functions."))
        if (yield from hearer.teller().read(source, end + len(mark), read)):
            yield from _text(source, hearer.say)
            return
    if to is not None:
        hearer.say(source.drop(end + len(mark)))
    else:
        source.drop(end + len(mark))
    thinks = channel is not None and channel[1] == "analysis"
    yield from _text(source, hearer.think if thinks and to is None else hearer.say)


def _read_call(source: Source, at: int, teller: CallTeller, *, name: str) -> Waiting[int]:
    at = yield from source.skip_space(at)
    if source.text[at : at + 1] != "{":
        raise NotACall("the arguments are no object")
    end = yield from read_arguments(source, at, teller, name, "")
    return (yield from source.skip_space(end))


def _text(source: Source, tell: Callable[[str], None]) -> Waiting[None]:
    """Tell what is left of a message, while it comes."""
    while True:
        found, mark = source.seen(0, _BREAKS)
        if found >= 0:
            _tell(tell, source.drop(found))
            source.drop(len(mark) if mark in _ENDS else 0)
            return
        held = 0 if source.ended else begun(source.text, _BREAKS)
        _tell(tell, source.drop(len(source.text) - held))
        if source.ended:
            return
        yield


def _tell(tell: Callable[[str], None], text: str) -> None:
    if text:
        tell(text)

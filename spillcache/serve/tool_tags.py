"""Calls in tags: ``<function=…>`` with parameters, and pairs of keys and values.

Values come as texts; the tool's schema says what they are. Texts are told while they come, other
values when they are whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from spillcache.serve.call_teller import CallTeller
from spillcache.serve.json_scan import escaped
from spillcache.serve.tool_call import is_text, typed_value
from spillcache.serve.tool_objects import read_arguments, read_json
from spillcache.serve.tool_source import HEAD_CHARACTERS_MAX, Source, Waiting, begun

_KEY_CHARACTERS_MAX = 128
ENDS = ("</function>", "</tool_call>")
"""What ends calls in tags."""


def read_tagged(source: Source, at: int, teller: CallTeller) -> Waiting[int]:
    """What stands in ``<tool_call>``: JSON, ``<function=…>`` with parameters, or pairs of keys and
    values.
    """
    at = yield from source.skip_space(at)
    if (yield from source.starts(at, ("{", "[", "```"))):
        return (yield from read_json(source, at, teller))
    mark = yield from source.starts(at, ("<function=",))
    if mark:
        return (yield from read_function(source, at + len(mark), teller))
    end, _ = yield from source.first(at, ("<arg_key>", "</tool_call>"), HEAD_CHARACTERS_MAX)
    return (yield from _Pairs(source, teller).read(source.text[at:end], end))


def read_function(source: Source, at: int, teller: CallTeller) -> Waiting[int]:
    """What follows ``<function=``: JSON arguments, or parameters in tags of their own."""
    end, _ = yield from source.first(at, (">",), HEAD_CHARACTERS_MAX)
    name = source.text[at:end]
    start = yield from source.skip_space(end + 1)
    if source.text[start : start + 1] == "{":
        return (yield from read_arguments(source, start, teller, name, ""))
    return (yield from _Parameters(source, teller).read(name, start))


class _Texts(ABC):
    """Arguments whose values are texts in tags, told as a JSON object."""

    opens: str
    """What stands before a name."""
    names: str
    """What stands between a name and its value."""
    closes: Sequence[str]
    """What ends a value; the longest counts."""
    ends: Sequence[str] = ENDS
    """What ends the call, and is left where it is."""

    def __init__(self, source: Source, teller: CallTeller) -> None:
        self._source = source
        self._teller = teller
        self._separator = ""

    def read(self, name: str, at: int) -> Waiting[int]:
        """The call's parameters from ``at`` on. What stands between them means nothing."""
        source, teller = self._source, self._teller
        teller.begin(name, "", at)
        teller.more("{", at)
        properties = teller.schema(name.strip())
        while True:
            at, mark = yield from source.first(at, (self.opens, *self.ends))
            if mark != self.opens:
                teller.more("}", at)
                teller.end(at)
                return at
            start = at + len(mark)
            end, between = yield from source.first(start, (self.names,), _KEY_CHARACTERS_MAX)
            key = source.text[start:end].strip()
            at = yield from self._value(key, end + len(between), properties.get(key))

    def _value(self, key: str, at: int, schema: Any) -> Waiting[int]:
        source, teller = self._source, self._teller
        at = yield from self._start(at)
        head = f'{self._separator}"{escaped(key)}": '
        self._separator = ", "
        if is_text(schema):
            teller.more(head + '"', at)
            at = yield from self._text(at)
            teller.more('"', at)
            return at
        end, mark = yield from source.first(at, self.closes)
        value = typed_value(source.text[at:end], schema)
        end += len(mark)
        teller.more(head + value, end)
        return end

    @abstractmethod
    def _start(self, at: int) -> Waiting[int]:
        """Where a value begins, behind the tag before it."""

    def _text(self, at: int) -> Waiting[int]:
        """Tell a text while it comes; where its closing ends."""
        source, teller = self._source, self._teller
        while True:
            found, mark = source.seen(at, self.closes)
            end = len(source.text) - begun(source.text[at:], self.closes) if found < 0 else found
            if end > at:
                teller.more(escaped(source.text[at:end]), end)
                at = end
            if found >= 0:
                return found + len(mark)
            yield from source.more()


class _Parameters(_Texts):
    """``<parameter=NAME>`` and its value, in lines of their own or not."""

    opens, names, closes = "<parameter=", ">", ("\n</parameter>", "</parameter>")

    def _start(self, at: int) -> Waiting[int]:
        return at + len((yield from self._source.starts(at, ("\n",))))


class _Pairs(_Texts):
    """``<arg_key>NAME</arg_key>`` and ``<arg_value>VALUE</arg_value>``."""

    opens, names, closes = "<arg_key>", "</arg_key>", ("</arg_value>",)
    ends = ("</tool_call>",)

    def _start(self, at: int) -> Waiting[int]:
        return (yield from self._source.need(at, "<arg_value>"))

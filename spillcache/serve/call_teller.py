"""Tells of calls while they are read, and says what can't be taken back any more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spillcache.serve.tool_call import (
    CallBegun,
    CallEnd,
    CallPart,
    CutOff,
    NotACall,
    ToolCall,
    called,
)
from spillcache.serve.tool_source import Source, Waiting

Reader = Callable[[Source, int, "CallTeller"], Waiting[int]]
"""Reads calls from behind the text that opened them, tells of them, and returns where they end;
raises NotACall.
"""
Tools = Mapping[str, Mapping[str, Any]]
"""The schemas of the parameters, by the tools' names."""


class CallTeller:
    """For one reading. ``tell`` takes the pieces; ``known``: whether only calls of ``tools`` may be
    told, so that others raise NotACall.
    """

    def __init__(
        self,
        tell: Callable[[CallBegun | CallPart | CallEnd], None],
        tools: Tools,
        *,
        known: bool = False,
    ) -> None:
        self._tell = tell
        self._tools = tools
        self._known = known
        self._open = False
        self._at = -1
        """Up to where in the source calls were told; −1: nothing was, and all may be content."""

    def schema(self, name: str) -> Mapping[str, Any]:
        """The properties of a tool's parameters."""
        properties = self._tools.get(name, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def begin(self, name: Any, own: str, at: int) -> None:
        """A call begins, whose arguments begin at ``at``. Raises NotACall."""
        self._check(name)
        self._tell(CallBegun(called(name), own))
        self._open, self._at = True, at

    def passed(self, at: int) -> None:
        """What stands between calls is read up to ``at``."""
        self._at = at

    def more(self, text: str, at: int) -> None:
        """More of its arguments, up to ``at``."""
        self._tell(CallPart(text))
        self._at = at

    def end(self, at: int, *, whole: bool = True) -> None:
        """It is over."""
        self._open, self._at = False, at
        self._tell(CallEnd(whole))

    def read(self, source: Source, at: int, reader: Reader) -> Waiting[bool]:
        """Read calls at ``at`` and tell of them; what they took of the source is dropped, and so is
        the rest of an answer that ends within one. False if there is none, and nothing is dropped.
        """
        try:
            self._at = yield from reader(source, at, self)
        except NotACall as error:
            if self._at < 0:
                return False
            if self._open:
                self.end(self._at, whole=False)
            if isinstance(error, CutOff):
                self._at = len(source.text)
        source.drop(self._at)
        return True

    def tell_all(self, calls: Sequence[ToolCall], at: int) -> None:
        """Calls that were read up to ``at``: all of them, or NotACall."""
        for call in calls:
            self._check(call.name)
        for call in calls:
            self.begin(call.name, call.id, at)
            self.more(call.arguments, at)
            self.end(at)

    def _check(self, name: Any) -> None:
        if self._known and called(name) not in self._tools:
            raise NotACall("there is no such tool")

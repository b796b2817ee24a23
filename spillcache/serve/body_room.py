"""How much of requests' bodies is held in memory at a time, by all requests together.

Plain counting, on the event loop. ``middleware.BodyLimit`` counts what comes, ``request_body`` what
is made of it; both end with the request.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from spillcache.config import format_size
from spillcache.errors import Overloaded

_FIELD = "spillcache.body_share"


class BodyRoom:
    """Room for ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self, scope: Scope) -> Iterator["BodyShare"]:
        """A request's share, which ``share_of(scope)`` finds; given back at the end."""
        share = scope[_FIELD] = BodyShare(self)
        try:
            yield share
        finally:
            share.give_back()


class BodyShare:
    """What one request holds of it."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._bytes = 0

    def take(self, size_bytes: int) -> None:
        """Hold more; raises Overloaded where there is no room beside other requests."""
        others = self._room.held_bytes - self._bytes
        if others and self._room.held_bytes + size_bytes > self._room.limit_bytes:
            raise Overloaded(
                f"the bodies of other requests take {format_size(others)} of "
                f"{format_size(self._room.limit_bytes)}; try again later"
            )
        self._room.held_bytes += size_bytes
        self._bytes += size_bytes

    def give_back(self) -> None:
        """All of it."""
        self._room.held_bytes -= self._bytes
        self._bytes = 0


def share_of(scope: Scope) -> BodyShare:
    """The share of the request with this scope."""
    share: BodyShare = scope[_FIELD]
    return share

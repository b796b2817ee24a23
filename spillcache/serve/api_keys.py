"""The keys that clients may have, and which of them a client has shown."""

import hmac
from collections.abc import Iterable

from blake3 import blake3

_CONTEXT = "spillcache v1 api key"


class ApiKeys:
    """Any thread. Keeps digests only."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._known = [_digest(key.encode()) for key in keys]

    def find(self, given: bytes) -> bytes | None:
        """The digest of the key that ``given`` is, 32 bytes; None if it is none of them.

        All are compared, each in constant time, so how long it takes says nothing about any.
        """
        digest, found = _digest(given), None
        for known in self._known:
            if hmac.compare_digest(digest, known):
                found = known
        return found


def _digest(key: bytes) -> bytes:
    return blake3(key, derive_key_context=_CONTEXT).digest()

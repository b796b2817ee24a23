"""Headers by which clients name a conversation: hints, and never a key to state."""

import secrets
from collections.abc import Mapping, Sequence

from blake3 import blake3

_KEY = secrets.token_bytes(32)
"""Of this process: nobody can tell an id from its digest by trying."""
DIGEST_BYTES = 16


def session_of(headers: Mapping[str, str], names: Sequence[str]) -> bytes:
    """The digest of the first of these headers that has a value; empty where none has. ``names``:
    ``--cache-session-headers``; ``headers``: looked up in lower case.
    """
    for name in names:
        if value := headers.get(name, "").strip():
            return blake3(value.encode(), key=_KEY).digest(length=DIGEST_BYTES)
    return b""

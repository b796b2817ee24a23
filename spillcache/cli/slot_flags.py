"""What the flags about slots and sessions mean."""

import re
from pathlib import Path

from spillcache.config import SlotFilesConfig, parse_size
from spillcache.errors import ConfigError

_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
"""A field's name. Source: RFC 9110, section 5.1."""
_NEVER = frozenset({"authorization", "x-api-key", "cookie", "host", "origin"})


def slot_files(path: Path | None, min_free: str | None) -> SlotFilesConfig | None:
    """Where slots are saved, if anywhere; raises ConfigError."""
    if path is None:
        if min_free is not None:
            raise ConfigError("--slot-save-min-free needs --slot-save-path DIR")
        return None
    if min_free is None:
        return SlotFilesConfig(path)
    return SlotFilesConfig(path, parse_size(min_free, "--slot-save-min-free"))


def header_names(text: str) -> tuple[str, ...]:
    """Names of headers with commas between, in lower case; raises ConfigError."""
    names = [name.strip().lower() for name in text.split(",")] if text.strip() else []
    for name in names:
        if not _HEADER.fullmatch(name) or name in _NEVER:
            raise ConfigError(
                f"--cache-session-headers: {name!r} is no header that names a conversation; write "
                "for example x-session-id,x-session-affinity"
            )
    return tuple(dict.fromkeys(names))

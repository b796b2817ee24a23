"""Files that hold secrets: API keys, a TLS key, a configuration with keys in it."""

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from spillcache.config import TlsFiles, expanded
from spillcache.errors import ConfigError

log = logging.getLogger("spillcache.serve")

_MOST_BYTES = 1 << 20


def api_keys(words: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """The keys of ``--api-key`` (each word may hold several, with commas between) and those of
    ``--api-key-file``: one a line; empty lines and lines that begin with # are none.

    Raises ConfigError for a word or a file without a key, or a file that can't be read: nobody
    meant a server without one then.
    """
    keys = [key.strip() for word in words for key in word.split(",")]
    if keys and not any(keys):
        raise ConfigError("--api-key: there is no key in it; without one, leave the flag out")
    if file is not None:
        lines = [line.strip() for line in _read(file, "--api-key-file").splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ConfigError(f"--api-key-file: {file} holds no key; write one a line")
        keys += found
    return tuple(dict.fromkeys(key for key in keys if key))


def tls_files(key: Path | None, certificate: Path | None) -> TlsFiles | None:
    """``--ssl-key-file`` and ``--ssl-cert-file``; raises ConfigError for one without the other."""
    if key is None and certificate is None:
        return None
    if key is None or certificate is None:
        missing = "--ssl-key-file" if key is None else "--ssl-cert-file"
        raise ConfigError(f"{missing} is missing: HTTPS needs a key and its certificate")
    for flag, path in (("--ssl-key-file", key), ("--ssl-cert-file", certificate)):
        _read(path, flag)
    return TlsFiles(expanded(key), expanded(certificate))


def warn_if_exposed(files: Sequence[Path | None]) -> None:
    """A warning for each that others than its owner may read."""
    for path in files:
        if path is not None and stat.S_IMODE(expanded(path).stat().st_mode) & 0o077:
            log.warning("others may read %s; protect it with: chmod 600 %s", path, path)


def _read(path: Path, flag: str) -> str:
    try:
        with open(expanded(path), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{flag}: {path} is no file")
            return file.read(_MOST_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag}: {path} is no text") from error

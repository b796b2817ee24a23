"""Encryption of payloads at rest: AES-256-GCM, a random nonce per record, the header authenticated
with it (docs/format.md). Namespaces, hashes and lengths stay in the clear.

Needs the `cryptography` package, which is imported only when a key is given. Any thread.
"""

import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

from blake3 import blake3

from spillcache.errors import ConfigError
from spillcache.state import Buffer

KEY_BYTES = 32
NONCE_BYTES = 12
OVERHEAD_BYTES = NONCE_BYTES + 16
"""The nonce before, and the tag after."""
KEY_ID_BYTES = 8
NO_KEY = bytes(KEY_ID_BYTES)
"""The key id of what is not encrypted."""

_KEY_ID_CONTEXT = "spillcache v1 key id"
_HEX = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_MAX_FILE_BYTES = 1024

log = logging.getLogger("spillcache.store")


class WrongKey(ValueError):
    """A record that was encrypted with another key, or whose key is not given; nothing is wrong
    with it.
    """


class CipherError(ValueError):
    """Encrypted bytes, or a header, that are not what was written."""


class Cipher:
    """One key."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError without the `cryptography` package."""
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an optional extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "--cache-disk-key-file needs the cryptography package; "
                "install it with: pip install 'spillcache[crypto]'"
            ) from error
        self._aead: Any = AESGCM(key)
        self._invalid: type[Exception] = InvalidTag
        self.key_id = blake3(key, derive_key_context=_KEY_ID_CONTEXT).digest(length=KEY_ID_BYTES)

    def encrypt(self, plain: Buffer, bound: bytes) -> tuple[bytes, bytes]:
        """Nonce, and ciphertext with its tag; ``bound``: header bytes that must be the same when it
        is decrypted.
        """
        nonce = os.urandom(NONCE_BYTES)
        return nonce, self._aead.encrypt(nonce, plain, bound)

    def decrypt(self, stored: memoryview, bound: bytes) -> bytes:
        """What was encrypted; raises CipherError."""
        if len(stored) < OVERHEAD_BYTES:
            raise CipherError("the encrypted payload is shorter than its nonce and tag")
        try:
            plain: bytes = self._aead.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], bound)
        except self._invalid as error:
            raise CipherError("the encrypted payload is not what was written") from error
        return plain


def read_key(path: Path) -> Cipher:
    """The key in a file: 32 bytes, or 64 hexadecimal digits. Raises ConfigError.

    Warns when others than the file's owner may read it.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"--cache-disk-key-file: {path}: {error.strerror}") from error
    digits = _HEX.fullmatch(data)
    key = bytes.fromhex(digits[1].decode()) if digits is not None else data
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"--cache-disk-key-file: {path} must hold 32 bytes or 64 hexadecimal digits; make one "
            f"with: (umask 077; head -c 32 /dev/urandom > {path})"
        )
    if stat.S_IMODE(mode) & 0o077:
        log.warning("others may read the key in %s; protect it with: chmod 600 %s", path, path)
    return Cipher(key)

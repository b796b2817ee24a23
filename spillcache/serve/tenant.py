"""Whose state a request may use: with ``--cache-isolation api-key``, only that of its own key."""

from blake3 import blake3
from starlette.types import Scope

_FIELD = "spillcache.tenant"
_CONTEXT = "spillcache v1 tenant"


def set_tenant(scope: Scope, key_digest: bytes) -> None:
    """Note in a request's scope who sent it: ``key_digest``, 32 bytes, of the key that it had."""
    scope[_FIELD] = key_digest


def tenant_salt(scope: Scope, asked: bytes) -> bytes:
    """The salt of the chains of a request: ``asked``, its ``cache_salt``, within its tenant.

    Tenants never share a salt, whatever they ask for: 32 bytes of a digest over both. Without
    isolation, ``asked`` itself.
    """
    tenant: bytes | None = scope.get(_FIELD)
    if tenant is None:
        return asked
    return blake3(tenant + asked, derive_key_context=_CONTEXT).digest()

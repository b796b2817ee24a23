"""Who is meant and who asks: the ``Host`` and ``Origin`` of a request. Pure functions and values.

A browser sends its user's requests to any address, this server's included. Two headers tell that
apart from a request that was meant: ``Host`` holds a foreign name where a page's own name was
pointed at this machine (DNS rebinding), and ``Origin`` the page that sent a form or a script's
request.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

ANY = "*"
"""In ``--allowed-hosts`` and ``--allowed-origins``: whatever it is."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
_AUTHORITY = re.compile(r"(\[[0-9a-z:.%]+\]|[^\[\]:/?#@\\\s]+)(?::(\d{0,5}))?")
_PORTS = {"http": 80, "https": 443}
_WILDCARDS = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 — compared with, not bound to


def is_own(origin: str, host: str) -> bool:
    """Whether a page from ``origin`` (``https://name:8080``) lies on the server that the request
    calls ``host`` (``name:8080``, its ``Host``).

    Name and port are compared, and not the scheme: a proxy before the server may have another one.
    ``null``, which sandboxed pages and files send, is nobody's own.
    """
    scheme, _, place = origin.partition("://")
    default = _PORTS.get(scheme.lower())
    asking = _authority(place, default)
    return default is not None and asking is not None and asking == _authority(host, default)


def _authority(text: str, default_port: int | None) -> tuple[str, int | None] | None:
    """Name and port; None for what is neither."""
    match = _AUTHORITY.fullmatch(text.strip().lower())
    if match is None:
        return None
    return match[1].strip("[]").removesuffix("."), int(match[2]) if match[2] else default_port


def is_host(text: str) -> bool:
    """Whether ``text`` may stand in ``--allowed-hosts``."""
    return text == ANY or bool(_name(text))


def is_origin(text: str) -> bool:
    """Whether ``text``, in lower case, may stand in ``--allowed-origins``."""
    return text == ANY or _ORIGIN.fullmatch(text) is not None


class Hosts:
    """The names under which a server may be asked. Any thread.

    Always: the loopback's names and addresses, and what the server is bound to. Bound to all
    addresses: any address, for a page's rebound name is none, and the machine's own name. Others
    must be allowed. Ports don't matter: they may be forwarded.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(_name(text) for text in (bound, *allowed))}
        self._everywhere = bound in _WILDCARDS
        if self._everywhere:
            own = socket.gethostname().lower()
            self._names |= {own, f"{own.split('.')[0]}.local"}

    def __contains__(self, host: str) -> bool:
        """Whether ``host``, a request's ``Host``, is one of them."""
        if ANY in self._names:
            return True
        name = _name(host)
        if not name:
            return False
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._everywhere or address.is_loopback


def _name(text: str) -> str:
    """A host without its port; "" for what is none."""
    try:
        return ipaddress.ip_address(text).compressed  # as ``--host ::1`` is written
    except ValueError:
        found = _authority(text, None)
    if found is None:
        return ""
    try:
        return ipaddress.ip_address(found[0]).compressed
    except ValueError:
        return found[0]

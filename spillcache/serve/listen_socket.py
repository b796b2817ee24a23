"""The socket that the server listens on, bound before anything slow begins."""

import errno
import socket

from spillcache.config import ServeConfig
from spillcache.errors import ConfigError

BACKLOG = 2048


def bind_socket(config: ServeConfig) -> socket.socket:
    """A listening socket on the configured address; port 0 takes any that is free.

    Raises ConfigError that names the address and what to do.
    """
    host, port = config.host, config.port
    if not 0 <= port <= 65535:  # the resolver would wrap it around
        raise ConfigError(f"--port {port}: a port is a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host}: no such address; write 127.0.0.1, 0.0.0.0 or one of this machine's"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # At once: with SO_REUSEADDR, two may bind but only one may listen.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(_why_not_bound(error, host, port)) from error
    sock.setblocking(False)
    return sock


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use on {host}; stop what listens there, or choose another --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user; choose a --port above 1023"
    return f"can't listen on {host}, port {port}: {error.strerror}; choose another --host"


def socket_url(sock: socket.socket, *, tls: bool = False) -> str:
    """The URL under which a bound socket is reached."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

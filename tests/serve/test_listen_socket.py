import contextlib
import os
import socket

import pytest

from spillcache.config import ServeConfig
from spillcache.errors import ConfigError
from spillcache.serve.listen_socket import _why_not_bound, bind_socket, socket_url


def test_it_listens_at_once():
    with contextlib.closing(bind_socket(ServeConfig(port=0))) as sock:
        url = socket_url(sock)
        assert url == f"http://127.0.0.1:{sock.getsockname()[1]}"
        socket.create_connection(sock.getsockname(), timeout=5).close()


def test_a_port_in_use():
    with contextlib.closing(bind_socket(ServeConfig(port=0))) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use on 127.0.0.1"):
            bind_socket(ServeConfig(port=port))


def test_ipv6():
    try:
        sock = bind_socket(ServeConfig(host="::1", port=0))
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    with contextlib.closing(sock):
        assert socket_url(sock).startswith("http://[::1]:")


@pytest.mark.parametrize(("host", "port"), [("no such host", 0), ("a" * 70, 0), ("192.0.2.1", 0)])
def test_addresses_that_can_not_be_used(host, port):
    with pytest.raises(ConfigError, match="--host"):
        bind_socket(ServeConfig(host=host, port=port))


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_ports_that_are_none(port):
    with pytest.raises(ConfigError, match=f"--port {port}: a port is a number from 0 to 65535"):
        bind_socket(ServeConfig(port=port))


def test_a_port_that_is_not_allowed():
    error = PermissionError(13, os.strerror(13))
    assert "above 1023" in _why_not_bound(error, "127.0.0.1", 80)

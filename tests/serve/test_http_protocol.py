"""Connections that dawdle are closed; what is no HTTP gets an error object."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest
import uvicorn
from fake_service import FakeService, wait_until

from spillcache.config import ServeConfig
from spillcache.serve import http_protocol
from spillcache.serve.app import create_app
from spillcache.serve.guards import HEADER_BYTES_MAX
from spillcache.serve.http_protocol import timed_protocol
from spillcache.serve.listen_socket import bind_socket


@contextlib.contextmanager
def served(timeout_s, **script):
    """The address of a server whose connections have these times, and its service."""
    service = FakeService(timeout_s=timeout_s)
    for name, value in script.items():
        setattr(service.script, name, value)
    sock = bind_socket(ServeConfig(port=0))
    config = uvicorn.Config(
        create_app(service),
        http=timed_protocol(timeout_s),
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        yield sock.getsockname(), service
    finally:
        server.should_exit = server.force_exit = True
        service.stop(print)
        thread.join(10)
        sock.close()


@contextlib.contextmanager
def connected(address):
    with socket.create_connection(address, timeout=10) as client:
        yield client


def rest_of(client):
    """What still comes until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            data += part
    return data


def error_of(answer):
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"content-type: application/json" in head.lower()
    return json.loads(body)["error"]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come(sent):
    with served(60) as (address, _), connected(address) as client:
        start = time.monotonic()
        client.sendall(sent)
        assert rest_of(client) == b""
        assert 0.2 < time.monotonic() - start < 5


def test_a_head_that_drips_has_no_more_time():
    with served(60) as (address, _), connected(address) as client:
        client.settimeout(0.05)
        start = time.monotonic()
        ended = False
        while not ended and time.monotonic() - start < 5:
            try:
                client.sendall(b"G")
                ended = client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert ended


def test_the_second_head_has_as_long_as_the_first():
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(60) as (address, _), connected(address) as client:
        for _ in range(2):
            client.sendall(whole)
            answer = b""
            while not answer.endswith(b"}}}"):
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
        start = time.monotonic()
        client.sendall(whole[:20])
        assert rest_of(client) == b""
        assert 0.2 < time.monotonic() - start < 5


def test_answers_may_take_longer_than_heads():
    body = b'{"prompt": "x"}'
    head = b"POST /completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with served(60, hold_at=1) as (address, service), connected(address) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        time.sleep(0.6)
        service.script.go.set()
        assert rest_of(client).startswith(b"HTTP/1.1 200 ")


def test_who_does_not_read_is_cut_and_its_work_ends():
    texts = ["x" * 500_000] * 100
    with served(0.4, texts=texts) as (address, service), connected(address) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = b'{"prompt": "x", "stream": true}'
        head = b"POST /completions HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert wait_until(lambda: service.tickets and service.tickets[-1].cancelled)


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"]
)
def test_what_is_no_http(sent):
    with served(60) as (address, _), connected(address) as client:
        client.sendall(sent)
        answer = rest_of(client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert error_of(answer)["code"] == "REQUEST_INVALID"


def test_a_head_without_end():
    with served(60) as (address, _), connected(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (HEADER_BYTES_MAX + 1000))
        answer = rest_of(client)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert error_of(answer)["code"] == "REQUEST_HEAD_TOO_LARGE"

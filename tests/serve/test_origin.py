"""Names of this server, and pages that are its own."""

import socket

import pytest

from spillcache.serve.origin import Hosts, is_own


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://Example.org", "example.org"),
        ("http://example.org:80", "example.org"),
        ("https://example.org", "example.org:443"),
        ("https://example.org", "example.org"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://example.org.:8080", "example.org:8080"),
    ],
)
def test_own(origin, host):
    assert is_own(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("null", "127.0.0.1:8080"),
        ("", ""),
        ("null", "null"),
        ("http://", ""),
        ("http://localhost:3000", "localhost:8080"),
        ("http://localhost", "127.0.0.1"),
        ("http://evil.example", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080.evil.example", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080@evil.example", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080?", ""),
        ("chrome-extension://abc", "abc"),
        ("http://a b", "a b"),
        ("http://[::1", "[::1"),
        ("http://x:99999999", "x:99999999"),
    ],
)
def test_foreign(origin, host):
    assert not is_own(origin, host)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "app.localhost", "127.0.0.1:1", "127.9.9.9", "[::1]:8080"],
)
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "0.0.0.0", "192.0.2.1", "localhost"])
def test_the_loopback_is_always_meant(host, bound):
    assert host in Hosts(bound)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        ":8080",
        "a b",
        "[::1",
    ],
)
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "192.0.2.1"])
def test_a_rebound_name_never_is(host, bound):
    assert host not in Hosts(bound)


def test_what_it_is_bound_to():
    assert "192.0.2.1:8080" in Hosts("192.0.2.1")
    assert "192.0.2.2:8080" not in Hosts("192.0.2.1")
    assert "[2001:DB8::1]" in Hosts("2001:db8::1")
    assert "box:8080" in Hosts("box")
    assert "0.0.0.0:8080" not in Hosts("127.0.0.1")


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_bound_to_everything(bound):
    hosts = Hosts(bound)
    assert "203.0.113.9:8080" in hosts
    assert "0.0.0.0:8080" in hosts
    assert "[2001:db8::1]:8080" in hosts
    assert f"{socket.gethostname()}:8080" in hosts


def test_allowed_names():
    hosts = Hosts("127.0.0.1", ["LLM.example", "10.0.0.1"])
    assert "llm.example:443" in hosts
    assert "llm.example." in hosts
    assert "10.0.0.1" in hosts
    assert "x.llm.example" not in hosts
    assert "whatever" in Hosts("127.0.0.1", ["*"])

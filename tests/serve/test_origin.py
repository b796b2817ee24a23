"""Which web pages are ours."""

import pytest

from spillcache.serve.origin import is_own


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        (None, "localhost:8080", True),
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("http://localhost", "localhost:80", True),
        ("https://host:443", "host", True),
        ("http://localhost:8081", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("http://localhost:8080.evil.example", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("file://localhost:8080", "localhost:8080", False),
        ("localhost:8080", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("http://", "", False),
    ],
)
def test_own_is_what_the_host_header_names(origin: str | None, host: str, own: bool) -> None:
    assert is_own(origin, host) is own


def test_others_may_be_trusted() -> None:
    assert is_own("https://a.example", "h", ("https://a.example",))
    assert not is_own("https://b.example", "h", ("https://a.example",))
    assert is_own("null", "h", ("*",))

"""Requests that mean two things are refused: a proxy before the server may read the other one."""

import pytest
from test_http_protocol import connected, error_of, rest_of, served


@pytest.fixture(scope="module")
def address():
    with served(timeout_s=10) as (address, _):
        yield address


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("Content-Length: 5", "Transfer-Encoding: chunked"), "has both Content-Length and Tran"),
        (("Origin: http://localhost", "Origin: http://a.example"), "has the header Origin twice"),
        (("Authorization: Bearer a",) * 2, "has the header Authorization twice"),
        (("X-Api-Key: a", "x-api-key: b"), "has the header X-Api-Key twice"),
        (("Content-Type: application/json", "Content-Type: a/b"), "has the header Content-Type"),
        (("Host: localhost",), "Found multiple Host: headers"),
        (("Content-Length: 2", "Content-Length: 3"), "conflicting Content-Length headers"),
        (("Transfer-Encoding: chunked",) * 2, "multiple Transfer-Encoding headers"),
        (("Transfer-Encoding: gzip",), "Only Transfer-Encoding: chunked is supported"),
        (("Transfer-Encoding: chunked", "no colon"), "illegal header line"),
    ],
)
def test_what_means_two_things(address, fields, says):
    head = ["POST /completion HTTP/1.1", "Host: localhost", *fields, "", "0", "", ""]
    with connected(address) as client:
        client.sendall("\r\n".join(head).encode())
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 400 ") or b"Only" in answer
    assert b"connection: close" in answer.lower()
    assert says in error_of(answer)["message"]


def test_lengths_that_agree_are_one(address):
    """As the standard has it: such a list stands for its only value."""
    head = "POST /completion HTTP/1.1|Host: localhost|Content-Length: 2|Content-Length: 2|"
    with connected(address) as client:
        client.sendall((head + "Connection: close||{}").replace("|", "\r\n").encode())
        assert error_of(rest_of(client))["message"] == "prompt is required"

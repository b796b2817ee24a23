"""What clients are told of the server's own troubles."""

import json

import pytest

from spillcache.errors import ModelLoadError, StoreIOError
from spillcache.serve.http_errors import describe_error, without_paths


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no such file: /home/me/models/a.gguf", "no such file: …/a.gguf"),
        ("/a/b: Permission denied", "…/b: Permission denied"),
        ("can't read '/srv/x/y.seg' (EIO)", "can't read '…/y.seg' (EIO)"),
        ("POST /v1/completions failed", "POST …/completions failed"),
        ("see GET /metrics", "see GET /metrics"),
        ("http://127.0.0.1:8080/v1/models", "http://127.0.0.1:8080/v1/models"),
        ("5 tokens/s, 3/4 of it", "5 tokens/s, 3/4 of it"),
    ],
)
def test_no_more_of_a_path_than_its_name(text, told):
    assert without_paths(text) == told


@pytest.mark.parametrize("kind", [StoreIOError, ModelLoadError])
def test_errors_that_are_not_the_clients(kind):
    status, content = describe_error(kind("/home/me/cache/segments/1.seg: Input/output error"))
    assert status == 500
    assert content["error"]["message"] == "…/1.seg: Input/output error"
    assert content["error"]["code"] == kind.code


def test_a_failed_start(http, service):
    service.state = "failed"
    service.failure = ModelLoadError("no such file: /home/me/model.gguf")
    for path in ("/health", "/v1/health"):
        answer = http.get(path)
        assert answer.status_code == 503
        assert "/home/me" not in answer.text
        assert json.loads(answer.text)["error"]["message"] == "no such file: …/model.gguf"

"""The bench of bodies: what it sends, and a small run of it."""

import json
import sys

import bodies
import pytest
from bodies import CHAT, COMPLETION

from spillcache.serve.body_shape import shape_of

LIMIT_BYTES = 16 << 20


def test_every_body_is_json_within_the_servers_limit():
    names = []
    for name, path, body in bodies.bodies():
        names.append(name)
        assert path in (CHAT, COMPLETION)
        assert len(body) <= LIMIT_BYTES, name
        assert isinstance(json.loads(body), dict)
        shape_of(body)
    assert len(set(names)) == len(names) > 10


@pytest.mark.model
@pytest.mark.parametrize(("bar_ms", "code"), [(1e9, 0), (0.0, 1)])
def test_a_small_run(gguf_model, monkeypatch, capsys, bar_ms, code):
    small = [("bad", CHAT, b"{}"), ("good", COMPLETION, b'{"prompt":"x","n_predict":1}')]
    monkeypatch.setattr(bodies, "bodies", lambda: iter(small))
    monkeypatch.setattr(bodies, "QUIET_S", 0.3)
    monkeypatch.setattr(bodies, "BAR_MS", bar_ms)
    monkeypatch.setattr(sys, "argv", ["bodies.py", "-m", str(gguf_model("llama"))])
    assert bodies.main() == code
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["bench"], report["ok"]) == ("bodies", not code)
    pauses = report["pauses"]
    assert {name: one["status"] for name, one in pauses.items()} == {
        "none": 0, "bad": 400, "good": 200,
    }  # fmt: skip
    assert report["worst_ms"] == max(one["pause_ms"] for one in pauses.values()) > 0

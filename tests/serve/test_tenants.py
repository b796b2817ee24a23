"""Tenants share nothing: by salts and by keys, in every tier (their timing: bench/tenants.py)."""

import logging
from pathlib import Path

import pytest
from models import ModelShelf
from stack import Stack, prompt

from spillcache.serve.tenant import set_tenant, tenant_salt

ASK = {"prompt": "x"}
KEYS = {"api_keys": ("one", "two")}
BY_KEY = pytest.mark.parametrize("service_options", [KEYS | {"isolation": "api-key"}])


def salt_of(http, service, key, **body):
    headers = {"Authorization": f"Bearer {key}"}
    assert http.post("/completions", json=ASK | body, headers=headers).status_code == 200
    return service.last().request.salt


@BY_KEY
def test_keys_are_tenants(http, service):
    one, two = (salt_of(http, service, key) for key in ("one", "two"))
    assert len(one) == len(two) == 32
    assert one != two
    assert salt_of(http, service, "one") == one
    assert b"one" not in one


@BY_KEY
def test_a_salt_stays_within_its_tenant(http, service):
    salts = {
        salt_of(http, service, key, cache_salt=salt)
        for key in ("one", "two")
        for salt in (None, "a", "b")
    }
    assert len(salts) == 6
    assert salt_of(http, service, "one", cache_salt="") == salt_of(http, service, "one")


@BY_KEY
@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/chat/completions"])
def test_every_way_of_asking(http, service, path):
    for body in ({"stream": True}, {"stream": False}):
        asked = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], **body}
        http.post(path, json=asked, headers={"X-Api-Key": "two"})
        assert service.last().request.salt == salt_of(http, service, "two")


@BY_KEY
def test_no_client_can_ask_for_anothers_salt(http, service):
    """Nor for that of a server without isolation over the same directory."""
    other = salt_of(http, service, "one")
    asked = other.decode("latin-1")
    assert salt_of(http, service, "two", cache_salt=asked) not in (other, asked.encode())


@pytest.mark.parametrize("service_options", [KEYS])
def test_without_isolation_keys_share(http, service):
    assert salt_of(http, service, "one") == salt_of(http, service, "two") == b""
    assert salt_of(http, service, "one", cache_salt="a") == b"a"


def test_a_tenants_salt_is_the_same_after_a_restart():
    """It is in the names of what lies on disk."""
    scope = {}
    assert tenant_salt(scope, b"a") == b"a"
    set_tenant(scope, bytes(32))
    assert tenant_salt(scope, b"").hex() == GOLDEN


GOLDEN = "224d83281a6fd000357f0e8e6b8a088a47d3484361f2e6cd84a71219d0a010b6"


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_nothing_is_reused_across_salts_in_any_tier(
    gguf_model: ModelShelf, tmp_path: Path, kind: str
) -> None:
    model, tokens = gguf_model(kind), prompt(400)
    longer = [*tokens, *prompt(200, seed=3)]
    with Stack(model, tmp_path / "d", slots=2) as stack:
        first = stack.answer(tokens, 4, salt=b"a")
        assert stack.answer(tokens, 1, salt=b"b").cached == {}, "beside its live slot"
        assert stack.answer(longer, 1, salt=b"c").cached == {}, "no fork"
        for seed in (7, 8):  # both slots are others' now
            stack.answer(prompt(400, seed=seed), 1)
        assert stack.answer(tokens, 1, salt=b"d").cached == {}, "beside RAM"
        own = stack.answer(tokens, 4, salt=b"a")
        assert set(own.cached) == {"ram"}
        assert own.tokens == first.tokens
    with Stack(model, tmp_path / "d") as stack:
        assert stack.answer(tokens, 1).cached == {}, "beside the disk"
        assert stack.answer(longer, 1, salt=b"e").cached == {}
        assert set(stack.answer(tokens, 1, salt=b"a").cached) == {"disk"}


def test_a_tail_is_not_shared_either(gguf_model: ModelShelf, tmp_path: Path) -> None:
    turn = prompt(100)
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        answer = stack.answer(turn, 8, salt=b"a")
        held = [*turn, *answer.tokens]
    for salt, cached in ((b"b", {}), (b"a", {"disk": len(held) - 1})):
        with Stack(gguf_model("llama"), tmp_path / "d") as stack:
            got = stack.answer([*held, *prompt(20, seed=2)], 1, salt=salt, cache_store=False)
            assert got.cached == cached


@BY_KEY
def test_nobody_sees_who_asked(http, service, caplog):
    """Neither keys nor salts are in what others can read, or in the log."""
    caplog.set_level(logging.DEBUG, "spillcache")
    salt_of(http, service, "two", cache_salt="a private salt", user="a private user")
    hidden = ["a private salt", "a private user", service.last().request.salt.hex()]
    seen = caplog.text
    for route in http.get("/").json()["routes"]:
        method, path = route.split()
        if method == "GET" and "{" not in path:
            seen += http.get(path, headers={"Authorization": "Bearer one"}).text
    assert "spillcache_requests" in seen
    assert not [word for word in hidden if word in seen]
    assert "'one'" not in repr(service.settings.serve)

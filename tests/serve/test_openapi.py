"""The description of the routes, and what schemathesis makes of it on a real server.

Bodies of every shape that the description allows, and of shapes that it does not: none is answered
by a 5xx, but for those that say what is not offered (501) or not ready (503).
"""

import warnings
from collections import Counter

import httpx
import pytest
import schemathesis
from fake_service import FakeService
from hypothesis import HealthCheck, Phase, given, seed, settings
from loopback import served
from schemathesis import GenerationMode

from spillcache.config import CacheConfig, EngineConfig, RequestDefaults, ServeConfig, Settings
from spillcache.serve.app import create_app
from spillcache.serve.openapi import BODIES, NO_BODY
from spillcache.serve.service import Service

EXAMPLES = 25
ALLOWED = {501, 503}
ANSWERED = {"POST /v1/chat/completions", "POST /v1/completions", "POST /completion"}
"""What is worth testing gets through to the engine."""


def test_it_is_served(http):
    answer = http.get("/openapi.json")
    assert answer.status_code == 200
    paths = answer.json()["paths"]
    named = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    routes = {route.replace("{model:path}", "{model}") for route in http.get("/").json()["routes"]}
    assert named == routes - {"GET /", "GET /openapi.json"}


@pytest.mark.parametrize("service_options", [{"api_keys": ("k",)}])
def test_it_wants_the_key_like_all_else(http):
    assert http.get("/openapi.json").status_code == 401


def test_every_route_says_what_it_takes(http):
    """A new POST route has its line in ``openapi.BODIES``, or in ``NO_BODY``."""
    paths = http.get("/openapi.json").json()["paths"]
    taking = {path for path, methods in paths.items() if "post" in methods}
    assert taking == set(BODIES) | NO_BODY
    for path in BODIES:
        assert "requestBody" in paths[path]["post"]


def test_nothing_of_this_server_is_in_it(http, service):
    text = http.get("/openapi.json").text
    assert str(service.settings.engine.model) not in text
    assert service.settings.engine.model.stem not in text


@pytest.fixture(scope="module")
def real(gguf_model):
    """A real engine that answers in a few tokens, behind a loopback socket."""
    model = gguf_model("llama")
    service = Service(
        Settings(
            EngineConfig(model=model, context_tokens=256, ubatch_tokens=64, threads=1, slots=2),
            ServeConfig(defaults=RequestDefaults(max_tokens=2)),
            CacheConfig(ram_bytes=1 << 24),
        )
    )
    service.start()
    assert service.wait_loaded(60)
    with served(create_app(service)) as url:
        yield url
    service.stop(lambda _: None)


def operations():
    app = create_app(FakeService())
    with served(app) as url:
        raw = httpx.get(f"{url}/openapi.json").json()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(raw)
        return [found.ok() for found in schema.get_all_operations()]


OPERATIONS = operations()
CASES = [
    pytest.param(operation, mode, id=f"{operation.label}-{mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body
]


@pytest.mark.model
@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_no_body_of_any_shape_is_a_failure_of_the_server(real, operation, mode):
    statuses = Counter()

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call(base_url=real, timeout=30)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code in ALLOWED, (
            answer.status_code,
            answer.text,
        )
        if answer.status_code >= 400:
            anthropic = operation.path.startswith("/v1/messages")
            fields = {"message", "type"} | (set() if anthropic else {"param", "code"})
            assert set(answer.json()["error"]) - {"kind"} == fields

    check()
    assert sum(statuses.values()) > 0
    if operation.label in ANSWERED and mode is GenerationMode.POSITIVE:
        assert statuses[200] > 0, statuses
    assert httpx.get(f"{real}/health").status_code == 200

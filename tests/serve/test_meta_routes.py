import base64
import hashlib
import re

import pytest
from fake_service import BOS

from spillcache import __version__
from spillcache.config import RequestDefaults
from spillcache.errors import ModelLoadError


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(http, path):
    response = http.get(path)
    assert response.status_code == 200
    assert response.json()["status"] == "ok"
    assert response.json()["cache"]["disk"]["reason"] == "no --cache-disk"


def test_health_while_loading_is_llama_servers(http, service):
    service.state = "loading"
    response = http.get("/health")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json() == {
        "error": {
            "message": "Loading model",
            "type": "unavailable_error",
            "param": None,
            "code": 503,
        }
    }


def test_health_when_the_model_could_not_be_loaded(http, service):
    service.state, service.failure = "failed", ModelLoadError("no such file: x.gguf")
    assert http.get("/health").json()["error"]["message"] == "no such file: x.gguf"


def test_health_when_stopping(http, service):
    service.state = "stopping"
    assert http.get("/health").json()["error"]["message"] == "the server is stopping"


def test_metrics(http, service):
    service.metrics.generated_tokens.inc(7)
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "spillcache_generated_tokens_total 7.0" in response.text.splitlines()


def test_tokenize(http):
    def tokens(**body):
        return http.post("/tokenize", json=body).json()["tokens"]

    assert tokens(content="ab") == [97, 98]
    assert tokens(content="ab", add_special=True) == [BOS, 97, 98]
    assert tokens(content="<s>") == [BOS]
    assert tokens(content="<s>", parse_special=False) == [60, 115, 62]
    assert tokens(content="") == tokens() == []
    assert tokens(content=["a", 99, "<s>"], add_special=True) == [BOS, 97, 99, BOS]
    assert tokens(content="<s>", with_pieces=True) == [{"id": BOS, "piece": "<s>"}]
    assert http.post("/tokenize", json={"content": [999]}).status_code == 400
    assert tokens(content="aé", with_pieces=True) == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]


def test_detokenize(http):
    body = {"tokens": [BOS, *"aé".encode()]}
    assert http.post("/detokenize", json=body).json() == {"content": "<s>aé"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"content": ""}
    assert http.post("/detokenize", json={}).json() == {"content": ""}


def test_slots(http):
    """Whether they work, and nothing of what they work on."""
    assert http.get("/slots").json() == [
        {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": True},
        {"id": 1, "n_ctx": 4096, "speculative": False, "is_processing": False},
    ]


def test_slots_when_none_is_free(http, service):
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200
    service.slots = lambda: [True, True]
    assert http.get("/slots").status_code == 200
    busy = http.get("/slots?fail_on_no_slot=1")
    assert (busy.status_code, busy.json()["error"]["message"]) == (503, "all slots are busy")


def test_props(http, service):
    props = http.get("/props").json()
    assert props["total_slots"] == 2
    assert props["model_path"] == "tiny-fake.gguf"
    assert "/models" not in str(props)
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert props["chat_template"] == "chatml"
    assert props["modalities"] == {"vision": False, "video": False, "audio": False}
    assert (props["endpoint_slots"], props["endpoint_props"]) == (True, False)
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    assert props["default_generation_settings"]["params"]["reasoning_format"] == "deepseek"
    assert props["build_info"].startswith("spillcache ")
    service.state = "loading"
    assert http.get("/props").status_code == 503


def test_the_root_says_what_this_is_and_lists_the_routes(http):
    about = http.get("/").json()
    assert (about["name"], about["version"]) == ("spillcache", __version__)
    assert "POST /v1/chat/completions" in about["routes"]
    for route in about["routes"]:
        method, path = route.split()
        asked = http.request(method, path.replace("{model:path}", "tiny-fake"))
        lacks_nothing = method == "GET" or path == "/cache/flush"
        refused = 415 if path.startswith("/slots/") else 400
        assert asked.status_code == (200 if lacks_nothing else refused)


def test_the_root_is_a_page_for_browsers(http):
    """Which may run what is in it, and load nothing."""
    page = http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["vary"] == "Accept"
    policy = page.headers["content-security-policy"]
    for kind in ("script", "style"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.S)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert len(inline) > 1000
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"""(?:src|href)=["'](?!data:,|#)""", page.text)
    assert not re.findall(r"<[^>]* on\w+=", page.text)
    for word in ("http:", "https:", "@import", "innerHTML", "eval("):
        assert word not in page.text


def test_the_cache_in_numbers(http, service):
    service.metrics.prompt_tokens.labels("disk").inc(7)
    response = http.get("/cache")
    assert response.headers["cache-control"] == "no-store"
    found = response.json()
    assert (found["model"], found["version"]) == ("tiny-fake", __version__)
    assert found["prompt_tokens"] == {"live": 0, "ram": 0, "disk": 7, "computed": 0}
    assert [slot["phase"] for slot in found["slots"]] == ["idle", "idle"]
    service.state = "loading"
    assert http.get("/cache").status_code == 503


@pytest.mark.parametrize("service_options", [{"api_keys": ("k",)}])
def test_the_root_needs_no_key(http):
    assert http.get("/cache").status_code == 401
    assert http.get("/", headers={"Accept": "text/html"}).status_code == 200
    assert http.get("/").status_code == 200
    assert http.get("/props").status_code == 401


@pytest.mark.parametrize(
    "service_options", [{"defaults": RequestDefaults(temperature=0.1, seed=7, max_tokens=9)}]
)
def test_props_and_requests_have_the_servers_defaults(http, service):
    params = http.get("/props").json()["default_generation_settings"]["params"]
    assert (params["temperature"], params["seed"], params["n_predict"]) == (0.1, 7, 9)
    assert params["top_k"] == 40
    http.post("/v1/completions", json={"prompt": "x"})
    request = service.last().request
    assert (request.max_tokens, request.sampling.temperature) == (9, 0.1)


def test_adapters_are_listed_and_set(http, service):
    assert http.get("/lora-adapters").json() == [
        {"id": 0, "path": "a", "scale": 1.0},
        {"id": 1, "path": "b", "scale": 1.0},
    ]
    answer = http.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}])
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert [one["scale"] for one in http.get("/lora-adapters").json()] == [0.0, 0.5]
    assert service.adapters.chosen(None) == ((1, 0.5),)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([{"id": 9, "scale": 1}], "no adapter 9"),
        ([{"id": 0}], "scale is required"),
        ([{"id": -1, "scale": 1}], "at least 0"),
        ({"id": 0, "scale": 1}, "the body must be a JSON list"),
        ([{"id": 0, "scale": 1e9}], "a scale must lie"),
    ],
)
def test_adapters_that_there_are_not(http, service, body, says):
    answer = http.post("/lora-adapters", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert service.adapters.chosen(None) == ((0, 1.0), (1, 1.0))


def test_adapters_while_loading(http, service):
    service.state = "loading"
    assert http.get("/lora-adapters").status_code == 503

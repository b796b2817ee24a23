"""What is wrong with a request is said in a sentence that also says what to do."""

import pytest

ASKED = [{"role": "user", "content": "x"}]
CHAT, NATIVE = "/v1/chat/completions", "/completion"


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        (NATIVE, {"image_data": [{}]}, "image_data is not supported: only text is served; leave"),
        (NATIVE, {"n": 2}, "n is not supported: this server has not that; leave it out"),
        (CHAT, {"best_of": 2}, "best_of is not supported: this server has not that; leave it out"),
        (CHAT, {"tools": [{}] * 1025}, "tools may have at most 1024 items"),
        (NATIVE, {"response_fields": ["a"] * 101}, "response_fields may have at most 100 items"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url" * 9}]}]},
            "messages[0].content[0]: this server reads text only, and this is of type "
            "'image_urlimage_urlimage_urlimage_urlimag'; leave it out, or send what it says",
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]: this server reads text only, and this is of type 'image'",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]: this server reads text only, and this is of type 'input_image'",
        ),
    ],
)
def test_sentences(http, path, fields, says):
    asked = {"prompt": "x"} if path == NATIVE else {"messages": ASKED}
    response = http.post(path, json={**asked, **fields})
    assert response.status_code in (400, 501)
    assert response.json()["error"]["message"].startswith(says)


def test_too_many_levels(http):
    response = http.post(CHAT, content=b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}")
    assert response.json()["error"]["message"] == (
        "the body holds lists or objects within each other, too many levels; send it flatter"
    )


@pytest.mark.parametrize("service_options", [{"api_keys": ("one", "two"), "isolation": "api-key"}])
def test_no_tenant_sets_adapters_for_others(http, service):
    """But all may flush: it only writes sooner what is written anyway."""
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        answer = http.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}], headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "REQUEST_FORBIDDEN"
        assert "name them in each request, as lora" in answer.json()["error"]["message"]
        assert [one["scale"] for one in service.adapters.listed()] == [1.0, 1.0]
        assert http.post("/cache/flush", headers=headers).status_code == 200

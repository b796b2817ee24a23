"""POST /completion and POST /apply-template, as llama-server's clients use them."""

import json

import pytest
from fake_service import BOS

TEXT = "Hello wörld!"
# What a llama-server of October 2026 answers, field by field, but for what only it has to tell
# (chat formats, speculation, reasoning).
ANSWER = {
    "index": int,
    "content": str,
    "tokens": list,
    "id_slot": int,
    "stop": bool,
    "model": str,
    "tokens_predicted": int,
    "tokens_evaluated": int,
    "generation_settings": dict,
    "prompt": str,
    "has_new_line": bool,
    "truncated": bool,
    "stop_type": str,
    "stopping_word": str,
    "tokens_cached": int,
    "timings": dict,
}
SETTINGS = {
    "seed": int,
    "temperature": float,
    "dynatemp_range": float,
    "dynatemp_exponent": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "top_n_sigma": float,
    "xtc_probability": float,
    "xtc_threshold": float,
    "typical_p": float,
    "repeat_last_n": int,
    "repeat_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "dry_multiplier": float,
    "dry_base": float,
    "dry_allowed_length": int,
    "dry_penalty_last_n": int,
    "dry_sequence_breakers": list,
    "mirostat": int,
    "mirostat_tau": float,
    "mirostat_eta": float,
    "stop": list,
    "max_tokens": int,
    "n_predict": int,
    "n_keep": int,
    "n_discard": int,
    "ignore_eos": bool,
    "stream": bool,
    "logit_bias": list,
    "n_probs": int,
    "min_keep": int,
    "grammar": str,
    "samplers": list,
    "timings_per_token": bool,
    "post_sampling_probs": bool,
    "lora": list,
}
PIECE = {
    "index": int,
    "content": str,
    "tokens": list,
    "stop": bool,
    "id_slot": int,
    "tokens_predicted": int,
    "tokens_evaluated": int,
}


def types(of):
    return {name: type(value) for name, value in of.items()}


def ask(http, **body):
    response = http.post("/completion", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_answer_has_llama_servers_fields(http, service):
    answer = ask(http, prompt="ab", n_predict=7, temperature=0.5)
    assert types(answer) == ANSWER
    assert types(answer["generation_settings"]) == SETTINGS
    assert (answer["content"], answer["stop_type"]) == (TEXT, "eos")
    assert answer["tokens"] == []
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (3, 4)
    assert answer["tokens_cached"] == 6
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["temperature"]) == (7, 0.5)
    assert settings["seed"] == 2**32 - 1
    assert service.last().request.max_tokens == 7
    assert service.last().request.tokens.tolist() == [BOS, 97, 98]
    assert answer["timings"]["cache"]["disk"] == 4


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [BOS, 97, 98]),
        ([97, 98], [97, 98]),
        ([BOS, "ab", 99, "d"], [BOS, 97, 98, 99, 100]),
        (["ab", 99], [BOS, 97, 98, 99]),
        (["ab"], [BOS, 97, 98]),
        ([[97, "b"]], [97, 98]),
    ],
)
def test_prompts_are_texts_and_token_ids(http, service, prompt, tokens):
    ask(http, prompt=prompt)
    assert service.last().request.tokens.tolist() == tokens


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt is required"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": [""]}, "empty"),
        ({"prompt": [[]]}, "empty"),
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": [[1], [2]]}, "several prompts"),
        ({"prompt": [1, [2]]}, "a list in a prompt"),
        ({"prompt": [1.5]}, "must be a text"),
        ({"prompt": [999_999]}, "token ids must lie in"),
        ({"prompt": "a", "id_slot": 2}, "there are 2 slots"),
        ({"prompt": "a", "id_slot": -2}, "at least -1"),
        ({"prompt": "a", "n_predict": -2}, "at least -1"),
        ({"prompt": "a", "grammar": "root ::= [a-z]"}, "grammar is not supported"),
        ({"prompt": "a", "t_max_predict_ms": 100}, "t_max_predict_ms is not supported"),
        ({"prompt": "a", "samplers": ["top_k"]}, "samplers is not supported"),
        ({"prompt": "a", "cache_stor": False}, "cache_stor is no field"),
    ],
)
def test_what_is_wrong_is_said(http, body, message):
    response = http.post("/completion", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_values_that_ask_for_nothing_are_fine(http, service):
    ask(
        http,
        prompt="a",
        id_slot=-1,
        n_probs=0,
        samplers=[],
        t_max_predict_ms=0,
        top_n_sigma=-1.0,
        image_data=[],
        n_keep=5,
        response_fields=["content"],
    )
    assert service.last().request.cache_prompt


def test_no_limit_and_none(http, service):
    assert ask(http, prompt="a", n_predict=-1)["generation_settings"]["n_predict"] == -1
    assert service.last().request.max_tokens is None
    ask(http, prompt="a", n_predict=0)
    assert service.last().request.max_tokens == 1, "as llama-server: the prompt, and a token"


def test_why_it_ended(http, service):
    service.script.reason = "length"
    assert ask(http, prompt="a")["stop_type"] == "limit"
    service.script.texts = ["a\nb"]
    assert ask(http, prompt="a")["has_new_line"] is True


def test_token_ids_where_they_are_asked_for(http):
    assert len(ask(http, prompt="a", return_tokens=True)["tokens"]) == 4


def test_a_stream(http):
    with http.stream("POST", "/completion", json={"prompt": "ab", "stream": True}) as response:
        body = response.read().decode()
    assert "[DONE]" not in body
    events = [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]
    *pieces, last = events
    assert "".join(piece["content"] for piece in pieces) == TEXT
    assert all(types(piece) == PIECE and piece["stop"] is False for piece in pieces)
    assert [piece["tokens_predicted"] for piece in pieces] == [1, 3, 4, 4]
    assert types(last) == ANSWER
    assert (last["content"], last["stop"], last["tokens_predicted"]) == ("", True, 4)
    assert last["generation_settings"]["stream"] is True


def test_a_stream_with_token_ids(http):
    body = {"prompt": "ab", "stream": True, "return_tokens": True}
    with http.stream("POST", "/completion", json=body) as response:
        data = response.read().decode()
    events = [json.loads(line.removeprefix("data: ")) for line in data.split("\n\n") if line]
    assert [len(event["tokens"]) for event in events] == [1, 1, 1, 1, 0, 0]


def test_apply_template(http):
    messages = [{"role": "user", "content": "hello"}]
    answer = http.post("/apply-template", json={"messages": messages}).json()
    start = "<|im_start|>user\nhello<|im_end|>\n"
    assert answer == {"prompt": start + "<|im_start|>assistant\n"}
    body = {"messages": messages, "add_generation_prompt": False}
    assert http.post("/apply-template", json=body).json() == {"prompt": start}
    assert http.post("/apply-template", json={"messages": []}).status_code == 400

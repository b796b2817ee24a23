"""POST /completion and POST /apply-template, as llama-server's clients use them."""

import json
from dataclasses import replace

import pytest
from fake_service import BOS, FakeEngine, FakeGuide

from spillcache.config import RequestDefaults
from spillcache.engine.base import SAMPLERS, FimTokens, TokenShares
from spillcache.serve.lacking_routes import LACKING

TEXT = "Hello wörld!"
# What a llama-server of October 2026 answers, field by field; test_contract asks one.
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
    "adaptive_target": float,
    "adaptive_decay": float,
    "grammar_lazy": bool,
    "grammar_triggers": list,
    "preserved_tokens": list,
    "chat_format": str,
    "reasoning_format": str,
    "reasoning_in_content": bool,
    "generation_prompt": str,
    "speculative.types": str,
    "backend_sampling": bool,
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
        ({"prompt": [1, [2]]}, "a list in a prompt"),
        ({"prompt": [1.5]}, "must be a text"),
        ({"prompt": [999_999]}, "token ids must lie in"),
        ({"prompt": "a", "id_slot": 2}, "slots are 0 to 1"),
        ({"prompt": "a", "id_slot": -2}, "at least -1"),
        ({"prompt": "a", "n_predict": -2}, "at least -1"),
        ({"prompt": "a", "grammar": "root ::= foo"}, "there is no rule foo"),
        ({"prompt": "a", "grammar": "root ::= [a]", "json_schema": {}}, "send one of them"),
        ({"prompt": "a", "response_format": {}}, "must be text, json_object or json_schema"),
        (
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema must be an object",
        ),
        ({"prompt": "a", "samplers": ["best"]}, "'best' is none"),
        ({"prompt": "a", "samplers": "kq"}, "'q' is none"),
        ({"prompt": "a", "logit_bias": [[5, True]]}, "true is no bias"),
        ({"prompt": "a", "logit_bias": [[258, 1]]}, "token ids must lie in 0 … 257"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "token ids must lie in"),
        ({"prompt": "a", "cache_stor": False}, "cache_stor is no field"),
    ],
)
def test_what_is_wrong_is_said(http, body, message):
    response = http.post("/completion", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": [[1], [2]]}, "several prompts"),
        ({"prompt": "a", "t_max_predict_ms": 100}, "t_max_predict_ms is not supported"),
        ({"prompt": "a", "n_indent": 2}, "n_indent is not supported"),
        ({"prompt": "a", "image_data": [{}]}, "image_data is not supported"),
    ],
)
def test_what_is_not_offered_is_501(http, body, message):
    response = http.post("/completion", json=body)
    assert response.status_code == 501
    error = response.json()["error"]
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("not_supported_error", "REQUEST_NOT_OFFERED")


@pytest.mark.parametrize("path", [path for paths in LACKING.values() for path in paths])
def test_routes_that_there_are_not_are_501(http, path):
    response = http.post(path, json={})
    assert response.status_code == 501
    assert path in response.json()["error"]["message"]


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
    )
    assert service.last().request.cache_prompt


def test_only_the_fields_that_were_asked_for(http):
    fields = ["content", "timings/cache_n", "generation_settings/top_k", "none", "content/x"]
    answer = ask(http, prompt="a", top_k=7, response_fields=fields)
    assert answer == {"content": TEXT, "timings/cache_n": 4, "generation_settings/top_k": 7}


def test_sampling_goes_to_the_engine_and_comes_back_in_the_settings(http, service):
    wanted = {
        "typical_p": 0.9,
        "top_n_sigma": 1.5,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dynatemp_range": 0.25,
        "dynatemp_exponent": 2.0,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["x"],
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
        "min_keep": 2,
        "n_probs": 3,
        "post_sampling_probs": True,
        "n_keep": 5,
    }
    answer = ask(http, prompt="a", samplers=["top-k", "temp", "top_k"], **wanted)
    settings = answer["generation_settings"]
    assert {name: settings[name] for name in wanted} == wanted
    assert settings["samplers"] == ["top_k", "temperature"]
    sampling = service.last().request.sampling
    assert (sampling.dry_sequence_breakers, sampling.n_probs) == (("x",), 3)
    assert sampling.samplers == ("top_k", "temperature")
    ask(http, prompt="a", samplers="edskypmxt")
    assert service.last().request.sampling.samplers == SAMPLERS


@pytest.mark.parametrize(
    ("biases", "found"),
    [
        ([[97, 1.5], ["bc", -2]], ((97, 1.5), (98, -2.0), (99, -2.0))),
        ({"97": 1, "b": False}, ((97, 1.0), (98, float("-inf")))),
        ([], ()),
    ],
)
def test_biases(http, service, biases, found):
    answer = ask(http, prompt="a", logit_bias=biases)
    assert service.last().request.sampling.logit_bias == found
    told = [(one["token"], one["bias"]) for one in answer["generation_settings"]["logit_bias"]]
    assert told == [(token, bias if bias > -1e9 else None) for token, bias in found]


def test_too_many_biased_tokens(http, service):
    service.engine.limits = replace(service.engine.limits, vocabulary=5000)
    service.engine.tokenize = lambda text, **_: list(range(2000)) if text == "much" else [1]
    response = http.post("/completion", json={"prompt": "a", "logit_bias": {"much": 1}})
    assert response.status_code == 400
    assert "more than 1024 tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"json_schema": {}}, "json_schema", "{}"),
        (
            {"response_format": {"type": "json_object"}, "json_schema": {"type": "null"}},
            "json_schema",
            '{"type": "object"}',
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": ["é"]}}},
            "json_schema",
            '{"enum": ["é"]}',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}},
            "json_schema",
            '{"enum": [1]}',
        ),
    ],
)
def test_grammars_go_to_the_engine(http, service, body, kind, text):
    answer = ask(http, prompt="a", **body)
    assert service.last().request.sampling.guide == FakeGuide(kind, text)
    assert answer["generation_settings"]["grammar"] == text


def test_no_grammar(http, service):
    ask(http, prompt="a", grammar="", json_schema=None, response_format={"type": "text"})
    assert service.last().request.sampling.guide is None


@pytest.mark.parametrize(
    "service_options", [{"defaults": RequestDefaults(grammar=("gbnf", 'root ::= "x"'))}]
)
def test_the_servers_grammar_is_for_requests_without_one(http, service):
    ask(http, prompt="a")
    assert service.last().request.sampling.guide == FakeGuide("gbnf", 'root ::= "x"')
    ask(http, prompt="a", json_schema={})
    assert service.last().request.sampling.guide == FakeGuide("json_schema", "{}")


SHARES = TokenShares(97, -0.5, ((97, -0.5), (195, -1.5)), drawn=False)


def test_how_likely_tokens_were(http, service):
    service.script.shares = SHARES
    first = ask(http, prompt="a", n_probs=2)["completion_probabilities"][0]
    assert first == {
        "id": 97,
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [
            {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
            {"id": 195, "token": "\ufffd", "bytes": [195], "logprob": -1.5},
        ],
    }
    service.script.shares = replace(SHARES, drawn=True, top=())
    drawn = ask(http, prompt="a", n_probs=2)["completion_probabilities"]
    assert drawn[0] == {"id": 97, "token": "a", "bytes": [97], "prob": -0.5, "top_probs": []}
    assert len(drawn) == 4


def test_a_stream_tells_it_with_each_token(http, service):
    service.script.shares = SHARES
    body = {"prompt": "ab", "stream": True, "n_probs": 2}
    with http.stream("POST", "/completion", json=body) as response:
        data = response.read().decode()
    events = [json.loads(line.removeprefix("data: ")) for line in data.split("\n\n") if line]
    assert ["completion_probabilities" in event for event in events] == [True] * 4 + [False] * 2


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


CODE = {"input_prefix": "def f(", "input_suffix": "return x", "n_predict": 2}


def test_infill_needs_a_model_that_can(http):
    response = http.post("/infill", json=CODE)
    assert response.status_code == 501
    message = response.json()["error"]["message"]
    assert "no token for prefix and none for suffix and none for middle" in message


def test_infill(http, service):
    service.engine.fim = FimTokens(1, 2, 3)
    answer = http.post("/infill", json={**CODE, "prompt": "x"}).json()
    assert types(answer) == ANSWER
    tokens = [BOS, 1, *b"def f(", *b"x", 2, *b"return x", 3]
    assert service.last().request.tokens.tolist() == tokens
    extra = {"input_extra": [{"text": "other"}], "prompt": [97]}
    http.post("/infill", json={**CODE, **extra})
    snippet = [*b"\n\n--- snippet ---\n\nother"]
    tokens = [*snippet, BOS, 1, *b"def f(", 97, 2, *b"return x", 3]
    assert service.last().request.tokens.tolist() == tokens


def test_infill_with_files(http, service):
    service.engine.fim = FimTokens(1, 2, 3, 4, 5)
    http.post("/infill", json={**CODE, "input_extra": [{"filename": "a.py", "text": "A"}]})
    files = [4, *b"myproject\n", 5, *b"a.py\nA", 5, *b"filename\n"]
    tokens = [*files, BOS, 1, *b"def f(", 2, *b"return x", 3]
    assert service.last().request.tokens.tolist() == tokens


def test_infill_takes_what_fits(http, service):
    service.engine.fim = FimTokens(1, 2, 3, 4, 5)
    body = {
        "input_prefix": "p" * 5000 + "q",
        "input_suffix": "s" * 5000,
        "input_extra": [{"text": "e" * 9000 + "z"}],
        "prompt": "<s>",
        "n_predict": 24,
    }
    assert http.post("/infill", json=body).status_code == 200
    tokens = service.last().request.tokens.tolist()
    assert len(tokens) == 2000 + 1 + 1 + 1536 + 1 + 1 + 509 + 1
    assert tokens[2000 - 11 : 2002] == [ord("z"), 5, *b"filename\n", BOS, 1]
    assert tokens[2002 + 1535 : 2002 + 1538] == [ord("q"), BOS, 2]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input_suffix": "x"}, "input_prefix is required"),
        ({"input_prefix": "x", "input_suffix": 5}, "input_suffix must be a text"),
        ({**CODE, "input_extra": [{"filename": "x"}]}, "input_extra[0].text is required"),
        ({**CODE, "prompt": [999]}, "token ids must lie in"),
        ({**CODE, "input_prefix": "x" * 2_000_000}, "shorten it"),
    ],
)
def test_infill_says_what_is_wrong(http, service, body, says):
    service.engine.fim = FimTokens(1, 2, 3)
    response = http.post("/infill", json=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_apply_template(http):
    messages = [{"role": "user", "content": "hello"}]
    answer = http.post("/apply-template", json={"messages": messages}).json()
    start = "<|im_start|>user\nhello<|im_end|>\n"
    assert answer == {"prompt": start + "<|im_start|>assistant\n"}
    body = {"messages": messages, "add_generation_prompt": False}
    assert http.post("/apply-template", json=body).json() == {"prompt": start}
    assert http.post("/apply-template", json={"messages": []}).status_code == 400
    tools = http.post("/apply-template", json={"messages": messages, "tools": [{}]})
    assert tools.status_code == 400


@pytest.mark.parametrize(
    "service_options", [{"defaults": RequestDefaults(template_variables={"tone": "dry", "n": 1})}]
)
def test_variables_of_the_template(http, service):
    service.engine_in_use = FakeEngine("{{ tone }}{{ n }}{{ messages[0].content }}{{ bos_token }}")
    body = {"messages": [{"role": "user", "content": "?"}]}
    assert http.post("/apply-template", json=body).json() == {"prompt": "dry1?<s>"}
    body["chat_template_kwargs"] = {"tone": "mild", "bos_token": "!", "messages": []}
    assert http.post("/apply-template", json=body).json() == {"prompt": "mild1?<s>"}
    http.post("/v1/chat/completions", json=body)
    assert bytes(service.last().request.tokens[1:7].tolist()) == b"mild1?"

import dataclasses
import json

import pytest
from pydantic import ValidationError

from spillcache.config import RequestDefaults
from spillcache.engine.base import SamplingParams
from spillcache.errors import RequestError, Unsupported
from spillcache.serve.schema import ChatBody, CompletionBody

HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return ChatBody.model_validate_json(json.dumps({"messages": HELLO, **fields}))


def completion(**fields):
    return CompletionBody.model_validate_json(json.dumps({"prompt": "x", **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": "5"},
        {"max_tokens": 5.5},
        {"max_tokens": True},
        {"max_tokens": -2},
        {"max_completion_tokens": -2},
        {"n_predict": -2},
        {"temperature": "hot"},
        {"temperature": -0.1},
        {"temperature": False},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": 1.5},
        {"min_p": 2},
        {"seed": "7"},
        {"stream": "true"},
        {"stream": 1},
        {"stream_options": []},
        {"stream_options": {"include_usage": 1}},
        {"stop": 5},
        {"stop": [5]},
        {"stop": ["x"] * 33},
        {"stop": "x" * 1025},
        {"stop": ["x" * 1025]},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -3},
        {"repeat_penalty": 0},
        {"repeat_last_n": -2},
        {"ignore_eos": "no"},
        {"repeat_last_n": 2**31},
        {"typical_p": 0},
        {"top_n_sigma": 1e9},
        {"min_keep": -1},
        {"xtc_probability": 1.5},
        {"dynatemp_range": -1},
        {"dry_base": 0.5},
        {"dry_multiplier": 1e9},
        {"dry_sequence_breakers": ["x"] * 17},
        {"dry_sequence_breakers": [""]},
        {"mirostat": 3},
        {"samplers": 5},
        {"logit_bias": [5]},
        {"logit_bias": {"5": "x"}},
        {"logit_bias": [[5, 1e9]]},
        {"logit_bias": [[n, 1] for n in range(1025)]},
        {"n_probs": 101},
        {"top_logprobs": 21},
        {"logprobs": 5},
        {"grammar": {}},
        {"json_schema": "x"},
        {"json_schema": True},
        {"response_format": "text"},
        {"chat_template_kwargs": []},
        {"cache_prompt": 0},
        {"cache_salt": 5},
        {"n": 0},
        {"n": "1"},
        {"model": 5},
        {"messages": "hi"},
        {"messages": []},
        {"messages": [{}]},
        {"messages": [{"role": 5, "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
    ],
)
def test_what_is_not_meant_is_refused(fields):
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    assert {error["loc"][0] for error in caught.value.errors()} == set(fields)


@pytest.mark.parametrize("prompt", [5, None, [1, "x"], [[1], "x"], [1.5], [True], {"a": 1}])
def test_prompts_of_a_wrong_type(prompt):
    with pytest.raises(ValidationError, match="a text, a list of token ids") as caught:
        completion(prompt=prompt)
    assert len(caught.value.errors()) == 1


def test_infinity_is_no_temperature():
    with pytest.raises(ValidationError, match="finite"):
        ChatBody.model_validate_json(b'{"messages": [{"role": "user"}], "temperature": Infinity}')


def test_null_is_the_default_everywhere():
    names = set(ChatBody.model_fields) - {"messages"}
    body = chat(**dict.fromkeys(names))
    body.check_offered()
    request = body.to_request([1, 2])
    assert list(request.tokens) == [1, 2]
    tokens_aside = {
        field.name: getattr(request, field.name)
        for field in dataclasses.fields(request)
        if field.name != "tokens"
    }
    assert tokens_aside == {
        "max_tokens": None,
        "sampling": SamplingParams(),
        "stop": (),
        "salt": b"",
        "cache_prompt": True,
        "cache_store": True,
        "lora": None,
        "spelled": {},
        "session": b"",
        "slot": None,
    }


def test_unknown_fields_are_ignored():
    chat(user="me", store=True, service_tier="auto", whatever={"a": 1}).check_offered()
    chat(suffix="x", echo=True, check_offered=1, model_fields=2).check_offered()
    completion(tools=[{}]).check_offered()


ASKS = {
    "best_of": [2, "x"],
    "adaptive_target": [0.5, 0, "x"],
    "functions": [[{}]],
    "function_call": [{"name": "f"}],
    "audio": [{"voice": "x"}],
    "modalities": [["text", "audio"]],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in ASKS.items() for v in vs])
def test_what_is_not_offered_is_refused_by_name(field, value):
    with pytest.raises(Unsupported, match=f"^{field} is not supported") as caught:
        chat(**{field: value}).check_offered()
    assert caught.value.param == field


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("echo", True)])
def test_what_completions_do_not_offer(field, value):
    with pytest.raises(Unsupported, match=field):
        completion(**{field: value}).check_offered()


def test_what_says_nothing_is_fine():
    chat(
        n=1,
        tools=[],
        tool_choice="auto",
        functions=[],
        function_call="none",
        modalities=["text"],
        adaptive_target=-1.0,
    ).check_offered()
    completion(suffix="", echo=False, best_of=1).check_offered()


def test_limits():
    assert chat(max_tokens=5).to_request([1]).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).to_request([1]).max_tokens == 6
    assert chat(n_predict=7).to_request([1]).max_tokens == 7
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        assert chat(**{name: -1}).to_request([1]).max_tokens is None
        with pytest.raises(RequestError, match=f"{name} must be at least 1, or -1: no limit"):
            chat(**{name: 0}).to_request([1])


@pytest.mark.parametrize(
    ("seed", "used"), [(0, 0), (7, 7), (-1, None), (2**32 - 1, 0), (2**40, 256), (-2, 2**32 - 3)]
)
def test_seeds(seed, used):
    assert chat(seed=seed).to_request([1]).sampling.seed == used


def test_stop_strings():
    assert chat(stop="\n").to_request([1]).stop == ("\n",)
    assert chat(stop=["a", "", "b"]).to_request([1]).stop == ("a", "b")
    assert chat(stop="").to_request([1]).stop == ()


def test_include_usage():
    assert not chat().include_usage
    assert not chat(stream_options={}).include_usage
    assert chat(stream_options={"include_usage": True}).include_usage


def test_messages_keep_what_templates_may_want():
    message = {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "7"}
    assert chat(messages=[message]).plain_messages() == [message]


@pytest.mark.parametrize(
    ("prompt", "one"), [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])]
)
def test_one_prompt(prompt, one):
    assert completion(prompt=prompt).one_prompt() == one


@pytest.mark.parametrize("prompt", ["", [], [""], [[]]])
def test_empty_prompts(prompt):
    with pytest.raises(RequestError, match="the prompt is empty") as caught:
        completion(prompt=prompt).one_prompt()
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_several_prompts(prompt):
    with pytest.raises(Unsupported, match="several prompts") as caught:
        completion(prompt=prompt).one_prompt()
    assert caught.value.param == "prompt"


def test_defaults_stand_for_what_was_left_out():
    defaults = RequestDefaults(temperature=0.0, top_k=5, seed=7, max_tokens=9)
    request = chat(top_k=1, temperature=None).to_request([1], defaults)
    assert request.max_tokens == 9
    assert request.sampling == SamplingParams(temperature=0.0, top_k=1, seed=7)
    own = chat(seed=-1, n_predict=-1, temperature=0.5).to_request([1], defaults)
    assert (own.max_tokens, own.sampling.seed, own.sampling.temperature) == (None, None, 0.5)


def test_adapters_of_a_request():
    assert chat().to_request([1]).lora is None
    assert chat(lora=None).to_request([1]).lora is None
    assert chat(lora=[]).to_request([1]).lora == ()
    named = chat(lora=[{"id": 1, "scale": 0.5}, {"id": 0, "scale": 2}])
    assert named.to_request([1]).lora == ((1, 0.5), (0, 2.0))


@pytest.mark.parametrize(
    "lora", [{"id": 0}, [{"id": 0}], [{"scale": 1.0}], [{"id": "0", "scale": 1.0}], [[0, 1.0]], 1]
)
def test_adapters_that_are_not_written_as_llama_server_has_them(lora):
    with pytest.raises(ValidationError, match="lora"):
        chat(lora=lora)

"""``return_tokens``, as llama-server's: token ids beside the text."""

import json

import pytest

ASK = {"prompt": "hello", "return_tokens": True}


def chunks(http, **fields):
    text = http.post("/v1/completions", json={**ASK, "stream": True, **fields}).text
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_every_token_has_a_chunk_with_its_id(http):
    seen = chunks(http)
    *answer, rest, last = seen
    assert all(len(chunk["tokens"]) == 1 for chunk in answer)
    assert len(answer) == 4
    assert [chunk["choices"][0]["text"] for chunk in answer] == ["Hel", "", "lo", " wörld"]
    assert rest["choices"][0]["text"] == "!"
    assert "tokens" not in rest
    assert "tokens" not in last


def test_ids_come_with_a_whole_answer_too(http):
    ids = [token for chunk in chunks(http) for token in chunk.get("tokens", [])]
    answer = http.post("/v1/completions", json=ASK).json()
    assert answer["tokens"] == ids
    assert answer["choices"][0]["text"] == "Hello wörld!"


@pytest.mark.parametrize("asked", [False, None])
def test_without_asking_there_are_none(http, asked):
    seen = chunks(http, return_tokens=asked)
    assert not any("tokens" in chunk for chunk in seen)
    assert [chunk["choices"][0]["text"] for chunk in seen] == ["Hel", "lo", " wörld", "!", ""]
    assert "tokens" not in http.post("/v1/completions", json={"prompt": "hello"}).json()

"""Items of the Responses API as messages of chats."""

import pytest

from spillcache.errors import RequestError, Unsupported
from spillcache.serve.responses_input import chat_messages

USER = {"role": "user", "content": "Rain?"}


def said(words):
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "content": content}


def call(id_="a", name="f"):
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": "{}"}


def output(id_="a", words="dry"):
    return {"type": "function_call_output", "call_id": id_, "output": words}


def thought(words):
    content = [{"type": "reasoning_text", "text": words}]
    return {"type": "reasoning", "id": "r", "summary": [], "content": content}


def words_of(message):
    content = message.get("content")
    return content if isinstance(content, str) else [part["text"] for part in content or ()]


def test_a_text():
    assert chat_messages("Be brief.", "Rain?") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
    ]
    assert chat_messages(None, "Rain?") == chat_messages("", [USER])


def test_what_was_said_in_one_answer_is_one_message():
    told = chat_messages(
        None,
        [
            USER,
            thought("hm"),
            said("I look."),
            call("a"),
            call("b", "g"),
            said("Done."),
            output("a"),
            output("b", [{"type": "input_text", "text": "wet"}]),
            thought("so"),
            call("c"),
            output("c"),
            said("Dry."),
        ],
    )
    roles = ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [message["role"] for message in told] == roles
    answer = told[1]
    assert answer["reasoning_content"] == "hm"
    assert words_of(answer) == ["I look.", "Done."]
    assert answer["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert (words_of(told[2]), words_of(told[3])) == ("dry", ["wet"])
    assert "content" not in told[4]
    assert words_of(told[6]) == ["Dry."]


def test_answers_that_follow_each_other_stay_apart():
    told = chat_messages(None, [USER, said("I"), said("look."), thought("hm"), said("So.")])
    assert [words_of(message) for message in told] == ["Rain?", ["I"], ["look."], ["So."]]


def test_thoughts_that_only_their_maker_reads_are_none():
    item = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "?"}
    told = chat_messages(None, [USER, item, said("Dry.")])
    assert told[1]["reasoning_content"] == ""
    assert words_of(told[1]) == ["Dry."]


def test_roles_and_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    told = chat_messages(
        None,
        [
            {"role": "developer", "content": parts},
            {"type": "message", "role": "system", "content": "c"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            USER,
        ],
    )
    assert [message["role"] for message in told] == ["developer", "system", "assistant", "user"]
    assert told[0]["content"] == parts


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "x"}, "input[1]"),
        ({"type": "image_generation_call"}, "input[1]"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0]"),
        ({**output(), "output": [{"type": "input_file"}]}, "input[1].output[0]"),
    ],
)
def test_other_items_and_parts_are_refused(item, param):
    with pytest.raises(Unsupported) as caught:
        chat_messages(None, [USER, item])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "robot", "content": "x"}, "input[1].role"),
        ({"role": "user"}, "input[1].content"),
        ({"role": "user", "content": [5]}, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({**call(), "arguments": {}}, "input[1].arguments"),
        ({**call(), "call_id": None}, "input[1].call_id"),
        ({**output(), "output": None}, "input[1].output"),
        ({"type": "reasoning", "content": [5]}, "input[1].content"),
    ],
)
def test_what_is_wrong_is_named(item, param):
    with pytest.raises(RequestError) as caught:
        chat_messages(None, [USER, item])
    assert caught.value.param == param


@pytest.mark.parametrize("given", [None, [], ""])
def test_nothing_is_asked(given):
    if given == "":
        assert chat_messages(None, given) == [{"role": "user", "content": ""}]
        return
    with pytest.raises(RequestError, match="input is empty"):
        chat_messages(None, given)

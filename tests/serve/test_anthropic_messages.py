"""Anthropic's messages as chats have them."""

import pytest

from spillcache.errors import RequestError, Unsupported
from spillcache.serve.anthropic_messages import chat_messages

USER = ("user", "Rain?")


def text(words):
    return {"type": "text", "text": words}


def use(name="f", given=None, id_="a"):
    return {"type": "tool_use", "id": id_, "name": name, "input": given or {}}


def result(content, id_="a"):
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def test_texts():
    system = [text("Be brief."), {**text("Be kind."), "cache_control": {"type": "ephemeral"}}]
    assert chat_messages(system, [USER]) == [
        {"role": "system", "content": [text("Be brief."), text("Be kind.")]},
        {"role": "user", "content": [text("Rain?")]},
    ]
    assert chat_messages("Be brief.", [USER])[0]["content"] == [text("Be brief.")]
    assert chat_messages(None, [USER]) == chat_messages([], [USER])


def test_accounts_are_no_prompt():
    """That block is another one in each request of an agent's: no prompt would go on from it."""
    billing = text("x-anthropic-billing-header: cc_version=2; cch=0aaa9;")
    system = [billing, text("You are an agent.")]
    assert chat_messages(system, [USER]) == chat_messages("You are an agent.", [USER])
    assert chat_messages([billing], [USER]) == chat_messages(None, [USER])
    told = chat_messages(None, [("user", billing["text"])])
    assert told[0]["content"] == [text(billing["text"])]


def test_calls_and_results():
    answer = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "?"},
        text("I look."),
        use(given={"city": "Örö"}),
        use("g", id_="b"),
    ]
    back = [result("dry"), result([text("wet"), text("!")], "b"), text("So?")]
    told = chat_messages(None, [USER, ("assistant", answer), ("user", back)])
    assert told[1] == {
        "role": "assistant",
        "content": [text("I look.")],
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": '{"city": "Örö"}'},
            },
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert told[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "dry"},
        {"role": "tool", "tool_call_id": "b", "content": [text("wet"), text("!")]},
        {"role": "user", "content": [text("So?")]},
    ]


@pytest.mark.parametrize("content", [None, ""])
def test_a_result_of_nothing(content):
    told = chat_messages(None, [USER, ("assistant", [use()]), ("user", [result(content)])])
    assert told[-1]["content"] == ""


def test_neighbours_of_one_role_are_one_turn():
    told = chat_messages(
        None,
        [
            USER,
            ("user", "Snow?"),
            ("assistant", "I"),
            ("assistant", [text(" look."), use()]),
            ("assistant", [use("g", id_="b")]),
            ("user", [result("x"), result("y", "b")]),
            ("user", "So?"),
        ],
    )
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool", "user"]
    assert told[0]["content"] == [text("Rain?"), text("Snow?")]
    assert told[1]["content"] == [text("I"), text(" look.")]
    assert [call["id"] for call in told[1]["tool_calls"]] == ["a", "b"]


def test_a_system_message_in_between():
    told = chat_messages(None, [USER, ("system", "Be brief."), USER])
    assert [message["role"] for message in told] == ["user", "system", "user"]


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "server_tool_use"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_other_blocks_than_texts_are_refused(kind, role):
    with pytest.raises(Unsupported, match="reads text only") as caught:
        chat_messages(None, [(role, [text("See:"), {"type": kind, "source": {}}]), USER])
    assert caught.value.param == "messages[0].content[1]"
    inner = [result([{"type": kind}])]
    with pytest.raises(Unsupported) as caught:
        chat_messages(None, [("user", inner)])
    assert caught.value.param == "messages[0].content[0].content[0]"
    with pytest.raises(Unsupported):
        chat_messages([{"type": kind}], [USER])


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("turns", "param"),
    [
        ([("robot", "x")], "messages[0].role"),
        ([("user", None)], "messages[0].content"),
        ([("user", [5])], "messages[0].content[0]"),
        ([("user", [{}])], "messages[0].content[0]"),
        ([("user", [{"type": ["text"]}])], "messages[0].content[0]"),
        ([("user", [{"type": "text"}])], "messages[0].content[0].text"),
        ([("user", [result(5)])], "messages[0].content[0].content"),
        ([("user", [{"type": "tool_result"}])], "messages[0].content[0].tool_use_id"),
        ([("assistant", [{"type": "thinking"}])], "messages[0].content[0].thinking"),
        ([("assistant", [{**use(), "input": "x"}])], "messages[0].content[0].input"),
        ([("assistant", [use(given=deep(100_000))])], "messages[0].content[0].input"),
        ([("assistant", [use(name=5)])], "messages[0].content[0].name"),
        ([("assistant", [{**use(), "id": None}])], "messages[0].content[0].id"),
    ],
)
def test_what_is_wrong_is_named(turns, param):
    with pytest.raises(RequestError) as caught:
        chat_messages(None, turns)
    assert caught.value.param == param


def test_an_answer_that_is_begun_is_refused():
    with pytest.raises(Unsupported, match="end with a user's message"):
        chat_messages(None, [USER, ("assistant", "It is")])

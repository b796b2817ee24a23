"""Bodies of any shape come to a chat, or to an error that says what is wrong: nothing else."""

import contextlib
import json

from fake_service import FakeEngine
from families import source_of
from hypothesis import given, settings
from hypothesis import strategies as st

from spillcache.errors import RequestError
from spillcache.serve.anthropic_schema import MessagesBody
from spillcache.serve.call_texts import CallTexts
from spillcache.serve.conversation import Conversation
from spillcache.serve.request_body import body_of
from spillcache.serve.responses_schema import ResponsesBody
from spillcache.serve.token_memory import TokenMemory

ENGINE = FakeEngine(source_of("qwen"))
WORDS = st.sampled_from([
    "text", "tool_use", "tool_result", "thinking", "user", "assistant", "function", "message",
    "function_call", "function_call_output", "reasoning", "input_text", "custom", "f",
])  # fmt: skip
KEYS = st.sampled_from([
    "type", "text", "role", "content", "id", "name", "input", "tool_use_id", "thinking", "call_id",
    "arguments", "output", "input_schema", "parameters", "format", "schema", "refusal",
])  # fmt: skip
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | WORDS | st.just('{"a": 1}'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BLOCK = st.fixed_dictionaries({"type": WORDS}, optional={
    "text": WORDS, "id": WORDS, "name": WORDS, "input": ANY, "tool_use_id": WORDS, "content": ANY,
    "call_id": WORDS, "arguments": WORDS, "output": ANY, "role": WORDS, "thinking": ANY,
})  # fmt: skip
TURN = st.fixed_dictionaries({
    "role": st.sampled_from(["user", "assistant"]), "content": st.lists(BLOCK, max_size=3) | ANY,
})  # fmt: skip


def some(*names):
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, ANY))


def answered(fields, kind):
    """Reads it as a route would, down to the prompt's text."""
    with contextlib.suppress(RequestError):
        chat = body_of(json.loads(json.dumps(fields)), kind).chat().held()
        texts = CallTexts(TokenMemory(), stores=False)
        talk = Conversation(ENGINE, chat.plain_messages(), chat.tools or (), texts=texts)
        assert isinstance(talk.prompt(), str)
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TURN, min_size=1, max_size=3),
    some("system", "tools", "tool_choice", "thinking", "output_config"),
)
def test_messages(turns, fields):
    answered({"messages": turns, **fields}, MessagesBody)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(BLOCK | TURN, min_size=1, max_size=4),
    some("instructions", "tools", "tool_choice", "text", "reasoning"),
)
def test_responses(items, fields):
    answered({"input": items, **fields}, ResponsesBody)


def test_what_is_right_comes_to_a_prompt():
    assert answered({"messages": [{"role": "user", "content": "x"}]}, MessagesBody)
    assert answered({"input": "x"}, ResponsesBody)
    assert not answered({"input": 5}, ResponsesBody)

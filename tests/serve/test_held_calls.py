"""``tool_choice`` required or named: whatever the model would say, it calls."""

import json

import pytest
from models import ModelShelf
from test_drift import client, config_of


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("paint", color={"enum": ["red", "blue"]}, wet={"type": "boolean"}),
    tool("wait", days={"enum": [1, 2, 3]}),
]
CHOICES = ["required", {"type": "function", "function": {"name": "wait"}}]


@pytest.mark.parametrize("template", ["", "chatml"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_must_be_a_call(gguf_model: ModelShelf, template, stream):
    with client(config_of(gguf_model("llama"), None, template)) as ai:
        for seed in range(6):
            answer = ai.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "Rain?"}],
                tools=TOOLS,
                tool_choice=CHOICES[seed % 2],
                seed=seed,
                stream=stream,
            )
            name, given = streamed(answer) if stream else whole(answer)
            assert name == "wait" or seed % 2 == 0
            if name == "wait":
                assert given["days"] in {1, 2, 3}
            else:
                assert given["color"] in {"red", "blue"}
                assert isinstance(given["wet"], bool)


def whole(answer):
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


def streamed(answer):
    chunks = [chunk.choices[0] for chunk in answer]
    assert chunks[-1].finish_reason == "tool_calls"
    assert not any(choice.delta.content for choice in chunks)
    calls = [call for choice in chunks for call in choice.delta.tool_calls or ()]
    arguments = "".join(call.function.arguments for call in calls)
    return calls[0].function.name, json.loads(arguments)

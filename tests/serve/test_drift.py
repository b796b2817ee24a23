"""Conversations whose answers come back as text, through the whole server, restarts included.

The tiny models' answers are full of tokens that no text is cut into: sent back as text, they would
be other tokens, and all that follows would be computed again.
"""

import json
import logging
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import anthropic
import openai
import pytest
from families import TOOLS, source_of
from loopback import served
from models import FIRST_BYTE, IM_END, ModelShelf
from test_service import Running, settings

from spillcache.config import Settings
from spillcache.engine.base import Sampler
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.serve.app import create_app
from spillcache.serve.token_shelf import TokenShelf

WORD = FIRST_BYTE + 257
"""The token of `` word0``; only answers hold such."""
TURNS = 12


class Scripted(Sampler):
    """Gives the tokens of the next answer that was written down, then the end."""

    def __init__(self, tokens):
        self._tokens = iter([*tokens, IM_END])

    def sample(self, sequence):
        return next(self._tokens)

    def close(self):
        pass


def written(*pieces):
    """Tokens: of words by their numbers, of texts by their bytes."""
    tokens = []
    for piece in pieces:
        tokens += (
            [WORD + piece] if isinstance(piece, int) else [FIRST_BYTE + b for b in piece.encode()]
        )
    return tokens


def tool_turn(number):
    """Words, and a call whose JSON is not as templates write it."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city":"x'
    return written("Look", number, number + 1, "\n", call, number, '"}}\n</tool_call>')


@pytest.fixture
def script(monkeypatch):
    """Answers to come, as tokens; without one the model speaks for itself."""
    answers = []
    own = LlamaEngine.sampler

    def sampler(engine, params, history):
        return Scripted(answers.pop(0)) if answers else own(engine, params, history)

    monkeypatch.setattr(LlamaEngine, "sampler", sampler)
    return answers


@contextmanager
def client(config: Settings):
    with clients(config) as (ai, _):
        yield ai


@contextmanager
def clients(config: Settings):
    with (
        Running(config) as run,
        served(create_app(run.service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as ai,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, timeout=60) as claude,
    ):
        yield ai, claude


def config_of(model: Path, disk: Path | None, template: str = "") -> Settings:
    made = settings(model, disk)
    engine = {name: getattr(made.engine, name) for name in made.engine.__dataclass_fields__}
    engine |= {"context_tokens": 8192, "threads": 1, "chat_template": template or source_of("qwen")}
    return Settings(type(made.engine)(**engine), made.serve, made.cache, made.store)


def turn(ai, messages, **fields):
    """The answer; its message and results are added to the conversation."""
    answer = ai.chat.completions.create(
        model="any", messages=messages, tools=TOOLS, temperature=0, **fields
    )
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        result = {"role": "tool", "tool_call_id": call.id, "content": f"dry {len(messages)}"}
        messages.append(result)
    if not message.tool_calls:
        messages.append({"role": "user", "content": f"And then? {len(messages)}"})
    return answer


def cached_share(answers):
    """Of the tokens that an append-only history of tokens would have cached, how many were."""
    kept = possible = 0
    for before, after in pairwise(answers):
        possible += before.usage.prompt_tokens + before.usage.completion_tokens
        kept += after.usage.prompt_tokens_details.cached_tokens
    return kept / possible


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen35"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_conversation_with_tools_keeps_its_tokens(
    gguf_model: ModelShelf, tmp_path: Path, script, kind, restart
):
    config = config_of(gguf_model(kind), tmp_path / "kv")
    messages = [{"role": "user", "content": "Rain? " * 20}]
    answers = []
    for part in (range(TURNS // 2), range(TURNS // 2, TURNS)) if restart else (range(TURNS),):
        with client(config) as ai:
            for number in part:
                words = written(number, "\n\n", number, number, ".", number)
                script.append(tool_turn(number) if number % 3 else words)
                answers.append(turn(ai, messages))
    assert sum(bool(a.choices[0].message.tool_calls) for a in answers) == 8
    assert not any(a.timings["parted"] for a in answers)
    assert cached_share(answers) >= 0.95


def test_a_kill_that_loses_the_memory_costs_a_turn_and_no_word(
    gguf_model: ModelShelf, tmp_path: Path, script, monkeypatch
):
    """Records are written half a minute after the first: kill −9 may come before. The state of the
    prompt's own tokens is there, the answer's is computed for the tokens that its text gives now,
    and the next answer is the one that a server without any cache gives.
    """
    model, disk = gguf_model("llama"), tmp_path / "kv"
    messages = [{"role": "user", "content": "Rain? " * 40}]
    with monkeypatch.context() as killed, client(config_of(model, disk)) as ai:
        killed.setattr(TokenShelf, "_write", lambda _: None)
        script.append(written(1, 2, "\n\n", 3, 3, ".", 4))
        first = turn(ai, messages)
    asked, again = list(messages), list(messages)
    with client(config_of(model, disk)) as ai:
        second = turn(ai, messages, max_tokens=24)
    with client(config_of(model, None)) as ai:
        cold = turn(ai, again, max_tokens=24)
    assert first.usage.completion_tokens == 8
    assert asked == messages[: len(asked)]
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens // 64 * 64 <= cached < second.usage.prompt_tokens
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens == cold.usage.prompt_tokens
    assert second.choices[0].message == cold.choices[0].message


def test_without_the_memory_the_tokens_are_lost(
    gguf_model: ModelShelf, tmp_path: Path, script, monkeypatch, caplog
):
    """What the test above would say of a server that tokenises again."""
    monkeypatch.setattr("spillcache.serve.turn.Turn.learn", lambda *_: None)
    caplog.set_level(logging.INFO, "spillcache.serve")
    messages = [{"role": "user", "content": "Rain? " * 20}]
    with client(config_of(gguf_model("llama"), None)) as ai:
        answers = []
        for number in range(4):
            script.append(written(number, number, ".", number))
            answers.append(turn(ai, messages))
    for before, after in pairwise(answers):
        assert after.timings["parted"] == {
            "at": before.usage.prompt_tokens,
            "lost": before.usage.completion_tokens,
        }
    at = answers[0].usage.prompt_tokens
    assert f"parts from what a slot held at token {at:,}, 4 lost" in caplog.text
    assert "word" not in caplog.text


def test_the_models_own_answers_keep_their_tokens(gguf_model: ModelShelf, tmp_path: Path):
    messages = [{"role": "user", "content": "Rain? " * 20}]
    with client(config_of(gguf_model("llama"), None, "chatml")) as ai:
        answers = [turn(ai, messages, max_tokens=24) for _ in range(6)]
    assert cached_share(answers) >= 0.9


THINKING = """{%- for message in messages %}
{%- set said = message.content %}
{%- if message.role == 'assistant' and not loop.last %}
    {%- set said = said.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def test_thoughts_that_are_dropped_cost_what_follows_them(
    gguf_model: ModelShelf, tmp_path: Path, script, caplog
):
    caplog.set_level(logging.DEBUG, "spillcache.serve")
    messages = [{"role": "user", "content": "Rain? " * 40}]
    thought, words = written("<think>", 1, 2, "</think>\n\n"), written(3, 4, "dry")
    with client(config_of(gguf_model("llama"), tmp_path / "kv", THINKING)) as ai:
        script += [[*thought, *words], written("No", 5)]
        first = turn(ai, messages)
        assert first.choices[0].message.reasoning_content == "word1 word2"
        second = turn(ai, messages)
    asked = first.usage.prompt_tokens
    assert second.timings["parted"] == {"at": asked, "lost": len(thought) + len(words)}
    # A slot goes on from a block's end.
    assert second.usage.prompt_tokens_details.cached_tokens == asked // 64 * 64
    assert f"parts at token {asked}: " in caplog.text
    assert "'<think> word1" in caplog.text


# The same through other APIs: a talk is a list of what was said, in nobody's terms.


def said_to(talk):
    """As Anthropic's messages."""
    messages = []
    for role, words, calls in talk:
        if role == "tool":
            block = {"type": "tool_result", "tool_use_id": calls, "content": words}
            messages.append({"role": "user", "content": [block]})
            continue
        blocks = [{"type": "text", "text": words}] if words else []
        blocks += [
            {"type": "tool_use", "id": i, "name": name, "input": json.loads(arguments)}
            for i, name, arguments in calls
        ]
        messages.append({"role": role, "content": blocks})
    return messages


def message_turn(claude, _, talk):
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in TOOLS
    ]
    answer = claude.messages.create(
        model="any",
        max_tokens=999,
        messages=said_to(talk),
        tools=tools,
        extra_body={"temperature": 0},
    )
    words = "".join(block.text for block in answer.content if block.type == "text")
    calls = [
        (block.id, block.name, json.dumps(block.input))
        for block in answer.content
        if block.type == "tool_use"
    ]
    usage = answer.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return words, calls, (prompt, usage.output_tokens, usage.cache_read_input_tokens)


def chat_turn(_, ai, talk):
    messages = []
    for role, words, calls in talk:
        message = {"role": role, "content": words}
        if role == "tool":
            message["tool_call_id"] = calls
        elif calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
                for i, name, arguments in calls
            ]
        messages.append(message)
    answer = ai.chat.completions.create(model="any", messages=messages, tools=TOOLS, temperature=0)
    message, usage = answer.choices[0].message, answer.usage
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    counts = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens_details.cached_tokens,
    )
    return message.content or "", calls, counts


def response_turn(_, ai, talk):
    items = []
    for role, words, calls in talk:
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": calls, "output": words})
            continue
        if words:
            items.append({"role": role, "content": words})
        items += [
            {"type": "function_call", "call_id": i, "name": name, "arguments": arguments}
            for i, name, arguments in calls
        ]
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    answer = ai.responses.create(model="any", input=items, tools=tools, temperature=0)
    calls = [
        (item.call_id, item.name, item.arguments)
        for item in answer.output
        if item.type == "function_call"
    ]
    usage = answer.usage
    cached = usage.input_tokens_details.cached_tokens
    return answer.output_text, calls, (usage.input_tokens, usage.output_tokens, cached)


@pytest.mark.parametrize(
    "apis",
    [[message_turn], [response_turn], [chat_turn, message_turn, response_turn]],
    ids=["messages", "responses", "all in turn"],
)
def test_other_apis_keep_the_tokens_as_well(gguf_model: ModelShelf, tmp_path: Path, script, apis):
    """With a restart in the middle; who goes on in another API finds what the first one left."""
    config = config_of(gguf_model("llama"), tmp_path / "kv")
    talk = [("user", "Rain? " * 20, ())]
    counts = []
    for part in (range(TURNS // 2), range(TURNS // 2, TURNS)):
        with clients(config) as (ai, claude):
            for number in part:
                words = written(number, "\n\n", number, number, ".", number)
                script.append(tool_turn(number) if number % 3 else words)
                said, calls, count = apis[number % len(apis)](claude, ai, talk)
                assert bool(calls) == bool(number % 3)
                counts.append(count)
                talk.append(("assistant", said, calls))
                talk += [("tool", f"dry {number}", i) for i, _, _ in calls]
                if not calls:
                    talk.append(("user", f"And then? {number}", ()))
    possible = sum(prompt + answer for prompt, answer, _ in counts[:-1])
    assert sum(cached for _, _, cached in counts[1:]) >= 0.95 * possible


def test_counts_of_a_message_mean_what_they_say(gguf_model: ModelShelf, tmp_path: Path):
    def ask(claude, words, **extra):
        usage = claude.messages.create(
            model="any",
            max_tokens=4,
            messages=[{"role": "user", "content": words}],
            extra_body={"temperature": 0, **extra},
        ).usage
        return (
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            usage.input_tokens,
        )

    config = config_of(gguf_model("llama"), tmp_path / "kv", "chatml")
    with clients(config) as (_, claude):
        first = ask(claude, "Rain? " * 40)
        prompt = sum(first)
        assert first == (0, prompt // 64 * 64, prompt % 64)
        again = ask(claude, "Rain? " * 40)
        assert again == (prompt // 64 * 64, 0, prompt % 64)
        longer = ask(claude, "Rain? " * 40 + "Snow! " * 30)
        assert longer[0] >= prompt // 64 * 64 - 64
        assert longer[0] + longer[1] == sum(longer) // 64 * 64
        for extra in ({"cache_store": False}, {"cache_prompt": False}):
            other = ask(claude, f"{extra} " * 20, **extra)
            assert other[:2] == (0, 0)
            assert other[2] > 128
    with clients(config) as (_, claude):
        assert ask(claude, "Rain? " * 40)[0] == prompt // 64 * 64

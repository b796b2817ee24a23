"""Conversations of agents, read or made up, and what a cache that forgets nothing would reuse."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from spillcache.cli.bench_prompts import sentences
from spillcache.errors import ConfigError

Tokens = list[int]


class Tokenize(Protocol):
    """Token ids of a text; ``first``: it begins a prompt."""

    def __call__(self, text: str, *, first: bool) -> Tokens: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client sends: a whole prompt, or (``goes_on``) what it adds to the last prompt and
    its answer.
    """

    tokens: Tokens
    goes_on: bool = False

    def prompt(self, before: Tokens) -> Tokens:
        """The tokens to send; ``before``: the conversation's last prompt and its answer."""
        return before + self.tokens if self.goes_on else self.tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    turns: list[Turn]


def read_traces(paths: Sequence[Path], tokenize: Tokenize, most_tokens: int) -> list[Conversation]:
    """A conversation per session, its turns by time; each turn is a whole prompt, as agents send
    them. Prompts of more than ``most_tokens`` tokens are left out, and so is what follows them.

    Raises ConfigError for a file that is no such trace.
    """
    sessions: dict[str, list[tuple[int, str]]] = {}
    for path in paths:
        try:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            for row in rows:
                turn = (int(row["timestamp"]), str(row["input"]))
                sessions.setdefault(str(row["session_id"]), []).append(turn)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--trace: {path} can't be read: {error}") from error
    out = []
    for name, texts in sessions.items():
        turns: list[Turn] = []
        for _, text in sorted(texts):
            tokens = tokenize(text, first=True)
            if len(tokens) > most_tokens:
                break
            turns.append(Turn(tokens))
        out.append(Conversation(name, turns))
    return out


def make_trace(
    tokenize: Tokenize, conversations: int, turns: int, words: int
) -> list[Conversation]:
    """Agents that share a system prompt of ``words`` words; each goes on from its own answers, but
    the last forgets one, as clients do that drop what a model thought.
    """
    system = tokenize(
        "You are one of several agents." + sentences(random.Random(0), words), first=True
    )
    out = []
    for number in range(conversations):
        source = random.Random(1 + number)
        task = tokenize(f"\nTask {number}." + sentences(source, words // 2), first=False)
        prompt, drops = system + task, number == conversations - 1
        steps = [Turn(prompt)]
        for step in range(1, turns):
            text = f"\nOutput {step}." + sentences(source, words // 3)
            seen = tokenize(text, first=False)
            prompt = prompt + seen
            steps.append(Turn(prompt) if drops else Turn(seen, goes_on=True))
        out.append(Conversation(f"made-{number}", steps))
    return out


def interleaved(conversations: Sequence[Conversation]) -> Iterator[tuple[Conversation, Turn]]:
    """One turn of each, then the next turn of each, and so on."""
    for step in range(max(len(each.turns) for each in conversations)):
        for each in conversations:
            if step < len(each.turns):
                yield each, each.turns[step]


class Reusable(NamedTuple):
    """How many of a prompt's tokens need not be computed; the last one is in any case."""

    blocks: int
    """Whole blocks only."""
    turns: int
    """Blocks, or all that a slot held after a turn that the prompt goes on from: what can be kept,
    for state within a block is that of one sequence of calls.
    """
    tokens: int
    """Every token that was ever seen there."""


class Unlimited:
    """A cache that keeps everything for ever."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._held: list[Tokens] = []

    def reuse(self, prompt: Tokens) -> Reusable:
        """What of ``prompt`` it would reuse."""
        common = [(shared(prompt, held), len(held)) for held in self._held]
        longest = max((count for count, _ in common), default=0)
        blocks = longest // self._size * self._size
        whole = (count for count, length in common if count == length < len(prompt))
        turns = max(blocks, max(whole, default=0))
        return Reusable(*(min(count, len(prompt) - 1) for count in (blocks, turns, longest)))

    def keep(self, held: Tokens) -> None:
        """What a slot holds after a turn."""
        self._held.append(held)


def shared(one: Tokens, other: Tokens) -> int:
    """How many leading tokens are the same."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

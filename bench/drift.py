"""Does a conversation that comes back as text keep its tokens, over a restart too?

An agent's session is replayed: its first prompt is the user's, and what each later prompt adds is a
tool's result. The answers are the model's own, drawn at random, and go back as text, as chat
clients send them. It counts the prompt tokens that were reused, against a client that appends to a
list of tokens and never makes text of them; and, by tokenising each prompt again, how many a server
would have reused that does just that. Halfway the server is restarted. The last line of stdout is
JSON.
"""

import argparse
import json
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from command import run

from spillcache.cli.bench_report import machine_facts, tell
from spillcache.cli.bench_server import HOST, BenchServer
from spillcache.errors import BenchError, ConfigError

KEPT_MIN = 0.95
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
_MADE = "Result {number}: the build has {number} warnings in src/part{number}.c. "


@dataclass(frozen=True)
class Said:
    """One turn, as the client saw it. ``text_tokens``: what the prompt's text gives."""

    prompt_tokens: int
    cached: int
    answer: Sequence[int]
    text_tokens: Sequence[int]
    parted: Any


def session(path: Path | None, turns: int) -> list[str]:
    """What is new in each prompt of the longest session of a trace, or of a made-up one."""
    if path is None:
        return [_MADE.format(number=number) * 40 for number in range(turns)]
    sessions: dict[str, list[tuple[int, str]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        sessions.setdefault(row["session_id"], []).append((row["timestamp"], row["input"]))
    if not sessions:
        raise ConfigError(f"{path}: there is no session")
    prompts = [text for _, text in sorted(max(sessions.values(), key=len))]
    new = [prompts[0]]
    new += [after[shared(before, after) :] or after[-400:] for before, after in pairwise(prompts)]
    return [new[number % len(new)] for number in range(turns)]


def shared(before: Sequence[Any], after: Sequence[Any]) -> int:
    """How many leading items are the same."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(before), len(after)))


class Client:
    """A chat client that keeps texts."""

    def __init__(self, answer_tokens: int, temperature: float) -> None:
        self.messages: list[dict[str, Any]] = []
        self._sampling = {"max_tokens": answer_tokens, "temperature": temperature}
        self._sampling |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # as OpenAI's, from all tokens

    def turn(self, server: BenchServer, number: int, text: str) -> Said:
        """Say ``text``, as the user first and then as a tool, and take the answer."""
        role = {"role": "tool", "tool_call_id": f"call_{number}"} if number else {"role": "user"}
        self.messages.append({**role, "content": text})
        chat = {"messages": self.messages, "tools": [TOOL]}
        prompt = post(server, "/apply-template", chat)["prompt"]
        tokens = post(server, "/tokenize", {"content": prompt})["tokens"]
        wanted = {**self._sampling, "seed": number, "return_tokens": True}
        answer = post(server, "/v1/chat/completions", {**chat, **wanted})
        self.messages.append(answer["choices"][0]["message"])
        usage = answer["usage"]
        return Said(
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            answer["tokens"],
            tokens,
            answer["timings"]["parted"],
        )


def post(server: BenchServer, path: str, body: Any) -> Any:
    """The JSON that the server answers."""
    request = urllib.request.Request(
        f"http://{HOST}:{server.port}{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        if response.status != 200:
            raise BenchError(f"{path} answered {response.status}")
        return json.loads(response.read())


def replayed(args: argparse.Namespace, work: Path) -> Iterator[Said]:
    """The turns, on two servers one after the other, over one cache."""
    flags = ["-m", args.model, "-c", str(args.context), "--cache-disk", str(work / "kv")]
    flags += ["--cache-restore", "always", "-t", str(args.threads)] if args.threads else []
    texts, client = session(args.trace, args.turns), Client(args.answer_tokens, args.temperature)
    half = len(texts) // 2
    for first, part in ((0, texts[:half]), (half, texts[half:])):
        with BenchServer(flags, work / "log") as server:
            for number, text in enumerate(part, first):
                said = client.turn(server, number, text)
                tell(f"turn {number + 1}: {said.prompt_tokens} tokens, {said.cached} cached")
                yield said
            server.stop()


def report_of(said: Sequence[Said]) -> dict[str, Any]:
    """Tokens that were reused, and that might have been."""
    possible = kept = without = 0
    for before, after in pairwise(said):
        # The last token of an answer is never computed.
        possible += before.prompt_tokens + len(before.answer) - 1
        kept += after.cached
        without += shared([*before.text_tokens, *before.answer[:-1]], after.text_tokens)
    return {
        "bench": "drift",
        "turns": len(said),
        "prompt_tokens": sum(each.prompt_tokens for each in said),
        "possible_tokens": possible,
        "kept_tokens": kept,
        "kept_share": round(kept / possible, 4),
        "kept_by_text_share": round(without / possible, 4),
        "parted": [each.parted for each in said if each.parted is not None],
    }


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-") as work:
        report = report_of(list(replayed(args, Path(work))))
    report |= {"trace": args.trace.name if args.trace else "made", "model": args.model}
    passed = report["kept_share"] >= KEPT_MIN
    print(json.dumps(report | machine_facts() | {"passed": passed}))
    return 0 if passed else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--trace", type=Path, help="default: a made-up session")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0, help="the higher, the odder")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

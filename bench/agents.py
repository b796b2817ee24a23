"""Do agents' conversations go on after a restart as if nothing had happened, and at what price?

Several conversations take turns on a server with one slot, each turn in another's place; in the
middle the server is restarted. It counts the prompt tokens that were reused, against a cache that
forgets nothing; the bytes that the server wrote, against the distinct state that there is and
against a snapshot of the whole slot after each turn; and compares every answer, token by token,
with those of conversations that never leave their slot: there each has a server to itself, with the
cache off. The last line of stdout is JSON.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_trace import (
    Conversation,
    Reusable,
    Tokens,
    Unlimited,
    interleaved,
    make_trace,
    read_traces,
)
from command import run
from process import written_bytes

from spillcache.cache.policy import needed
from spillcache.chain import BlockHash, Chain, block_hash
from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_report import machine_facts, tell
from spillcache.cli.bench_server import BenchServer, drop_page_cache
from spillcache.cli.model_path import find_model
from spillcache.config import EngineConfig, StoreConfig, format_size
from spillcache.engine.base import Engine
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.state import Geometry
from spillcache.store.block_store import BlockStore

WRITTEN_MAX = 1.2
REUSED_MIN = 0.95


@dataclass(slots=True)
class Asked:
    """One request under test."""

    conversation: str
    prompt: Tokens
    answer: Answer
    reusable: Reusable
    """By a cache that forgets nothing."""

    @property
    def held(self) -> Tokens:
        """What the slot holds afterwards: the last token of an answer is never decoded."""
        return self.prompt + list(self.answer.tokens[:-1])


@dataclass(slots=True)
class Run:
    """What the server under test did, before and after its restart."""

    before: list[Asked] = field(default_factory=list)
    after: list[Asked] = field(default_factory=list)
    written_bytes: int = 0

    @property
    def asked(self) -> list[Asked]:
        return self.before + self.after


@dataclass(frozen=True, slots=True)
class State:
    """The distinct state of all turns, as it lies in the store."""

    raw_bytes: int
    stored_bytes: int
    snapshot_bytes: int
    """The state of the whole slot, after each turn, added up."""
    blocks: int
    missing_blocks: int


class Harness:
    """A model, the conversations, and a directory for it all."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self._model = find_model(args.model)
        self._answer_tokens = args.answer_tokens
        self._log = work / "server.log"
        self.cache = work / "cache"
        engine = LlamaEngine(EngineConfig(self._model, context_tokens=512))
        self.geometry = engine.geometry
        self.conversations = _conversations(args, engine)
        engine.close()
        self._flags = ["--model", str(self._model), "--flash-attn", "on"]
        most = args.prompt_tokens + 8 * (args.answer_tokens + 1)
        self._flags += ["--ctx-size", str((most // 256 + 1) * 256), "--parallel", "1"]
        if args.threads:
            self._flags += ["--threads", str(args.threads)]

    def run(self) -> Run:
        """All turns in turns, with a restart when half of them are answered."""
        steps = list(interleaved(self.conversations))
        half, before = len(steps) // 2, written_bytes()
        run, unlimited, held = Run(), Unlimited(self.geometry.block_tokens), dict[str, Tokens]()
        flags = [*self._flags, "--cache-disk", str(self.cache)]
        for part, out in ((steps[:half], run.before), (steps[half:], run.after)):
            drop_page_cache(self.cache / "segments")
            with BenchServer(flags, self._log) as server:
                for conversation, turn in part:
                    last = held.get(conversation.name, [])
                    prompt = turn.prompt(last)
                    answer = server.client.complete(prompt, self._answer_tokens)
                    asked = Asked(conversation.name, prompt, answer, unlimited.reuse(prompt))
                    out.append(asked)
                    held[conversation.name] = prompt + list(answer.tokens)
                    unlimited.keep(asked.held)
                    _tell_asked(asked, len(run.asked), len(steps))
                server.stop()
        run.written_bytes = written_bytes() - before
        return run

    def live(self) -> dict[str, list[Answer]]:
        """Every conversation on a server of its own that keeps nothing but its one slot."""
        out: dict[str, list[Answer]] = {}
        for conversation in self.conversations:
            answers: list[Answer] = []
            last: Tokens = []
            with BenchServer([*self._flags, "--cache-ram", "0"], self._log) as server:
                for turn in conversation.turns:
                    prompt = turn.prompt(last)
                    answers.append(server.client.complete(prompt, self._answer_tokens))
                    last = prompt + list(answers[-1].tokens)
                server.stop()
            out[conversation.name] = answers
            tell(f"live: {conversation.name}, {len(answers)} turns")
        return out


def _conversations(args: argparse.Namespace, engine: Engine) -> list[Conversation]:
    def tokenize(text: str, *, first: bool) -> Tokens:
        return engine.tokenize(text, add_special=first, parse_special=False)

    if not args.trace:
        return make_trace(tokenize, args.conversations, args.turns or 4, args.words)
    found = read_traces(args.trace, tokenize, args.prompt_tokens)
    most = args.turns or max(len(each.turns) for each in found)
    return [Conversation(each.name, each.turns[:most]) for each in found if each.turns]


def state_of(cache: Path, geometry: Geometry, asked: Sequence[Asked]) -> State:
    """Look every block of every turn up in the store, and the tail that a turn ended with: one that
    has made room for later ones is state no more.
    """
    raw = stored = snapshots = missing = blocks = 0
    seen: set[BlockHash] = set()
    with BlockStore.open(StoreConfig(cache)) as store:
        (info,) = store.namespaces()
        for each in asked:
            chain = Chain(info.namespace, geometry.block_tokens, each.held)
            hashes = [*chain.hashes, *tail_of(chain)]
            found = store.find(info.namespace.id, hashes, geometry.parts)
            for index, (block, entries) in enumerate(zip(hashes, found, strict=True)):
                wanted = needed(geometry, index, len(hashes))
                snapshots += sum(e.raw_bytes for part, e in entries.items() if part in wanted)
                if block not in seen:
                    raw += sum(entry.raw_bytes for entry in entries.values())
                    stored += sum(entry.stored_bytes for entry in entries.values())
                    missing += not entries and index < chain.blocks
                    blocks += index < chain.blocks
                    seen.add(block)
    return State(raw, stored, snapshots, blocks, missing)


def tail_of(chain: Chain) -> list[BlockHash]:
    """The name of what follows the last whole block, if anything does."""
    tokens = chain.tokens[chain.blocks * chain.block_tokens :]
    return [block_hash(chain.parent(chain.blocks), tokens)] if len(tokens) else []


def report_of(run: Run, state: State, live: dict[str, list[Answer]]) -> dict[str, Any]:
    """The JSON report."""
    same = [_same(run, live, name) for name in live]
    before, after = _reuse(run.before), _reuse(run.after)
    return {
        "bench": "agents",
        "conversations": len(live),
        "requests": len(run.asked),
        "prompt_tokens": sum(len(each.prompt) for each in run.asked),
        "before_restart": before,
        "after_restart": after,
        "reused_share": round(after["reused"] / max(1, after["unlimited_turns"]), 4),
        "written_bytes": run.written_bytes,
        "unique_state_bytes": state.raw_bytes,
        "stored_state_bytes": state.stored_bytes,
        "written_ratio": round(run.written_bytes / state.stored_bytes, 3),
        "snapshot_bytes": state.snapshot_bytes,
        "snapshot_ratio": round(state.snapshot_bytes / run.written_bytes, 2),
        "unique_blocks": state.blocks,
        "missing_blocks": state.missing_blocks,
        "same_answers": sum(sum(each) for each in same),
        "different": [
            f"{name}, turn {turn + 1}"
            for name, each in zip(live, same, strict=True)
            for turn, right in enumerate(each)
            if not right
        ],
    }


def _same(run: Run, live: dict[str, list[Answer]], name: str) -> list[bool]:
    """For each turn, whether the answer is that of the live conversation."""
    answers = [each.answer for each in run.asked if each.conversation == name]
    pairs = zip(answers, live[name], strict=True)
    return [one.tokens == other.tokens for one, other in pairs]


def _reuse(asked: Sequence[Asked]) -> dict[str, Any]:
    tiers: Counter[str] = Counter()
    for each in asked:
        tiers.update(each.answer.sources)
    return {
        "requests": len(asked),
        "prompt_tokens": sum(len(each.prompt) for each in asked),
        "reused": sum(each.answer.cached_tokens for each in asked),
        **{
            f"unlimited_{name}": sum(getattr(each.reusable, name) for each in asked)
            for name in Reusable._fields
        },
        "by_tier": dict(tiers),
    }


def _passed(report: dict[str, Any]) -> bool:
    return (
        report["written_ratio"] <= WRITTEN_MAX
        and report["reused_share"] >= REUSED_MIN
        and not report["different"]
    )


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['requests']} requests of {report['conversations']} conversations, in turns")
    print("                 prompt tokens   reused   unlimited: blocks    turns   any token")
    for name in ("before_restart", "after_restart"):
        part = report[name]
        print(
            f"{name.replace('_', ' '):<16} {part['prompt_tokens']:>13,} {part['reused']:>8,} "
            f"{part['unlimited_blocks']:>19,} {part['unlimited_turns']:>8,} "
            f"{part['unlimited_tokens']:>11,}"
        )
    print(f"reused after the restart: {report['reused_share']:.1%} of what could be")
    print(
        f"written {format_size(report['written_bytes'])} for "
        f"{format_size(report['stored_state_bytes'])} of distinct state "
        f"({format_size(report['unique_state_bytes'])} before compression): "
        f"{report['written_ratio']:.2f} ×"
    )
    print(
        f"a snapshot of the slot after each turn: {format_size(report['snapshot_bytes'])}, "
        f"{report['snapshot_ratio']:.1f} × as much"
    )
    print(f"answers as in a slot that is never left: {report['same_answers']}")
    for each in report["different"]:
        print(f"DIFFERENT: {each}")


def _tell_asked(asked: Asked, number: int, of: int) -> None:
    answer = asked.answer
    sources = ", ".join(f"{count} {tier}" for tier, count in answer.sources.items() if count)
    tell(
        f"{number} of {of}: {asked.conversation}, {len(asked.prompt)} tokens, "
        f"{answer.ttft_ms:.0f} ms, {sources or 'cold'}, possible {asked.reusable.turns}"
    )


def main() -> int:
    args = arguments()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        harness = Harness(args, Path(work))
        run = harness.run()
        state = state_of(harness.cache, harness.geometry, run.asked)
        report = report_of(run, state, harness.live())
    report |= {"trace": [path.name for path in args.trace] or ["made"], "model": args.model}
    report |= {"answer_tokens": args.answer_tokens, "seconds": round(time.monotonic() - began)}
    print_report(report)
    print(json.dumps(report | machine_facts() | {"passed": _passed(report)}))
    return 0 if _passed(report) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--trace", type=Path, nargs="+", default=[], help="default: a made-up one")
    parser.add_argument("--turns", type=int, default=0, help="of each conversation, at most")
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="longer ones are left out")
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--conversations", type=int, default=3, help="of the made-up trace")
    parser.add_argument("--words", type=int, default=300, help="of its system prompt")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="the filesystem to measure")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

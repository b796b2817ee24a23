"""How does it compare with a stock llama-server, on the same model, prompts and settings?

llama-server is the one in the xllamacpp wheel, with its own options as they come (its prompt cache
in RAM is on). Both servers are asked the same over HTTP, in turns; times are from sending a request
to the first token's event. The last line of stdout is JSON.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plot
from command import run

from spillcache.cli.bench_client import Answer
from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_report import format_ms, machine_facts, tell
from spillcache.cli.bench_server import HOST, BenchServer, drop_page_cache
from spillcache.cli.model_path import find_model
from spillcache.errors import BenchError, SpillcacheError

OURS, PEER = "spillcache", "llama-server"
PHASES = {
    "cold": "a prompt that nobody knows",
    "repeat": "the same prompt again, at once",
    "switch": "a prompt that another took the slot from",
    "branch": "the first half of a known prompt, then something new",
    "restart": "a prompt that was asked before a restart",
    "four, first turn": "four clients at once: each a new prompt",
    "four, next turn": "four clients at once: each its prompt again, and more",
}
RESTART_MIN, BRANCH_MIN, SLOWER_MAX, DECODE_MIN = 50.0, 10.0, 1.3, 0.9
CLIENTS = 4
_NEW_TOKENS = 60
_ROOM_TOKENS = 320
_SHORT_TOKENS = 100
_OUR_INSTRUCTIONS = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
_PEER_INSTRUCTIONS = "import xllamacpp; print(xllamacpp.get_system_info())"


class PeerServer(BenchServer):
    """A llama-server in a process of its own; flags: those of ``serve_peer``."""

    def _command(self) -> list[str]:
        command = [sys.executable, __file__, "--serve-peer", *self._flags]
        return [*command, "--port", str(self.port)]


def serve_peer(args: argparse.Namespace) -> None:
    """Be a llama-server until SIGTERM."""
    import xllamacpp  # noqa: PLC0415 — only in the child

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel, params.n_ubatch = args.ctx_size, args.parallel, args.ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.hostnames, params.port = [HOST], args.port
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    server = xllamacpp.Server(params)
    over.wait()
    del server  # ends its threads


class Sides:
    """Both servers, their cache and what they answered, by phase."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self._model = str(find_model(args.model))
        self._args, self._work = args, work
        self._turn = 0
        self.answers: dict[str, dict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def start(self, context: int, parallel: int) -> dict[str, BenchServer]:
        """Both with the same settings, ours with a disk."""
        args = self._args
        common = ["--model", self._model, "--ctx-size", str(context), "--parallel", str(parallel)]
        common += ["--threads", str(args.threads), "--ubatch", str(args.ubatch)]
        peer = PeerServer(common, self._work / "peer.log")
        cache = self._work / f"cache-{parallel}"
        drop_page_cache(cache / "segments")
        ours_flags = [flag.replace("--ubatch", "--ubatch-size") for flag in common]
        ours_flags += ["--flash-attn", "on", "--cache-disk", str(cache)]
        return {OURS: BenchServer(ours_flags, self._work / "ours.log"), PEER: peer}

    def with_both(
        self, context: int, parallel: int, work: Callable[[dict[str, BenchServer]], None]
    ) -> None:
        """Do ``work`` while both run."""
        servers = self.start(context, parallel)
        with servers[OURS], servers[PEER]:
            warm_up = PromptMaker(servers[OURS].client.tokenize).prompt(32)
            for server in servers.values():
                server.client.complete(warm_up, 2)
            work(servers)
            for server in servers.values():
                server.stop()

    def ask(
        self, servers: dict[str, BenchServer], phase: str, prompt: list[int], tokens: int = 2
    ) -> None:
        """Both the same, one after the other, each first every other time."""
        self._turn += 1
        names = list(servers) if self._turn % 2 else list(servers)[::-1]
        for name in names:
            answer = servers[name].client.complete(prompt, tokens)
            self.answers[phase][name].append(answer)
            tell(f"{phase}, {name}: {answer.ttft_ms:.1f} ms, {answer.cached_tokens} reused")

    def ask_at_once(
        self, servers: dict[str, BenchServer], phase: str, prompts: Sequence[list[int]], tokens: int
    ) -> None:
        """All prompts at once, to one server, then to the other."""
        for name, server in servers.items():
            out: list[Answer | BaseException] = []

            def ask(prompt: list[int], server: BenchServer = server, out: list[Any] = out) -> None:
                try:
                    out.append(server.client.complete(prompt, tokens))
                except (SpillcacheError, OSError) as error:
                    out.append(error)

            threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.seconds[name].append(time.perf_counter() - began)
            for answer in out:
                if isinstance(answer, BaseException):
                    raise BenchError(f"{phase}, {name}: {answer}")
                self.answers[phase][name].append(answer)
            tell(f"{phase}, {name}: all answered after {self.seconds[name][-1]:.2f} s")


def one_slot(sides: Sides, args: argparse.Namespace) -> None:
    """All that one client does."""
    length, prompts = args.prompt_tokens, list[list[int]]()

    def first_life(servers: dict[str, BenchServer]) -> None:
        maker = PromptMaker(servers[OURS].client.tokenize)
        maker.prompt(32)  # the warm-up's
        for _ in range(args.repeat):
            prompts.append(maker.prompt(length))
            sides.ask(servers, "cold", prompts[-1])
        if len(prompts) == 1:  # something must take the slot
            sides.ask(servers, "between", maker.prompt(length))
        for prompt in prompts:
            sides.ask(servers, "switch", prompt)
            sides.ask(servers, "repeat", prompt)
            short = maker.prompt(_SHORT_TOKENS)
            sides.ask(servers, "decode", short, args.answer_tokens)
        for prompt in prompts:
            sides.ask(servers, "switch", prompt)
            sides.ask(servers, "branch", prompt[: length // 2] + maker.prompt(_NEW_TOKENS))

    context = length + _ROOM_TOKENS
    sides.with_both(context, 1, first_life)
    for prompt in prompts:
        sides.with_both(context, 1, lambda both, prompt=prompt: sides.ask(both, "restart", prompt))


def four_clients(sides: Sides, args: argparse.Namespace) -> None:
    """Two turns of four clients at once, on servers with four slots."""
    length = args.client_tokens

    def turns(servers: dict[str, BenchServer]) -> None:
        maker = PromptMaker(servers[OURS].client.tokenize)
        maker.prompt(32)
        prompts = [maker.prompt(length) for _ in range(CLIENTS)]
        longer = [prompt + maker.prompt(_NEW_TOKENS) for prompt in prompts]
        sides.ask_at_once(servers, "four, first turn", prompts, args.answer_tokens)
        sides.ask_at_once(servers, "four, next turn", longer, args.answer_tokens)

    sides.with_both(CLIENTS * (length + args.answer_tokens + _ROOM_TOKENS), CLIENTS, turns)


def rate(answer: Answer, tokens: int) -> float:
    """Tokens per second after the first."""
    return 1e3 * (tokens - 1) / (answer.total_ms - answer.ttft_ms)


def report_of(
    answers: dict[str, dict[str, list[Answer]]], seconds: dict[str, list[float]], tokens: int
) -> dict[str, Any]:
    """The JSON report; ``tokens``: of each answer in phase "decode"."""
    rows = [_row(phase, answers[phase]) for phase in PHASES]
    faster = {row["phase"]: row["faster"] for row in rows}
    decode = {
        name: statistics.median(rate(answer, tokens) for answer in each)
        for name, each in answers["decode"].items()
    }
    return {
        "bench": "peers",
        "rows": rows,
        "restart_speedup": faster["restart"],
        "branch_speedup": faster["branch"],
        "repeat_ratio": round(1 / faster["repeat"], 3),
        "switch_ratio": round(1 / faster["switch"], 3),
        "decode_tokens_per_s": {name: round(each, 1) for name, each in decode.items()},
        "decode_ratio": round(decode[OURS] / decode[PEER], 3),
        "four_clients_s": {name: round(sum(each), 2) for name, each in seconds.items()},
    }


def _row(phase: str, answers: dict[str, list[Answer]]) -> dict[str, Any]:
    ours, peer = (statistics.median(a.ttft_ms for a in answers[name]) for name in (OURS, PEER))
    return {
        "phase": phase,
        "spillcache_ms": round(ours, 2),
        "llama_server_ms": round(peer, 2),
        "faster": round(peer / ours, 3),
        "spillcache_reused": min(answer.cached_tokens for answer in answers[OURS]),
        "llama_server_reused": min(answer.cached_tokens for answer in answers[PEER]),
        "repetitions": len(answers[OURS]),
    }


def missed(report: dict[str, Any]) -> list[str]:
    """Which bars were not reached."""
    bars = {
        f"restart at least {RESTART_MIN:.0f} × faster": report["restart_speedup"] >= RESTART_MIN,
        f"branch at least {BRANCH_MIN:.0f} × faster": report["branch_speedup"] >= BRANCH_MIN,
        f"repeat within {SLOWER_MAX} ×": report["repeat_ratio"] <= SLOWER_MAX,
        f"switch within {SLOWER_MAX} ×": report["switch_ratio"] <= SLOWER_MAX,
        f"decode at least {DECODE_MIN} ×": report["decode_ratio"] >= DECODE_MIN,
    }
    return [name for name, reached in bars.items() if not reached]


def print_report(report: dict[str, Any]) -> None:
    print(f"{'time to first token':<20} {OURS:>12} {PEER:>14}   faster   tokens reused")
    for row in report["rows"]:
        print(
            f"{row['phase']:<20} {format_ms(row['spillcache_ms']):>12} "
            f"{format_ms(row['llama_server_ms']):>14} {row['faster']:>7.2f}×   "
            f"{row['spillcache_reused']} and {row['llama_server_reused']}"
        )
    decode, four = report["decode_tokens_per_s"], report["four_clients_s"]
    print(f"decode: {decode[OURS]} and {decode[PEER]} tokens/s, {report['decode_ratio']} ×")
    print(f"four clients, two turns each: {four[OURS]} and {four[PEER]} s")
    for phase, meaning in PHASES.items():
        print(f"{phase}: {meaning}")
    for name in (OURS, PEER):
        print(f"{name} was built for: {report['instructions'][name]}")
    print("So compile flags may differ, and cold prompts and decoding with them.")
    for name in missed(report):
        print(f"MISSED: {name}")


def instructions(code: str) -> str:
    """What a build of the library says of itself; in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise BenchError(f"{' '.join(last)}; run: pip install 'spillcache[bench]'")
    words = done.stdout.split(":", 1)[-1].split("|")
    return " ".join(word.split("=")[0].strip() for word in words if word.strip())


def main() -> int:
    args = arguments()
    if args.serve_peer:
        serve_peer(args)
        return 0
    plot.check(args.plot)
    builds = {OURS: instructions(_OUR_INSTRUCTIONS), PEER: instructions(_PEER_INSTRUCTIONS)}
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        sides = Sides(args, Path(work))
        one_slot(sides, args)
        four_clients(sides, args)
    report = report_of(sides.answers, sides.seconds, args.answer_tokens)
    report |= {"instructions": builds, "model": args.model, "prompt_tokens": args.prompt_tokens}
    report |= {"client_tokens": args.client_tokens, "threads": args.threads}
    print_report(report)
    if args.plot:
        rows = report["rows"]
        series = {
            name: [row[f"{name.replace('-', '_')}_ms"] for row in rows] for name in (OURS, PEER)
        }
        title = f"Time to first token, {args.model}, {args.prompt_tokens} tokens"
        plot.bars(args.plot, title, "milliseconds", [row["phase"] for row in rows], series)
    print(json.dumps(report | machine_facts() | {"missed": missed(report)}))
    return 1 if missed(report) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--client-tokens", type=int, default=1024, help="of each of four clients")
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3, help="prompts, and restarts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--plot", type=Path, help="a PNG")
    parser.add_argument("--directory", type=Path, help="the filesystem to measure")
    for name in ("--ctx-size", "--parallel", "--port"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

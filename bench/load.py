"""Does the server hold under far more clients than it has slots?

Many clients at once, each on a connection of its own, ask for streams again and again: prompts that
share beginnings, prompts that nobody else asks, and some leave before the end. The queue holds less
than there are clients, so that some are sent away: by 429 with ``Retry-After``, and by nothing
else; they come again as it says. Every stream must end with all its tokens and ``[DONE]``. The
server's resident size is looked at throughout: it must be flat from the middle, when its tiers are
full, to the end. The last line of stdout is JSON.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command import run
from process import anonymous_bytes, descriptors, threads

from spillcache.cli.bench_report import machine_facts
from spillcache.cli.bench_server import HOST, BenchServer
from spillcache.config import MIB, format_size

ANSWER_TOKENS = 16
PROMPT_TOKENS = (80, 400)
LEAVE_SHARE = 0.05
GROWTH_MAX_BYTES = 16 * MIB
_SAMPLE_S = 1.0
_SHARED = 16
"""So many beginnings are shared."""


@dataclass
class World:
    """What all clients know and count."""

    port: int
    until: float
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        self.counts["errors"] += 1
        if len(self.errors) < 10:
            self.errors.append(what)


class Client:
    """One of many; event loop."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = random.Random(number)

    async def run(self) -> None:
        while time.monotonic() < self._world.until:
            try:
                wait_s = await self._ask()
            except (OSError, asyncio.IncompleteReadError, ValueError, TimeoutError) as error:
                self._world.wrong(f"{type(error).__name__}: {error}")
                wait_s = 1.0
            await asyncio.sleep(wait_s)

    def _prompt(self) -> list[int]:
        shared = random.Random(self._random.randrange(_SHARED))
        count = self._random.randint(*PROMPT_TOKENS)
        own = self._random.randint(1, count - 1)
        tokens = [shared.randrange(5, 500) for _ in range(count - own)]
        return [1, *tokens, *(self._random.randrange(5, 500) for _ in range(own))]

    async def _ask(self) -> float:
        """One request; how long to wait before the next."""
        body = json.dumps(
            {
                "prompt": self._prompt(),
                "max_tokens": ANSWER_TOKENS,
                "stream": True,
                "ignore_eos": True,
                "return_tokens": True,
            }
        ).encode()
        reader, writer = await asyncio.open_connection(HOST, self._world.port)
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            began = time.monotonic()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            if status == 429:
                return await self._sent_away(head)
            if status != 200:
                self._world.wrong(f"{status}: {(await reader.read(300))!r}")
                return 1.0
            await self._read_stream(reader, began)
            return 0.0
        finally:
            writer.close()

    async def _sent_away(self, head: str) -> float:
        fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if line)
        if not fields.get("retry-after", "").isdigit():
            self._world.wrong(f"429 without Retry-After: {head!r}")
            return 1.0
        self._world.counts["sent_away"] += 1
        self._world.retries.append(int(fields["retry-after"]))
        return int(fields["retry-after"]) * (0.5 + self._random.random())

    async def _read_stream(self, reader: asyncio.StreamReader, began: float) -> None:
        """Count the tokens of the events until the end; some clients leave before."""
        leave = self._random.random() < LEAVE_SHARE
        tokens, last = 0, b""
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            last = line[6:].strip()
            if last == b"[DONE]":
                break
            event = json.loads(last)
            if "error" in event:
                self._world.wrong(f"in a stream: {event['error']}")
                return
            if not tokens:
                self._world.ttft_s.append(time.monotonic() - began)
            tokens += len(event.get("tokens") or ())
            if leave and tokens > 2:
                self._world.counts["left"] += 1
                return
        if last != b"[DONE]" or tokens != ANSWER_TOKENS:
            self._world.wrong(f"a stream ended with {tokens} tokens and {last[:100]!r}")
            return
        self._world.counts["answered"] += 1


class Samples(threading.Thread):
    """The server's anonymous memory, threads and descriptors, each second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.memory: list[int] = []
        self.descriptors_max = self.threads_max = 0

    def run(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.memory.append(anonymous_bytes(self._pid))
            self.descriptors_max = max(self.descriptors_max, descriptors(self._pid))
            self.threads_max = max(self.threads_max, threads(self._pid))

    def stop(self) -> None:
        self._over.set()
        self.join()

    def part(self, begin: float, end: float) -> int:
        """The median of a part of the run, from 0 to 1."""
        count = len(self.memory)
        part = self.memory[int(begin * count) : max(int(end * count), int(begin * count) + 1)]
        return int(statistics.median(part)) if part else 0


async def clients(world: World, count: int) -> None:
    await asyncio.gather(*(Client(world, number).run() for number in range(count)))


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-") as place:
        work = Path(place)
        flags = ["-m", str(model(work)), "-np", str(args.slots), "-c", str(1024 * args.slots)]
        flags += ["-t", "1", "--queue-limit", str(args.queue_limit), "--log-level", "warning"]
        flags += ["--cache-ram", "256MiB", "--cache-disk", str(work / "cache")]
        flags += ["--cache-disk-size", "256MiB", "--cache-disk-min-free", "0"]
        with BenchServer(flags, work / "log") as server:
            world = World(server.port, time.monotonic() + args.seconds)
            samples = Samples(server.pid)
            samples.start()
            asyncio.run(clients(world, args.clients))
            samples.stop()
            time.sleep(1)
            left = descriptors(server.pid)
            server.stop()
        log = (work / "log").read_text()
    report = report_of(world, samples, args) | {"descriptors_after": left}
    for line in itertools.chain(world.errors, log.splitlines()[-5:]):
        print(line)
    print(
        f"{report['answered']} answered, {report['sent_away']} sent away, {report['left']} left, "
        f"{report['errors']} errors; first token {report['ttft_p50_s']} s (p50), "
        f"{report['ttft_p99_s']} s (p99)"
    )
    sizes = (report[f"rss_{part}_bytes"] for part in ("start", "middle", "end"))
    print("anonymous memory:", ", ".join(map(format_size, sizes)))
    bad = missed(report)
    for name in bad:
        print(f"MISSED: {name}")
    print(json.dumps(report | machine_facts()))
    return 1 if bad else 0


def report_of(world: World, samples: Samples, args: argparse.Namespace) -> dict[str, Any]:
    counts, times = world.counts, sorted(world.ttft_s) or [0.0]
    return {
        "bench": "load",
        "clients": args.clients,
        "slots": args.slots,
        "queue_limit": args.queue_limit,
        "seconds": args.seconds,
        "answered": counts["answered"],
        "sent_away": counts["sent_away"],
        "left": counts["left"],
        "errors": counts["errors"],
        "ttft_p50_s": round(times[len(times) // 2], 3),
        "ttft_p99_s": round(times[int(0.99 * (len(times) - 1))], 3),
        "rss_start_bytes": samples.part(0, 0.1),
        "rss_middle_bytes": samples.part(0.45, 0.55),
        "rss_end_bytes": samples.part(0.9, 1.0),
        "rss_growth_bytes": samples.part(0.9, 1.0) - samples.part(0.45, 0.55),
        "rss_bytes": [samples.part(tenth / 10, (tenth + 1) / 10) for tenth in range(10)],
        "descriptors_max": samples.descriptors_max,
        "threads_max": samples.threads_max,
    }


def missed(report: dict[str, Any]) -> list[str]:
    """What should not be."""
    checks = {
        "errors": report["errors"] == 0,
        "nothing was answered": report["answered"] > 0,
        "nobody was sent away: the queue was never full": report["sent_away"] > 0,
        "memory grows": report["rss_growth_bytes"] <= GROWTH_MAX_BYTES,
        "connections are left": report["descriptors_after"] < report["clients"] // 2,
    }
    return [name for name, good in checks.items() if not good]


def model(directory: Path) -> Path:
    """A tiny model that the tests' writer makes; wide KV, so that the RAM tier is soon full."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from models import ModelShelf  # noqa: PLC0415 — the path is only known now

    return ModelShelf(directory)("llama", n_head_kv=4, head_dim=128)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--queue-limit", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

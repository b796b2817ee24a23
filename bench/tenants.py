"""Can one tenant tell by the clock whether another has used a prompt?

A victim asks prompts. A prober, with another API key or another ``cache_salt``, then asks each of
them, and in between as many that nobody ever asked, in random order; how long each answer takes is
all that it sees. Once the victim's state is live when the prober asks (the victim asks right
before), once it lies in RAM and on disk (all was asked before, and flushed). A two-sample test says
whether the prober's times for used and for unused prompts differ. What tells this from a test that
sees nothing: where the prober has the victim's own key and salt, it must see it. The last line of
stdout is JSON.
"""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import run
from two_samples import Verdict, mann_whitney

from spillcache.cli.bench_report import machine_facts
from spillcache.cli.bench_server import HOST, BenchServer
from spillcache.errors import BenchError

P_MIN = 0.001
"""Below this a difference is no chance: of a thousand honest runs one would be blamed."""
P_SEEN = 1e-6
VOCABULARY = 512
VICTIM, OTHER = ("victim-key", ""), ("other-key", "")
SALTED, OTHER_SALT = ("victim-key", "mine"), ("victim-key", "guess")
Tenant = tuple[str, str]
"""An API key and a salt."""


@dataclass(frozen=True)
class Row:
    """One prober against one victim."""

    kind: str
    where: str
    verdict: Verdict
    used_ms: float
    unused_ms: float
    cached_tokens: int
    """Of the prober's, of prompts that the victim had used."""

    @property
    def control(self) -> bool:
        return self.kind == "same"

    @property
    def good(self) -> bool:
        if self.control:
            return self.verdict.p < P_SEEN and self.cached_tokens > 0
        return self.verdict.p >= P_MIN and self.cached_tokens == 0


class Probe:
    """Asks one server; connections are opened before the clock runs."""

    def __init__(self, port: int, tokens: int, seed: int) -> None:
        self._port, self._tokens = port, tokens
        self._random = random.Random(seed)

    def prompt(self) -> list[int]:
        return [1, *(self._random.randrange(5, VOCABULARY) for _ in range(self._tokens - 1))]

    def ask(self, tenant: Tenant, prompt: list[int]) -> tuple[float, int]:
        """Milliseconds, and the reused tokens."""
        key, salt = tenant
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        if salt:
            body["cache_salt"] = salt
        data, headers = json.dumps(body), {"Authorization": f"Bearer {key}"}
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        with contextlib.closing(connection):
            connection.connect()
            began = time.perf_counter()
            connection.request("POST", "/v1/completions", data, headers)
            answer = connection.getresponse()
            read = answer.read()
            took = 1e3 * (time.perf_counter() - began)
        if answer.status != http.client.OK:
            raise BenchError(f"a probe was answered {answer.status}: {read[:200]!r}")
        usage = json.loads(read)["usage"]
        return took, int(usage["prompt_tokens_details"]["cached_tokens"])

    def flush(self) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=120)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {VICTIM[0]}"}
            connection.request("POST", "/cache/flush", headers=headers)
            connection.getresponse().read()

    def compare(self, kind: str, where: str, victim: Tenant, prober: Tenant, count: int) -> Row:
        """``count`` probes of used prompts and as many of unused ones."""
        used = [self.prompt() for _ in range(count)]
        if where == "kept":
            for prompt in used:
                self.ask(victim, prompt)
            self.flush()
        times: dict[bool, list[float]] = {True: [], False: []}
        cached = 0
        # As often the one first as the other: which comes second may have it easier.
        used_first = [index % 2 == 0 for index in range(count)]
        self._random.shuffle(used_first)
        for prompt, first in zip(used, used_first, strict=True):
            if where == "live":
                self.ask(victim, prompt)
            asked = {True: prompt, False: self.prompt()}
            for is_used, one in ((first, asked[first]), (not first, asked[not first])):
                took, reused = self.ask(prober, one)
                times[is_used].append(took)
                cached += reused if is_used else 0
        verdict = mann_whitney(times[True], times[False])
        medians = (statistics.median(times[True]), statistics.median(times[False]))
        return Row(kind, where, verdict, *medians, cached)


PAIRS = (("keys", VICTIM, OTHER), ("salts", SALTED, OTHER_SALT), ("same", VICTIM, VICTIM))


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-") as place:
        work = Path(place)
        flags = ["-m", str(model(work)), "-np", "4", "-c", "16384", "-t", "1"]
        flags += ["--cache-disk", str(work / "cache"), "--cache-disk-min-free", "0"]
        flags += ["--cache-ram", "256MiB", "--cache-restore", "always", "--log-level", "warning"]
        flags += ["--api-key", f"{VICTIM[0]},{OTHER[0]}", "--cache-isolation", "api-key"]
        with BenchServer(flags, work / "log") as server:
            probe = Probe(server.port, args.prompt_tokens, args.seed)
            for _ in range(20):  # threads, buffers and speeds find their places
                probe.ask(OTHER, probe.prompt())
            rows = [
                probe.compare(kind, where, victim, prober, args.probes)
                for kind, victim, prober in PAIRS
                for where in ("live", "kept")
            ]
            server.stop()
    for row in rows:
        print(
            f"{row.kind:<6} {row.where:<5} used {row.used_ms:6.2f} ms, unused {row.unused_ms:6.2f} "
            f"ms; Mann-Whitney z = {row.verdict.z:+6.2f}, p = {row.verdict.p:.3g}, "
            f"AUC {row.verdict.auc:.3f}; reused {row.cached_tokens:,} tokens"
            f"{'' if row.good else '   MISSED'}"
        )
    print(json.dumps(report(rows, args.probes) | machine_facts()))
    return 0 if all(row.good for row in rows) else 1


def report(rows: list[Row], probes: int) -> dict[str, Any]:
    return {
        "bench": "tenants",
        "probes": probes,
        "rows": [
            {
                "kind": row.kind,
                "where": row.where,
                "used_ms": round(row.used_ms, 3),
                "unused_ms": round(row.unused_ms, 3),
                "z": round(row.verdict.z, 3),
                "p": row.verdict.p,
                "auc": round(row.verdict.auc, 4),
                "cached_tokens": row.cached_tokens,
            }
            for row in rows
        ],
        "good": all(row.good for row in rows),
    }


def model(directory: Path) -> Path:
    """A tiny model that the tests' writer makes."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from models import ModelShelf  # noqa: PLC0415 — the path is only known now

    return ModelShelf(directory)("llama")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=int, default=200, help="of used prompts, and of unused")
    parser.add_argument("--prompt-tokens", type=int, default=257)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

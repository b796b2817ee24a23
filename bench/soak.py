"""Eight clients for minutes, on servers that are stopped and killed under them: is every answer
right, is no request failed by the cache, and does nothing grow?

Clients ask known prompts that share beginnings, go on with conversations, ask prompts that nobody
asks again, and leave before the answer. Servers of several memory kinds follow one another in one
small directory; each ends by SIGTERM or SIGKILL, at any moment. The last one lives longest: there,
whenever all clients pause, its memory, descriptors, threads and pins are looked at.

Answers are judged by the same engine with nothing cached and nobody beside. On a server with one
slot a known prompt's answer must be exactly that. Beside other sequences, and after answers that
were computed token by token, the engine's own sums come out a little different; there every token
must be the likeliest one but for that noise, which is measured first. What tells this from a
look at anything: answers are also held against prompts that differ in one block, and must be found
wrong. The last line of stdout is JSON.
"""

import argparse
import http.client
import itertools
import json
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plot
from command import run
from process import anonymous_bytes, descriptors, threads
from reference import Reference, Tokens, Verdict

from spillcache.cli.bench_report import machine_facts, tell
from spillcache.cli.bench_server import HOST, BenchServer
from spillcache.config import MIB, format_size
from spillcache.errors import BenchError, SpillcacheError
from spillcache.store.view import directory_bytes

ANSWER_TOKENS = 12
CONTEXT_TOKENS = 4096
FAMILIES, VARIANTS = 6, 4
MARGIN = 4.0
"""Times the noise that was seen in a few answers: thousands are judged."""
GROWTH_MAX_BYTES = 24 * MIB
_CHURN_SHARE = 0.55
_LIFE_S = (6.0, 18.0)
_PAUSE_EVERY_S = 15.0
_SAMPLES_MIN = 3
_PINS_S = 10.0
_BACKLOG = 40
_ERRORS = (SpillcacheError, OSError, http.client.HTTPException, ValueError, KeyError)


def known_prompts(vocabulary: int, seed: int) -> list[Tokens]:
    """Families of prompts that share a beginning, cut anywhere; none begins another."""
    source, out = random.Random(seed), []
    for _ in range(FAMILIES):
        shared = random_tokens(source, vocabulary, 130, 600)
        out += [shared + random_tokens(source, vocabulary, 40, 300) for _ in range(VARIANTS)]
    return out


def random_tokens(source: random.Random, vocabulary: int, least: int, most: int) -> Tokens:
    return [source.randrange(5, vocabulary) for _ in range(source.randint(least, most))]


def other_block(prompt: Tokens, block: int, vocabulary: int) -> Tokens:
    """The prompt with one block of other tokens."""
    size = min(64, len(prompt) - 64 * block)
    new = [(token + 1 - 5) % (vocabulary - 5) + 5 for token in prompt[64 * block :][:size]]
    return prompt[: 64 * block] + new + prompt[64 * block + size :]


class Kind:
    """A model, its known prompts, and its judge."""

    def __init__(self, name: str, model: Path) -> None:
        self.name, self.model = name, model
        self.reference = Reference(model, CONTEXT_TOKENS, flash_attention=True)
        self.prompts = known_prompts(self.reference.vocabulary, len(name))
        self._known: dict[int, Tokens] = {}
        few = self.prompts[:: max(1, len(self.prompts) // 4)]
        noises = (self.reference.noise(a, b, ANSWER_TOKENS) for a, b in itertools.pairwise(few))
        self.noise = max(noises)
        self.tried, self.caught = self._sensitivity(few)

    def _sensitivity(self, prompts: list[Tokens]) -> tuple[int, int]:
        """How many answers were held against prompts that differ in a block, and how many of them
        the judge found wrong.
        """
        caught = tried = 0
        for prompt in prompts:
            answer = self.reference.answer(prompt, ANSWER_TOKENS)
            for block in (0, len(prompt) // 128, len(prompt) // 64):
                changed = other_block(prompt, block, self.reference.vocabulary)
                caught += not self.is_right(self.reference.judge(changed, answer), exact=False)
                tried += 1
        return tried, caught

    def is_right(self, verdict: Verdict, *, exact: bool) -> bool:
        return verdict.same if exact else verdict.behind <= MARGIN * self.noise

    def knows(self, number: int, answer: Tokens) -> bool:
        """Whether this is the very answer to a known prompt."""
        if number not in self._known:
            self._known[number] = self.reference.answer(self.prompts[number], ANSWER_TOKENS)
        return answer == self._known[number]


@dataclass(slots=True, eq=False)
class Scene:
    """One server's life."""

    kind: Kind
    slots: int
    server: BenchServer
    down: bool = False
    """We are about to end it, or have: what fails from then on is our doing."""


@dataclass(frozen=True, slots=True)
class Answered:
    """For the judge; ``number``: which known prompt it was."""

    scene: Scene
    prompt: Tokens
    answer: Tokens
    number: int | None


class World:
    """What clients, judge and director share."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._scene: Scene | None = None
        self._paused = False
        self._over = False
        self._active = 0
        self.counts: Counter[str] = Counter()
        self.tiers: Counter[str] = Counter()
        self.notes: list[str] = []
        self.answers: queue.Queue[Answered | None] = queue.Queue()

    def count(self, what: str, note: str = "") -> None:
        with self._changed:
            self.counts[what] += 1
            if note and len(self.notes) < 20:
                self.notes.append(f"{what}: {note}")
                tell(self.notes[-1])

    def enter(self) -> Scene | None:
        """A scene to send a request to, when there is one; None: it is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or (self._scene is not None and not self._paused)
            )
            if self._over:
                return None
            self._active += 1
            return self._scene

    def leave(self) -> None:
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def show(self, scene: Scene) -> None:
        with self._changed:
            self._scene = scene
            self._changed.notify_all()

    def end(self, scene: Scene) -> None:
        """From now on errors are our doing, and nobody begins anything."""
        with self._changed:
            scene.down, self._scene = True, None

    def over(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No client asks anything meanwhile."""
        with self._changed:
            self._paused = True
            if not self._changed.wait_for(lambda: not self._active, 120):
                raise BenchError("a request was not answered for two minutes")
        try:
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()


class Client(threading.Thread):
    """Asks one thing after the other until it is over."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._world = world
        self._source = random.Random(number)
        self._talks: dict[str, Tokens] = {}

    def run(self) -> None:
        while (scene := self._world.enter()) is not None:
            try:
                self._one(scene)
            finally:
                self._world.leave()

    def _one(self, scene: Scene) -> None:
        kind, source, number = scene.kind, self._source, None
        choice = source.random()
        if choice < 0.5:
            number = min(int(source.expovariate(0.15)), len(kind.prompts) - 1)
            prompt = kind.prompts[number]
        elif choice < 0.85:
            prompt = self._next_turn(kind)
        else:
            prompt = random_tokens(source, kind.reference.vocabulary, 60, 700)
        try:
            if source.random() < 0.15:
                leave_early(scene, prompt, source)
                self._world.count("left")
                return
            if source.random() < 0.03 and not flush(scene):
                self._world.count("flushed_in_part")
            answer = scene.server.client.complete(prompt, ANSWER_TOKENS)
        except _ERRORS as error:
            why = f"{kind.name}, {scene.slots} slots: {type(error).__name__}: {error}"
            self._world.count("interrupted" if scene.down else "failed", "" if scene.down else why)
            return
        self._world.count("requests")
        self._world.tiers.update(answer.sources)
        self._world.tiers["computed"] += len(prompt) - answer.cached_tokens
        tokens = list(answer.tokens)
        if 0.5 <= choice < 0.85:
            self._talks[kind.name] = prompt + tokens
        self._world.answers.put(Answered(scene, prompt, tokens, number))

    def _next_turn(self, kind: Kind) -> Tokens:
        """What was said so far, and something new; a new conversation when it has become long."""
        before = self._talks.get(kind.name, [])
        if len(before) > 900:
            before = []
        first = () if before else kind.prompts[self._source.randrange(FAMILIES * VARIANTS)][:150]
        return [*before, *first, *random_tokens(self._source, kind.reference.vocabulary, 10, 90)]


def leave_early(scene: Scene, prompt: Tokens, source: random.Random) -> None:
    """Ask, and hang up at any moment."""
    body = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    body["stream"] = source.random() < 0.8
    connection = http.client.HTTPConnection(HOST, scene.server.port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body).encode())
        if body["stream"] and source.random() < 0.6:
            response = connection.getresponse()
            for _ in range(source.randint(0, 60)):
                response.readline()
            response.close()
        else:
            time.sleep(source.uniform(0, 0.4))
    finally:
        connection.close()


def flush(scene: Scene) -> bool:
    """Have all be written, so that a kill leaves something to be restored; whether all was. A store
    without room says 503.
    """
    connection = http.client.HTTPConnection(HOST, scene.server.port, timeout=120)
    try:
        connection.request("POST", "/cache/flush?timeout_s=5")
        answer = json.loads(connection.getresponse().read())
        return bool(answer["durable"])
    finally:
        connection.close()


def judge(world: World) -> None:
    """Judge what was answered until None comes; a thread of its own."""
    while (item := world.answers.get()) is not None:
        kind, number = item.scene.kind, item.number
        if number is None and world.answers.qsize() > _BACKLOG:
            world.count("not_judged")
        elif number is not None and kind.knows(number, item.answer):
            world.count("judged")
        else:
            judge_one(world, item)


def judge_one(world: World, item: Answered) -> None:
    """An answer that is not known to be right."""
    kind, exact = item.scene.kind, item.scene.slots == 1 and item.number is not None
    where = f"{kind.name}, {item.scene.slots} slots, {len(item.prompt)} tokens"
    world.count("judged")
    if len(item.answer) != ANSWER_TOKENS:
        world.count("wrong", f"{where}: an answer of {len(item.answer)} tokens")
        return
    verdict = kind.reference.judge(item.prompt, item.answer)
    if not kind.is_right(verdict, exact=exact):
        what = "not exact" if exact else "another answer"
        behind = f"{verdict.behind:.3f} behind the likeliest, noise {kind.noise:.3f}"
        world.count("wrong", f"{where}: {what}, {behind}")
    elif not verdict.same:
        world.count("near_ties")


@dataclass(slots=True)
class Sample:
    """What a server takes while nobody asks it anything."""

    second: float
    anonymous_bytes: int
    ram_tier_bytes: int
    pinned: int
    descriptors: int
    threads: int


def sample(server: BenchServer, began: float) -> Sample:
    """Pins may take a moment to go: a reader lets go of them when it has ended."""
    deadline = time.monotonic() + _PINS_S
    while True:
        cache = server.health()["cache"]
        pinned = cache["ram"]["pinned_blocks"] + cache["disk"].get("pinned_blocks", 0)
        if not pinned or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return Sample(
        time.monotonic() - began,
        anonymous_bytes(server.pid),
        cache["ram"]["bytes"],
        pinned,
        descriptors(server.pid),
        threads(server.pid),
    )


def growth(samples: list[Sample]) -> int:
    """By how many bytes memory beyond the RAM tier grew: the median slope of all pairs of samples
    (Theil-Sen), times the time. The first third is not looked at: pools fill there.
    """
    late = samples[len(samples) // 3 :]
    points = [(each.second, each.anonymous_bytes - each.ram_tier_bytes) for each in late]
    slopes = [
        (b - a) / (t - s) for i, (s, a) in enumerate(points) for t, b in points[i + 1 :] if t > s
    ]
    return round(statistics.median(slopes) * (points[-1][0] - points[0][0])) if slopes else 0


@dataclass(slots=True)
class Soak:
    """The director: who lives when, and how it ends."""

    world: World
    kinds: list[Kind]
    work: Path
    quota_bytes: int
    source: random.Random = field(default_factory=lambda: random.Random(7))
    lives: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    most_bytes: int = 0
    pinned: int = 0

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        number = 0
        while (left := began + seconds * _CHURN_SHARE - time.monotonic()) > 0:
            # Each twice in a row, so that the second finds on disk what the first left.
            kind, slots = self.kinds[number // 2 % len(self.kinds)], (1, 4)[number // 2 % 2]
            with self.life(kind, slots) as scene:
                time.sleep(min(left, self.source.uniform(*_LIFE_S), seconds / 10))
                self._end(scene)
            number += 1
        with self.life(self.kinds[1 % len(self.kinds)], 4) as scene:
            born = time.monotonic()
            every = min(_PAUSE_EVERY_S, seconds / 25)
            while time.monotonic() < began + seconds or len(self.samples) < _SAMPLES_MIN:
                time.sleep(every)
                with self.world.pause():
                    self.samples.append(sample(scene.server, born))
                self._look()
            self._stop(scene)

    @contextmanager
    def life(self, kind: Kind, slots: int) -> Iterator[Scene]:
        flags = ["--model", str(kind.model), "--ctx-size", str(CONTEXT_TOKENS)]
        flags += ["--parallel", str(slots), "--threads", "1", "--flash-attn", "on"]
        flags += ["--cache-ram", "256", "--cache-disk", str(self.work / "cache")]
        flags += ["--cache-disk-size", str(self.quota_bytes), "--cache-disk-min-free", "16MiB"]
        # What was computed beside others is not exact, and would not be after it was restored.
        flags += ["--cache-namespace", f"slots-{slots}"]
        with BenchServer(flags, self.work / "server.log") as server:
            scene = Scene(kind, slots, server)
            tell(f"{kind.name}, {slots} slots; {dict(self.world.counts)}")
            self.world.show(scene)
            try:
                yield scene
            finally:
                self.world.end(scene)

    def _end(self, scene: Scene) -> None:
        self._look()
        ending = self.source.choices(("kill", "term", "pause"), (0.4, 0.3, 0.3))[0]
        self.lives[ending] += 1
        if ending == "kill":
            self.world.end(scene)
            scene.server.kill()
            return
        if ending == "pause":
            with self.world.pause():
                self.pinned += sample(scene.server, 0.0).pinned
        self._stop(scene)

    def _stop(self, scene: Scene) -> None:
        self._read_metrics(scene.server)
        self.world.end(scene)
        scene.server.stop()

    def _look(self) -> None:
        """The quota holds, also after kills."""
        self.most_bytes = max(self.most_bytes, directory_bytes(self.work / "cache"))

    def _read_metrics(self, server: BenchServer) -> None:
        connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        self.evicted.update(evictions(text))


def evictions(metrics: str) -> dict[str, int]:
    """Evicted objects by tier, from a server's ``/metrics``."""
    prefix = 'spillcache_evicted_objects_total{tier="'
    lines = (line for line in metrics.splitlines() if line.startswith(prefix))
    pairs = (line.removeprefix(prefix).split('"} ') for line in lines)
    return {tier: int(float(count)) for tier, count in pairs}


def report_of(soak: Soak, seconds: float) -> dict[str, Any]:
    """The JSON report."""
    counts, samples = soak.world.counts, soak.samples
    first, last = samples[len(samples) // 3], samples[-1]
    grown = growth(samples)
    return {
        "bench": "soak",
        "seconds": round(seconds),
        "requests": counts["requests"],
        "wrong": counts["wrong"],
        "failed": counts["failed"],
        "interrupted": counts["interrupted"],
        "left": counts["left"],
        "flushed_in_part": counts["flushed_in_part"],
        "judged": counts["judged"],
        "near_ties": counts["near_ties"],
        "not_judged": counts["not_judged"],
        "changed_prompts": sum(kind.tried for kind in soak.kinds),
        "changed_prompts_caught": sum(kind.caught for kind in soak.kinds),
        "prompt_tokens": dict(soak.world.tiers),
        "kills": soak.lives["kill"],
        "stops": soak.lives["term"] + soak.lives["pause"] + 1,
        "evicted": dict(soak.evicted),
        "quota_bytes": soak.quota_bytes,
        "max_bytes": soak.most_bytes,
        "rss_growth": round(grown / last.anonymous_bytes, 4),
        "rss_growth_bytes": grown,
        "rss_bytes": last.anonymous_bytes,
        "pinned": soak.pinned + sum(each.pinned for each in samples),
        "descriptors": [first.descriptors, last.descriptors],
        "threads": [first.threads, last.threads],
        "noise": {kind.name: round(kind.noise, 4) for kind in soak.kinds},
        "notes": soak.world.notes,
    }


def missed(report: dict[str, Any]) -> list[str]:
    """What should not be."""
    checks = {
        "wrong answers": report["wrong"] == 0,
        "failed requests": report["failed"] == 0,
        "pinned blocks that nobody uses": report["pinned"] == 0,
        "memory grows": report["rss_growth_bytes"] <= GROWTH_MAX_BYTES,
        "descriptors grow": report["descriptors"][1] <= report["descriptors"][0] + 4,
        "threads grow": report["threads"][1] <= report["threads"][0] + 4,
        "over the quota": report["max_bytes"] <= report["quota_bytes"],
        "the judge sees too little": (
            report["changed_prompts_caught"] >= 0.9 * report["changed_prompts"]
        ),
    }
    return [name for name, good in checks.items() if not good]


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['requests']} answers in {report['seconds']} s, {report['judged']} judged, "
        f"{report['near_ties']} of them near ties; {report['left']} clients left early"
    )
    print(f"wrong: {report['wrong']}, failed: {report['failed']}")
    print(
        f"{report['kills']} kills and {report['stops']} stops interrupted "
        f"{report['interrupted']} requests"
    )
    print(f"prompt tokens: {report['prompt_tokens']}; evicted: {report['evicted']}")
    print(
        f"directory: at most {format_size(report['max_bytes'])} of "
        f"{format_size(report['quota_bytes'])}"
    )
    print(
        f"memory grew by {format_size(report['rss_growth_bytes'])} of "
        f"{format_size(report['rss_bytes'])}; pinned {report['pinned']}, descriptors "
        f"{report['descriptors']}, threads {report['threads']}"
    )
    print(
        f"answers to prompts that differ in a block: {report['changed_prompts_caught']} of "
        f"{report['changed_prompts']} found wrong"
    )
    for line in [*report["notes"], *(f"MISSED: {name}" for name in missed(report))]:
        print(line)


def main() -> int:
    args = arguments()
    plot.check(args.plot)
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as place:
        work, world = Path(place), World()
        kinds = [Kind(name, path) for name, path in models(args.kinds.split(","), work).items()]
        soak = Soak(world, kinds, work, args.quota_mib * MIB)
        judging = threading.Thread(target=judge, args=(world,), daemon=True)
        clients = [Client(world, number) for number in range(args.clients)]
        for thread in (judging, *clients):
            thread.start()
        began = time.monotonic()
        try:
            soak.run(60 * args.minutes)
        finally:
            world.over()
        seconds = time.monotonic() - began
        for client in clients:
            client.join(120)
        world.answers.put(None)
        judging.join()
    report = report_of(soak, seconds)
    print_report(report)
    if args.plot:
        named = ("anonymous_bytes", "ram_tier_bytes")
        lines = {n: [(s.second, getattr(s, n) / MIB) for s in soak.samples] for n in named}
        plot.lines(args.plot, "Memory of the last server", "MiB", lines)
    print(json.dumps(report | {"clients": args.clients} | machine_facts()))
    return 1 if missed(report) else 0


def models(kinds: list[str], directory: Path) -> dict[str, Path]:
    """Tiny models that the tests' writer makes; wide KV, so that the RAM tier fills."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from models import ModelShelf  # noqa: PLC0415 — the path is only known now

    shelf, wide = ModelShelf(directory), {"n_head_kv": 4, "head_dim": 128}
    return {kind: shelf(kind, **(wide if kind in ("llama", "gemma3") else {})) for kind in kinds}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kinds", default="llama,gemma3,lfm2", help="of models, by memory")
    parser.add_argument("--quota-mib", type=int, default=512)
    parser.add_argument("--plot", type=Path, help="a PNG")
    parser.add_argument("--directory", type=Path, help="the filesystem to use")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)

"""Does everything in the directory stay within the quota, at every moment, with several writers?

Processes write far more than the quota at once, objects of many sizes, some of them twice, and read
some back. Meanwhile the parent adds up what every file in the directory takes on the filesystem.
Then ``gc --to`` shrinks the store, and the filesystem must have as much more free space. The last
line of stdout is JSON.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from spillcache.chain import chain_hashes, chain_root
from spillcache.config import KIB, MIB, StoreConfig, format_size, parse_size
from spillcache.errors import ObjectMissing, SpillcacheError, StoreFullError
from spillcache.namespace import Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, StoreObject
from spillcache.store.view import directory_bytes

_SAMPLE_S = 0.005
_RETURNED_SHARE = 0.9
"""Of what the store gave up, so much must show in the filesystem's free bytes."""
_RETURN_S = 5.0
_SLOW_DISK_S = 90.0
_SIZES = (3 * KIB, 40 * KIB, 64 * KIB, 200 * KIB, MIB)
_TOKENS = 4


@dataclass(slots=True)
class Samples:
    """What the directory took."""

    count: int = 0
    max_bytes: int = 0
    max_files: int = 0
    over: list[int] = field(default_factory=list)

    def take(self, directory: Path, quota_bytes: int) -> None:
        taken = directory_bytes(directory)
        self.count += 1
        self.max_bytes = max(self.max_bytes, taken)
        if taken > quota_bytes:
            self.over.append(taken)
        self.max_files = max(self.max_files, sum(1 for _ in (directory / "segments").iterdir()))


def chain_of(source: random.Random, number: int, namespace: Namespace) -> list[StoreObject]:
    """A conversation: some blocks of one size, with windows half as large."""
    size, blocks = source.choice(_SIZES), source.randint(1, 24)
    root = chain_root(namespace.digest)
    hashes = chain_hashes(root, range(number * 1000, number * 1000 + blocks * _TOKENS), _TOKENS)
    out = []
    for index, block in enumerate(hashes):
        parent = hashes[index - 1] if index else root
        for part, length in ((Part.KV, size), (Part.WINDOW, size // 2)):
            payload = content(block, part, length)
            rank = 10 if part is Part.WINDOW else 0
            out.append(StoreObject(block, part, parent, index, _TOKENS, payload, rank))
    return out


def content(block: bytes, part: Part, length: int) -> bytes:
    return blake3(block + bytes((part,))).digest(length=length)


def write(args: argparse.Namespace) -> None:
    """One writer's life; prints what it did."""
    writer = args.writer
    source = random.Random(writer)
    namespace = Namespace.of({"bench": "quota", "tenant": writer % 2})
    deadline = time.monotonic() + args.seconds
    latest = deadline + _SLOW_DISK_S
    written = full = missing = 0
    with BlockStore.open(StoreConfig(args.directory, args.quota, min_free_bytes=0)) as store:
        while (now := time.monotonic()) < deadline or (written < args.at_least and now < latest):
            objects = chain_of(
                source, source.randint(writer * 10_000, writer * 10_000 + 5000), namespace
            )
            try:
                written += store.put(namespace, objects).written_bytes
            except StoreFullError:
                full += 1
            if source.random() < 0.2:
                missing += not check(store, namespace, objects)
    print(json.dumps({"written": written, "full": full, "missing": missing}))


def check(store: BlockStore, namespace: Namespace, objects: list[StoreObject]) -> bool:
    """Read what was just put; False if somebody evicted it meanwhile. Wrong bytes end the bench."""
    expected = {(each.block, each.part): each.payload for each in objects}
    blocks = list(dict.fromkeys(each.block for each in objects))
    found = store.find(namespace.id, blocks, (Part.KV, Part.WINDOW))
    try:
        for payload in store.read([entry for parts in found for entry in parts.values()]):
            if payload.view != expected[payload.entry.block, payload.entry.part]:
                sys.exit("WRONG BYTES were read")
            payload.release()
    except ObjectMissing:
        return False
    return True


def fill(directory: Path, quota_bytes: int) -> None:
    """Fill the store once more."""
    namespace, size = Namespace.of({"bench": "quota"}), 0
    with BlockStore.open(StoreConfig(directory, quota_bytes, min_free_bytes=0)) as store:
        for number in range(1_000_000, 2_000_000):
            if size > quota_bytes // 2:
                return
            size += store.put(namespace, chain_of(random.Random(), number, namespace)).written_bytes


def start_writers(args: argparse.Namespace, directory: Path) -> list[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--directory", str(directory)]
    command += ["--quota", str(args.quota), "--seconds", str(args.seconds)]
    command += ["--at-least", str(args.at_least)]
    return [
        subprocess.Popen([*command, "--writer", str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(1, args.writers + 1)
    ]


def reports(writers: list[subprocess.Popen[str]]) -> Iterator[dict[str, int]]:
    for writer in writers:
        out, _ = writer.communicate()
        if writer.returncode:
            raise SystemExit(f"a writer ended with code {writer.returncode}")
        yield json.loads(out.splitlines()[-1])


def shrink(directory: Path, to_bytes: int) -> tuple[int, int]:
    """``gc --to``: by how much less the directory takes, and by how much more is free.

    Others write to the filesystem, too, so it has a few seconds to show it.
    """
    command = [sys.executable, "-m", "spillcache", "gc", str(directory), "--to", str(to_bytes)]
    before, free = directory_bytes(directory), free_bytes(directory)
    subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL)
    gave_up, returned = before - directory_bytes(directory), 0
    deadline = time.monotonic() + _RETURN_S
    while time.monotonic() < deadline and returned < _RETURNED_SHARE * gave_up:
        returned = max(returned, free_bytes(directory) - free)
        time.sleep(_SAMPLE_S)
    return gave_up, returned


def free_bytes(directory: Path) -> int:
    stats = os.statvfs(directory)
    return stats.f_bfree * stats.f_frsize


def measure(args: argparse.Namespace, directory: Path) -> dict[str, object]:
    BlockStore.open(StoreConfig(directory, args.quota, min_free_bytes=0)).close()
    samples = Samples()
    writers = start_writers(args, directory)
    while any(writer.poll() is None for writer in writers):
        samples.take(directory, args.quota)
        time.sleep(_SAMPLE_S)
    done = list(reports(writers))
    samples.take(directory, args.quota)
    for attempt in range(args.attempts):
        if attempt:
            fill(directory, args.quota)
        gave_up, returned = shrink(directory, args.quota // 8)
        if gave_up > 0 and returned >= _RETURNED_SHARE * gave_up:
            break
    return {
        "bench": "quota",
        "max_bytes": samples.max_bytes,
        "quota_bytes": args.quota,
        "samples": samples.count,
        "free_returned": gave_up > 0 and returned >= _RETURNED_SHARE * gave_up,
        "written_bytes": sum(each["written"] for each in done),
        "writers": args.writers,
        "seconds": args.seconds,
        "over_quota_samples": len(samples.over),
        "max_files": samples.max_files,
        "free_attempts": attempt + 1,
        "gave_up_bytes": gave_up,
        "returned_bytes": returned,
        "left_bytes": directory_bytes(directory),
        "puts_without_room": sum(each["full"] for each in done),
    }


def main() -> int:
    args = arguments()
    if args.writer:
        write(args)
        return 0
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-", dir=args.directory) as work:
        report = measure(args, Path(work) / "cache")
    ok = report["max_bytes"] <= args.quota and report["free_returned"]
    print(f"{args.writers} writers, {args.seconds:.0f} s: {report['samples']} samples")
    print(f"written   {format_size(report['written_bytes'])}")
    print(f"most      {format_size(report['max_bytes'])} of {format_size(args.quota)}")
    print(
        f"gc --to {format_size(args.quota // 8)} gave up {format_size(report['gave_up_bytes'])}; "
        f"the filesystem has {format_size(report['returned_bytes'])} more"
    )
    if not ok:
        print("NOT WITHIN THE QUOTA, or space did not return")
    print(json.dumps(report))
    return 0 if ok else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--quota", type=lambda text: parse_size(text, "--quota"), default=256 * MIB)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--at-least",
        type=lambda text: parse_size(text, "--at-least"),
        default=0,
        help="each writer goes on until it wrote this much, if the seconds are over before",
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=3,
        help="others may write to the filesystem at that very moment: then it is tried again",
    )
    parser.add_argument("--directory", type=Path, help="the filesystem to measure")
    parser.add_argument("--writer", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/quota.py: error: {error}")

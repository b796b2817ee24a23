"""Fills a RAM tier many times over and prints how much this process has grown; run by test_ram.py.

Arguments: the bound in bytes, how many times over.
"""

import random
import sys

import numpy as np
from cache_tools import NS, cache_config

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.chain import Chain
from spillcache.state import Geometry, Part

KV, WINDOW = 393_000, 1_900_000
"""Payload bytes: about those of gemma3-270m."""


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main(bound_bytes: int, times: int) -> None:
    geometry = Geometry(block_tokens=64, window_blocks=8)
    payload = memoryview(np.ones(WINDOW, np.uint8))  # type: ignore[arg-type]
    cache = PrefixCache(cache_config(ram_bytes=bound_bytes), geometry)
    rng = random.Random(1)
    before = resident_bytes()
    most = offered = 0
    while offered < times * bound_bytes:
        tokens = np.array([rng.randrange(1000) for _ in range(64 * 20 + 1)], np.uint32)
        chain = Chain(NS, 64, tokens)
        for block in range(chain.blocks):
            state = {Part.KV: payload[:KV]}
            if block % 4:  # a window may be missing: sizes come and go
                state[Part.WINDOW] = payload
            cache.offer(chain, block, state)
            offered += sum(map(len, state.values()))
            most = max(most, resident_bytes() - before)
    used = cache.status()["bytes"]
    print(most, used)
    cache.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""A busy engine over a store, until it is killed; run by test_kill.py. Arguments: the model, the
store's directory, and a file that gets a line for each block that was offered: when, and its hash.
"""

import sys
import time
from pathlib import Path

from stack import Stack, prompt

from spillcache.cache import spill
from spillcache.chain import Chain
from spillcache.serve.job import DoneEvent
from spillcache.state import BlockState

DIRTY_S = 0.5


def main(model: Path, disk: Path, log: Path) -> None:
    spill._TICK_S = 0.05
    # It never rests for long enough, so only how long a block is dirty has it written.
    times = {"idle_spill_s": 1e9, "dirty_spill_s": DIRTY_S}
    with Stack(model, disk, slots=2, cache=times) as stack, open(log, "w", buffering=1) as lines:
        assert stack.cache is not None
        offer = stack.cache.offer

        def noted(chain: Chain, block: int, state: BlockState) -> None:
            offer(chain, block, state)
            lines.write(
                f"{time.monotonic()} {chain.namespace.id.hex()} {chain.hashes[block].hex()}\n"
            )

        stack.cache.offer = noted  # type: ignore[method-assign]
        running = [stack.submit(prompt(300, seed), 1500) for seed in range(2)]
        seed = 2
        while True:
            for number, events in enumerate(running):
                if isinstance(events.get(timeout=60), DoneEvent):
                    running[number] = stack.submit(prompt(300, seed), 1500)
                    seed += 1


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

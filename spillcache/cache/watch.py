"""A thread that notices when the threads at work on the disk end or hang, and says so."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spillcache.cache.breaker import Direction

log = logging.getLogger("spillcache.cache")

TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is the matter with a thread."""

    text: str
    direction: Direction
    hangs: bool
    """It does not come back from the disk; else it has ended."""


class Watch:
    """Calls ``ask`` every second. Each change is logged; ``on_trouble`` is called at every tick
    while there is some. Both are called on this thread, and must not wait for a disk.
    """

    def __init__(
        self, ask: Callable[[], Trouble | None], on_trouble: Callable[[Trouble], None]
    ) -> None:
        self._ask = ask
        self._on_trouble = on_trouble
        self._trouble: Trouble | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spillcache-watch", daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """What is the matter, in a sentence; empty while all is well. Any thread."""
        trouble = self._trouble
        return trouble.text if trouble is not None else ""

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._look()
            except Exception:  # whoever watches the others must not fall silent
                log.exception("the watch over the disk's threads met a bug; it goes on")

    def _look(self) -> None:
        before, trouble = self._trouble, self._ask()
        if trouble is not None:
            if trouble != before:
                log.error("the disk tier does not work: %s", trouble.text)
            self._on_trouble(trouble)
        elif before is not None:
            log.info("the disk tier works again; it was said that %s", before.text)
        # Last: whoever reads the reason finds that what follows from it was done.
        self._trouble = trouble

"""What other threads have the engine's thread do between its steps."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from spillcache.errors import SpillcacheError
from spillcache.serve.pace import RestorePace

Result = TypeVar("Result")
GoOn = Callable[[], bool]
"""Asked after each block: whether another may be moved in this step."""

SLICE_S = 0.01
"""Where nothing else is to be done, an errand that moves blocks takes so long."""


class _Errand(Generic[Result]):
    """One of them. ``run`` calls it once."""

    def __init__(
        self, work: Callable[[GoOn], Result], when: Callable[[], bool], *, moves: bool
    ) -> None:
        self.future: Future[Result] = Future()
        self.when = when
        self.moves = moves
        self._work = work

    def run(self, go_on: GoOn) -> None:
        try:
            self.future.set_result(self._work(go_on))
        except Exception as error:  # whoever waits for it raises it
            self.future.set_exception(error)


class Errands:
    """``do`` and ``move``: any thread but the engine's. The rest: the engine's."""

    def __init__(self, wake: threading.Condition, pace: RestorePace) -> None:
        """``wake``: the scheduler's; ``pace``: what moving blocks may take beside answers."""
        self._wake = wake
        self._pace = pace
        self._waiting: list[_Errand[Any]] = []
        self._closed: SpillcacheError | None = None

    def do(
        self,
        work: Callable[[], Result],
        when: Callable[[], bool] = lambda: True,
        timeout_s: float | None = None,
    ) -> Result:
        """Have ``work`` done as soon as ``when`` says so; what it returns, or raises. Blocks.

        TimeoutError after ``timeout_s``: the work is done later.
        """
        return self._begin(_Errand(lambda _: work(), when, moves=False)).result(timeout_s)

    def move(self, work: Callable[[GoOn], Result]) -> "Future[Result]":
        """Have ``work`` move a block, and others as long as it may; keeps to the pace."""
        return self._begin(_Errand(work, lambda: True, moves=True))

    def _begin(self, errand: _Errand[Result]) -> "Future[Result]":
        with self._wake:
            if self._closed is not None:
                raise self._closed
            self._waiting.append(errand)
            self._wake.notify()
        return errand.future

    @property
    def ready(self) -> bool:
        """Whether there is one that may be run now."""
        return any(errand.when() for errand in self._waiting)

    def run(self, *, alone: bool) -> None:
        """Run those that came by now and whose time it is, in their order. ``alone``: nobody waits
        for a step's end.
        """
        with self._wake:
            waiting = list(self._waiting)
        for errand in waiting:
            if not errand.when() or (errand.moves and not alone and not self._pace.allows()):
                continue
            with self._wake:
                self._waiting.remove(errand)
            errand.run(self._slice(alone=alone))

    def _slice(self, *, alone: bool) -> GoOn:
        last = time.monotonic()
        until = last + SLICE_S

        def go_on() -> bool:
            nonlocal last
            now = time.monotonic()
            if alone:
                return now < until
            self._pace.took(now - last)
            last = now
            return self._pace.allows()

        return go_on

    def close(self, error: SpillcacheError) -> None:
        """Fail what waits, and what comes, with ``error``."""
        with self._wake:
            self._closed = error
            waiting, self._waiting = self._waiting, []
        for errand in waiting:
            errand.future.set_exception(error)

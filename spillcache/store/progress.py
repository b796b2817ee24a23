"""How long work tells how far it is, and is told to stop."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told how much is done, and how much there is to do, in all."""
Stop = Callable[[], bool]
"""Asked often whether to end early."""


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


def never() -> bool:
    """Nobody stops it."""
    return False

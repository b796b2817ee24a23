"""Prompts of an exact length that share not even their first token."""

import random
from collections.abc import Callable

from spillcache.errors import BenchError

_WORDS = (
    "the river carried small boats past a quiet market where people sold bread and paper lamps "
    "under old trees while a teacher explained how clouds form above warm fields and why winter "
    "light looks blue on snow near the harbour at seven in the morning before trains leave for "
    "distant towns with letters tools seeds and stories about maps that never matched the land"
)
_MARKERS = (
    "Apple Bridge Candle Desert Engine Forest Garden Harbor Island Jacket Kitchen Ladder Mirror "
    "Needle Orange Planet Quarter Rocket Silver Tunnel Under Valley Window Yellow Zebra"
)


class PromptMaker:
    """Makes prompts with one model's tokeniser; each call gives one unlike all before."""

    def __init__(self, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize = tokenize
        self._used: set[int] = set()

    def prompt(self, length: int) -> list[int]:
        """Exactly ``length`` token ids of made-up sentences; the same ones in every run.

        Raises BenchError when the model's vocabulary has no unused first token left.
        """
        marker = self._next_marker()
        text = marker + "."
        while len(tokens := self._tokenize(text)) < length:
            missing = max(64, length - len(tokens))
            text += sentences(random.Random(f"{marker} {len(text)}"), missing)  # noqa: S311 — not a secret
        return tokens[:length]

    def _next_marker(self) -> str:
        for marker in [*_MARKERS.split(), *_WORDS.title().split()]:
            first = self._tokenize(marker)[0]
            if first not in self._used:
                self._used.add(first)
                return marker
        raise BenchError(f"no more than {len(self._used)} different prompts can be made")


def sentences(source: random.Random, words: int) -> str:
    """About ``words`` words in sentences that mean nothing, each after a space."""
    out: list[str] = []
    vocabulary = _WORDS.split()
    while words > 0:
        count = source.randint(6, 14)
        words -= count
        out.append(
            " " + " ".join(source.choice(vocabulary) for _ in range(count)).capitalize() + "."
        )
    return "".join(out)

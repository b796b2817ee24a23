"""Embeddings beside answers: one text at a time, between the engine's steps."""

import threading

from spillcache.engine.base import Embedding, Engine, Tokens
from spillcache.serve.errands import Errands


class Embeddings:
    """``of``: any thread but the engine's. Of all that ask, one has a call in each step, so that
    answers pause for no longer than a prefill's call makes them.
    """

    def __init__(self, engine: Engine, errands: Errands) -> None:
        self._engine = engine
        self._errands = errands
        self._turn = threading.Lock()

    def of(self, tokens: Tokens) -> Embedding:
        """The vector of a text of these tokens. Blocks. Raises as Engine.embed, and NotReady when
        the server stops.
        """
        with self._turn:
            return self._errands.do(lambda: self._engine.embed(tokens))

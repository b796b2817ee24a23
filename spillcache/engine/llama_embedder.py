"""Embeddings of texts, in a small context of their own on the engine's model.

llama.cpp pools what the last layer says of each token into one vector. That wants all of a text in
one call, so a text has no more tokens than a call, as on llama-server.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spillcache.config import EngineConfig, Pooling
from spillcache.engine.base import Embedding, Tokens
from spillcache.engine.llama_library import Library, new_context
from spillcache.errors import DecodeError, PromptTooLong, Unsupported

_NO_POOLING, _OWN_POOLING = 0, -1
POOLINGS: Mapping[Pooling, int] = {"mean": 1, "cls": 2, "last": 3}
"""llama.cpp's numbers."""


class LlamaEmbedder:
    """Its context is made for the first text and takes the memory of a call's cells. Engine's
    thread. ``close`` comes before the model is freed.
    """

    def __init__(self, lib: Library, model: Any, config: EngineConfig) -> None:
        self._lib = lib
        self._model = model
        self._config = config
        self._context: Any = None

    def embed(self, tokens: Tokens) -> Embedding:
        """See Engine."""
        api, most = self._lib.api, self._config.ubatch_tokens
        if len(tokens) > most:
            raise PromptTooLong(
                f"input: a text has {len(tokens)} tokens, and embeddings take {most} at most; "
                "shorten it or start the server with a larger -ub",
                "input",
            )
        context = self._opened()
        if int(api.llama_pooling_type(context)) == _NO_POOLING:
            raise Unsupported(
                "the model does not say how its tokens' vectors become one; start the server with "
                "--pooling mean or --pooling last",
                "input",
            )
        api.llama_memory_clear(api.llama_get_memory(context), True)
        ids = np.ascontiguousarray(tokens, np.int32)
        batch = api.llama_batch_get_one(
            ctypes.cast(ids.ctypes.data, ctypes.POINTER(ctypes.c_int32)), len(ids)
        )
        code = int(api.llama_decode(context, batch))
        found = api.llama_get_embeddings_seq(context, 0) if code == 0 else None
        if not found:
            raise DecodeError(f"no embedding was computed: llama_decode gave {code}")
        size = int(api.llama_model_n_embd(self._model))
        return _unit(np.ctypeslib.as_array(found, (size,)))

    def _opened(self) -> Any:
        if self._context is None:
            pooling = self._config.pooling
            self._context = new_context(
                self._lib,
                self._model,
                replace(self._config, type_k="f16", type_v="f16"),
                1,
                self._config.ubatch_tokens,
                pooling=_OWN_POOLING if pooling is None else POOLINGS[pooling],
            )
        return self._context

    def close(self) -> None:
        """Free the context; may be called twice."""
        if self._context is not None:
            self._lib.api.llama_free(self._context)
            self._context = None


def _unit(vector: Embedding) -> Embedding:
    """A copy of length 1; all zeros stay so."""
    length = float(np.sqrt(np.sum(vector.astype(np.float64) ** 2)))
    return (vector / (length or 1.0)).astype(np.float32)

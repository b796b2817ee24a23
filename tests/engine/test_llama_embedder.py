"""Embeddings of tiny models: pooled as they should be, and nobody's sequence is touched."""

import numpy as np
import pytest
from models import ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.base import Chunk
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.errors import DecodeError, NotOffered, PromptTooLong, Unsupported


def ids(count, start=10):
    return (np.arange(count) % 200 + start).astype(np.uint32)


def opened(model, **fields):
    return LlamaEngine(EngineConfig(model, context_tokens=1024, threads=1, **fields))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_vector_of_length_1_for_each_text(gguf_model: ModelShelf, kind, pooling) -> None:
    engine = opened(gguf_model(kind), embeddings=True, pooling=pooling)
    try:
        vectors = [engine.embed(ids(count)) for count in (1, 5, 100, 512, 5)]
        assert [len(vector) for vector in vectors] == [engine.info.embedding] * 5
        assert np.allclose([np.linalg.norm(vector) for vector in vectors], 1.0, atol=1e-5)
        assert (vectors[1] == vectors[4]).all()
        # The first token knows nothing of those after it.
        assert np.allclose(vectors[1], vectors[2], atol=1e-3) is (pooling == "cls")
    finally:
        engine.close()


def test_what_pooling_means(gguf_model: ModelShelf) -> None:
    """The last token's vector of a text is that of the text cut there; mean is of unlike ones."""
    model = gguf_model("llama")
    last, first = (opened(model, embeddings=True, pooling=p) for p in ("last", "cls"))
    try:
        assert np.allclose(last.embed(ids(1)), first.embed(ids(40)), atol=1e-3)
        assert not np.allclose(last.embed(ids(40)), first.embed(ids(40)), atol=1e-1)
    finally:
        last.close()
        first.close()


def test_answers_do_not_notice(gguf_model: ModelShelf) -> None:
    engine = opened(gguf_model("llama"), embeddings=True, pooling="mean")
    try:
        engine.decode([Chunk(0, ids(64), logits=True)])
        before = engine.logits(0)
        engine.embed(ids(100, 50))
        assert (engine.logits(0) == before).all()
        assert engine.length(0) == 64
        engine.decode([Chunk(0, ids(1), logits=True)])
        after = engine.logits(0)
        engine.clear(0)
        engine.decode([Chunk(0, ids(64), logits=True)])
        engine.decode([Chunk(0, ids(1), logits=True)])
        assert (engine.logits(0) == after).all()
    finally:
        engine.close()


def test_what_can_not_be_is_said(gguf_model: ModelShelf, monkeypatch) -> None:
    model = gguf_model("llama")
    for fields, count, kind, words in [
        ({}, 5, NotOffered, "--embeddings"),
        ({"embeddings": True}, 5, Unsupported, "--pooling mean"),
        ({"embeddings": True, "pooling": "mean", "ubatch_tokens": 64}, 65, PromptTooLong, "64 at"),
    ]:
        engine = opened(model, **fields)
        try:
            with pytest.raises(kind, match=words):
                engine.embed(ids(count))
        finally:
            engine.close()
    engine = opened(model, embeddings=True, pooling="mean")
    try:
        engine.embed(ids(3))
        monkeypatch.setattr(engine._api, "llama_decode", lambda *_: -1)
        with pytest.raises(DecodeError, match="gave -1"):
            engine.embed(ids(3))
    finally:
        monkeypatch.undo()
        engine.close()

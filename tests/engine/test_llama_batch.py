import ctypes

import llama_cpp
import numpy as np
import pytest

from spillcache.engine.base import Chunk
from spillcache.engine.llama_batch import LlamaBatch


def chunk(sequence: int, *tokens: int, logits: bool = False) -> Chunk:
    return Chunk(sequence, np.array(tokens, np.uint32), logits)


def seen(batch: LlamaBatch) -> list[tuple[int, int, int, int, int]]:
    """What C reads: (token, position, sequences, sequence, logits) per token."""
    n = batch.native
    return [
        (n.token[i], n.pos[i], n.n_seq_id[i], n.seq_id[i][0], n.logits[i])
        for i in range(n.n_tokens)
    ]


def test_chunks_lie_one_after_another() -> None:
    batch = LlamaBatch(llama_cpp, 8)
    batch.fill([chunk(2, 10, 11, 12, logits=True), chunk(0, 20), chunk(1, 30, 31)], [5, 0, 100])
    assert seen(batch) == [
        (10, 5, 1, 2, 0),
        (11, 6, 1, 2, 0),
        (12, 7, 1, 2, 1),
        (20, 0, 1, 0, 0),
        (30, 100, 1, 1, 0),
        (31, 101, 1, 1, 0),
    ]
    assert batch.rows == {2: 2}
    assert not batch.native.embd


def test_nothing_is_left_of_the_call_before() -> None:
    batch = LlamaBatch(llama_cpp, 4)
    batch.fill([chunk(1, 1, 2, 3, 4, logits=True)], [0])
    assert batch.rows == {1: 3}
    batch.fill([chunk(0, 9, 9, 9, 9)], [7])
    assert seen(batch) == [(9, 7 + i, 1, 0, 0) for i in range(4)]
    assert batch.rows == {}
    batch.fill([chunk(1, 5, logits=True)], [4])
    assert seen(batch) == [(5, 4, 1, 1, 1)]
    assert batch.rows == {1: 0}


@pytest.mark.parametrize("logits", [False, True])
def test_what_does_not_fit_is_refused_before_anything_is_written(logits: bool) -> None:
    batch = LlamaBatch(llama_cpp, 2)
    batch.fill([chunk(0, 1, 2, logits=True)], [0])
    with pytest.raises(ValueError, match="3 tokens, and at most 2"):
        batch.fill([chunk(0, 7, 8), chunk(1, 9, logits=logits)], [0, 0])
    assert seen(batch) == [(1, 0, 1, 0, 0), (2, 1, 1, 0, 1)]
    assert batch.rows == {0: 1}


def test_a_start_for_every_chunk() -> None:
    batch = LlamaBatch(llama_cpp, 2)
    with pytest.raises(ValueError, match="argument"):
        batch.fill([chunk(0, 1)], [])


def test_the_largest_token_id_of_a_vocabulary_survives() -> None:
    batch = LlamaBatch(llama_cpp, 1)
    batch.fill([chunk(0, 2**31 - 1)], [2**31 - 1])
    assert seen(batch)[0][:2] == (2**31 - 1, 2**31 - 1)
    assert ctypes.sizeof(batch.native.token._type_) == 4

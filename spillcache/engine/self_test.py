"""The proof, before any tier is used, that this engine's state survives export and import."""

from collections.abc import Callable, Mapping

import numpy as np

from spillcache.engine.base import Chunk, Engine, Logits, SelfTest, Tokens
from spillcache.errors import EngineError
from spillcache.state import BlockState, Buffer, Part

TAIL_TOKENS = 5
STEPS = 4
Block = Mapping[Part, Buffer]


def run_self_test(engine: Engine, spoil: Callable[[BlockState], Block], other: int) -> SelfTest:
    """Prefill a little more than a window, export, import, compare; sequence 0, on an idle engine.

    Two controls: with spoilt state (``spoil``) the logits must differ from the cold ones, with the
    real state they must equal them: bit for bit, or within what two cold runs in different cell
    layouts differ. ``other``: a sequence that may lie in the way of the second one.
    """
    size = engine.geometry.block_tokens
    blocks = engine.geometry.window_blocks + 2
    if (blocks + 1) * size > engine.limits.context_tokens:
        return SelfTest(
            False, False, "the context is too small for the self-test; give a larger -c"
        )
    tokens = _some_tokens(engine, blocks * size + TAIL_TOKENS)
    try:
        saved = _prefill(engine, tokens, blocks)
        cold, tail = _to_the_end(engine, tokens[blocks * size :], blocks)
        spoilt = _restore(engine, [spoil(block) for block in saved], tokens[blocks * size :])
        warm = _restore(engine, saved, tokens[blocks * size :])
        rest = _restore_tail(engine, saved, tail, cold[STEPS])
    except EngineError as error:
        return SelfTest(False, False, f"the engine refused its own state: {error}")
    if spoilt is not None and np.array_equal(cold[: len(spoilt)], spoilt):
        return SelfTest(False, False, "importing state has no effect on this engine")
    if warm is None or rest is None:
        return SelfTest(False, False, "restored state lacks a part that decoding needs")
    warm = np.concatenate([warm, rest])
    if np.array_equal(cold, warm):
        return SelfTest(True, True, f"{blocks * size} restored tokens: bit-identical to cold")
    noise = mean_kl(cold, _elsewhere(engine, tokens, blocks, other))
    found = mean_kl(cold, warm)
    detail = f"mean KL to cold {found:.2g}, between two cold cell layouts {noise:.2g}"
    return SelfTest(found <= noise, False, detail)


def _elsewhere(engine: Engine, tokens: Tokens, blocks: int, other: int) -> Logits:
    """The logits of a cold run whose cells lie behind another sequence's."""
    size, call = engine.geometry.block_tokens, engine.limits.call_tokens
    engine.clear(0)
    engine.decode([Chunk(other, tokens[:size])])
    for start in range(0, blocks * size, call):
        engine.decode([Chunk(0, tokens[start : min(start + call, blocks * size)])])
    return _to_the_end(engine, tokens[blocks * size :], blocks)[0]


def _some_tokens(engine: Engine, count: int) -> Tokens:
    rng = np.random.default_rng(20260101)
    return rng.integers(0, engine.limits.vocabulary, count).astype(np.uint32)


def _prefill(engine: Engine, tokens: Tokens, blocks: int) -> list[Block]:
    """Compute whole blocks call by call, exporting each right after the call that completed it."""
    size, call = engine.geometry.block_tokens, engine.limits.call_tokens
    engine.clear(0)
    saved: list[Block] = []
    for start in range(0, blocks * size, call):
        stop = min(start + call, blocks * size)
        engine.decode([Chunk(0, tokens[start:stop])])
        for block in range(start // size, stop // size):
            last = (block + 1) * size == stop
            state = engine.export(0, block, boundary=last)
            saved.append({part: bytes(payload) for part, payload in state.items()})
    return saved


def _go_on(engine: Engine, tail: Tokens) -> Logits:
    """Logits after the tail (one call) and a few greedy steps: float32 [1 + STEPS, vocabulary]."""
    engine.decode([Chunk(0, tail, logits=True)])
    first = engine.logits(0)
    return np.concatenate([first[None], _steps(engine, first)])


def _steps(engine: Engine, before: Logits) -> Logits:
    """Logits of a few greedy steps after those ``before``: float32 [STEPS, vocabulary]."""
    rows = [before]
    for _ in range(STEPS):
        engine.decode([Chunk(0, np.array([rows[-1].argmax()], np.uint32), logits=True)])
        rows.append(engine.logits(0))
    return np.stack(rows[1:])


def _to_the_end(engine: Engine, tail: Tokens, blocks: int) -> tuple[Logits, Block]:
    """``_go_on``, then as many steps once more: all logits, and the tail's state in between."""
    rows = _go_on(engine, tail)
    state = engine.export(0, blocks, boundary=True)
    kept = {part: bytes(payload) for part, payload in state.items()}
    return np.concatenate([rows, _steps(engine, rows[-1])]), kept


def _restore(engine: Engine, saved: list[Block], tail: Tokens) -> Logits | None:
    """Import ``saved`` as a restore would, and go on; None when the engine says that a part is
    missing.
    """
    _import(engine, saved)
    return _go_on(engine, tail) if engine.restored(0) else None


def _restore_tail(engine: Engine, saved: list[Block], tail: Block, before: Logits) -> Logits | None:
    """As ``_restore``, with the tail's state, too; the steps after it."""
    if not tail.keys() >= set(engine.geometry.parts):
        return None
    _import(engine, saved)
    engine.import_(0, len(saved), tail, TAIL_TOKENS + STEPS)
    return _steps(engine, before) if engine.restored(0) else None


def _import(engine: Engine, saved: list[Block]) -> None:
    engine.clear(0)
    windows = len(saved) - engine.geometry.window_blocks
    wanted = [
        {
            part: payload
            for part, payload in block.items()
            if not (part is Part.WINDOW and index < windows)
            and not (part is Part.BOUNDARY and index < len(saved) - 1)
        }
        for index, block in enumerate(saved)
    ]
    index = 0
    while index < len(saved):
        index += engine.import_run(0, index, wanted[index:])


def mean_kl(p_logits: Logits, q_logits: Logits) -> float:
    """Mean over rows of KL(softmax p ‖ softmax q), in nats; both float32 [rows, vocabulary]."""
    p, q = _log_softmax(p_logits), _log_softmax(q_logits)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def _log_softmax(logits: Logits) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))

"""What every engine must do, whatever its model remembers: the contract of ``engine/base.py``."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from spillcache.engine.base import Chunk, Engine, Logits, Tokens
from spillcache.errors import ContextFullError, DecodeError, StateRejected
from spillcache.state import BlockState, Geometry, Part

K, W, B = Part.KV, Part.WINDOW, Part.BOUNDARY
SIZE = 64
Saved = list[dict[Part, bytes]]
STEPS = 3


def tokens(count: int, seed: int = 1) -> Tokens:
    return np.random.default_rng(seed).integers(5, 500, count).astype(np.uint32)


def prefill(engine: Engine, sequence: int, prompt: Tokens, start: int = 0) -> Saved:
    """Compute whole blocks, a block per call, and export each right after its call."""
    saved: Saved = []
    for at in range(start, len(prompt) // SIZE * SIZE, SIZE):
        engine.decode([Chunk(sequence, prompt[at : at + SIZE])])
        state = engine.export(sequence, at // SIZE, boundary=True)
        saved.append({part: bytes(payload) for part, payload in state.items()})
    return saved


def go_on(engine: Engine, sequence: int, tail: Tokens) -> Logits:
    """The tail in one call, then a few greedy steps: [1 + STEPS, vocabulary]."""
    engine.decode([Chunk(sequence, tail, logits=True)])
    rows = [engine.logits(sequence)]
    for _ in range(STEPS):
        chosen = np.array([rows[-1].argmax()], np.uint32)
        engine.decode([Chunk(sequence, chosen, logits=True)])
        rows.append(engine.logits(sequence))
    return np.stack(rows)


def wanted(geometry: Geometry, block: int, blocks: int) -> set[Part]:
    parts = {K} if geometry.has_kv else set()
    parts |= {W} if block >= blocks - geometry.window_blocks else set()
    return parts | ({B} if geometry.has_boundary and block == blocks - 1 else set())


def restore(
    engine: Engine,
    sequence: int,
    saved: Saved,
    *,
    without: Sequence[Part] = (),
    expect: int | None = None,
) -> None:
    """Import what a prefix of all of ``saved`` needs, but the parts ``without``; after the first
    block, ``expect`` the window of that one.
    """
    for index, block in enumerate(saved):
        parts = wanted(engine.geometry, index, len(saved)) - set(without)
        engine.import_(sequence, index, {part: block[part] for part in parts})
        if index == 0 and expect is not None:
            engine.expect_window(sequence, expect)


def restore_runs(engine: Engine, saved: Saved) -> list[int]:
    """As ``restore``, handing all that is left over at once; how many went in together."""
    states: list[BlockState] = [
        {part: block[part] for part in wanted(engine.geometry, index, len(saved))}
        for index, block in enumerate(saved)
    ]
    runs: list[int] = []
    while sum(runs) < len(saved):
        runs.append(engine.import_run(0, sum(runs), states[sum(runs) :]))
    return runs


def alike(one: Logits, other: Logits) -> bool:
    """The same but for what another cell layout makes of it."""
    return bool(np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.99)


class EngineSuite:
    """Subclasses give the fixtures ``engine`` (two sequences, 1,024 cells, calls of 128 tokens,
    windows of two blocks, if any), ``stranger`` (state of another model) and ``header_bytes``.
    """

    @pytest.fixture
    def cold(self, engine: Engine) -> Callable[[Tokens], Logits]:
        """The logits of a prompt on the engine, which is empty before and after."""

        def compute(prompt: Tokens) -> Logits:
            engine.clear(0)
            prefill(engine, 0, prompt)
            rows = go_on(engine, 0, prompt[len(prompt) // SIZE * SIZE :])
            engine.clear(0)
            return rows

        return compute

    # Tokens in, logits out.

    def test_what_it_says_of_itself(self, engine: Engine) -> None:
        limits = engine.limits
        assert (limits.sequences, limits.context_tokens, limits.call_tokens) == (2, 1024, 128)
        assert limits.vocabulary == 512
        assert limits.train_tokens == 32768
        assert engine.geometry.block_tokens == SIZE
        assert engine.info.embedding == 128
        assert engine.info.parameters > 0
        assert engine.info.size_bytes > 0

    def test_sequences_grow_and_are_cleared(self, engine: Engine) -> None:
        assert [engine.length(s) for s in (0, 1)] == [0, 0]
        engine.decode([Chunk(0, tokens(70)), Chunk(1, tokens(9))])
        assert [engine.length(s) for s in (0, 1)] == [70, 9]
        engine.decode([Chunk(1, tokens(1))])
        assert [engine.length(s) for s in (0, 1)] == [70, 10]
        engine.clear(0)
        engine.clear(0)
        assert [engine.length(s) for s in (0, 1)] == [0, 10]

    def test_logits_are_a_copy_of_each_sequences_own_row(self, engine: Engine) -> None:
        one, two = tokens(20, 1), tokens(30, 2)
        alone = []
        for prompt in (one, two):
            engine.clear(0)
            engine.decode([Chunk(0, prompt, logits=True)])
            alone.append(engine.logits(0))
        engine.clear(0)
        engine.decode([Chunk(1, two, logits=True), Chunk(0, one, logits=True)])
        rows = [engine.logits(0), engine.logits(1)]
        assert rows[0].shape == (512,)
        assert rows[0].dtype == np.float32
        assert alike(rows[0], alone[0])
        assert alike(rows[1], alone[1])
        assert not alike(rows[0], rows[1])
        before = rows[0].copy()
        rows[0][:] = 0
        assert np.array_equal(engine.logits(0), before)

    def test_a_row_that_was_not_asked_for_is_an_error(self, engine: Engine) -> None:
        engine.decode([Chunk(0, tokens(5)), Chunk(1, tokens(5), logits=True)])
        engine.logits(1)
        with pytest.raises(KeyError):
            engine.logits(0)

    @pytest.mark.parametrize("logits", [False, True])
    def test_more_than_a_call_takes_is_refused(self, engine: Engine, logits: bool) -> None:
        most = engine.limits.call_tokens
        for chunks in (
            [Chunk(0, tokens(most + 1), logits)],
            [Chunk(0, tokens(most)), Chunk(1, tokens(1), logits)],
        ):
            with pytest.raises(ValueError, match="129 tokens"):
                engine.decode(chunks)
            assert [engine.length(s) for s in (0, 1)] == [0, 0]
        engine.decode([Chunk(0, tokens(most))])
        assert engine.length(0) == most

    def test_a_full_context_changes_nothing(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        if not engine.geometry.has_kv:
            pytest.skip("without attention no context is ever full")
        before = cold(tokens(130, 5))
        for at in range(0, 960, 64):
            engine.decode([Chunk(0, tokens(960)[at : at + 64])])
        with pytest.raises(ContextFullError, match="1024 tokens is full"):
            engine.decode([Chunk(1, tokens(128))])
        with pytest.raises(ContextFullError):
            engine.decode([Chunk(0, tokens(100)), Chunk(1, tokens(28))])
        assert [engine.length(s) for s in (0, 1)] == [960, 0]
        engine.decode([Chunk(0, tokens(64), logits=True)])
        assert engine.length(0) == 1024
        engine.clear(0)
        assert np.array_equal(cold(tokens(130, 5)), before)

    def test_a_failed_call_is_survived(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        before = cold(tokens(70))
        engine.decode([Chunk(0, tokens(64))])
        with pytest.raises(DecodeError, match="code -1"):
            engine.decode([Chunk(0, np.array([5, 100_000], np.uint32))])
        engine.clear(0)
        assert np.array_equal(cold(tokens(70)), before)

    # State out and in.

    @pytest.mark.parametrize("blocks", [1, 2, 3, 5])
    def test_what_was_exported_and_imported_gives_the_same_bits(
        self, engine: Engine, blocks: int
    ) -> None:
        prompt = tokens(blocks * SIZE + 7)
        saved = prefill(engine, 0, prompt)
        assert [set(block) for block in saved] == [set(engine.geometry.parts)] * blocks
        cold = go_on(engine, 0, prompt[blocks * SIZE :])
        engine.clear(0)
        restore(engine, 0, saved)
        assert engine.length(0) == blocks * SIZE
        assert engine.restored(0)
        assert np.array_equal(go_on(engine, 0, prompt[blocks * SIZE :]), cold)

    @pytest.mark.parametrize("blocks", [2, 5, 9])
    def test_runs_of_blocks_give_the_same_bits(self, engine: Engine, blocks: int) -> None:
        prompt = tokens(blocks * SIZE + 7)
        saved = prefill(engine, 0, prompt)
        cold = go_on(engine, 0, prompt[blocks * SIZE :])
        engine.clear(0)
        runs = restore_runs(engine, saved)
        assert (sum(runs), engine.length(0)) == (blocks, blocks * SIZE)
        assert engine.restored(0)
        assert np.array_equal(go_on(engine, 0, prompt[blocks * SIZE :]), cold)
        if engine.geometry.has_kv:
            for block in range(blocks):
                assert bytes(engine.export(0, block)[K]) == saved[block][K]

    def test_a_run_ends_before_a_block_that_would_be_refused(self, engine: Engine) -> None:
        saved = prefill(engine, 0, tokens(4 * SIZE))
        for part in engine.geometry.parts:
            engine.clear(0)
            bad = [saved[0], saved[1], {**saved[2], part: saved[3][part]}, saved[3]]
            states: list[BlockState] = [
                {p: s[p] for p in s if p is not B or p is part} for s in bad
            ]
            done = 0
            while done < 2:
                done += engine.import_run(0, done, states[done:])
            assert done == 2
            with pytest.raises(StateRejected, match="position"):
                engine.import_run(0, 2, states[2:])

    def test_what_was_imported_can_be_exported(self, engine: Engine) -> None:
        saved = prefill(engine, 0, tokens(3 * SIZE))
        engine.clear(0)
        restore(engine, 0, saved)
        again = engine.export(0, 2, boundary=True)
        assert {part: bytes(payload) for part, payload in again.items()} == saved[2]

    def test_an_export_disturbs_nobody(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        prompt = tokens(3 * SIZE + 5)
        before = cold(prompt)
        prefill(engine, 0, prompt)
        if engine.geometry.has_kv:
            for block in (2, 0, 1):
                engine.export(0, block)
        assert np.array_equal(go_on(engine, 0, prompt[3 * SIZE :]), before)

    def test_a_boundary_is_taken_at_the_end_only(self, engine: Engine) -> None:
        engine.decode([Chunk(0, tokens(SIZE + 3))])
        if engine.geometry.has_boundary:
            with pytest.raises(StateRejected, match="where the sequence ends"):
                engine.export(0, 0, boundary=True)
        assert B not in engine.export(0, 0)

    def test_a_window_that_is_gone_is_left_out(self, engine: Engine) -> None:
        prompt = tokens(12 * SIZE)
        saved = prefill(engine, 0, prompt)
        late = engine.export(0, 0)
        assert W not in late
        if engine.geometry.has_kv:
            assert bytes(late[K]) == saved[0][K]

    def test_a_placeholder_is_never_exported(self, engine: Engine) -> None:
        if not engine.geometry.window_blocks:
            pytest.skip("no windows")
        saved = prefill(engine, 0, tokens(5 * SIZE))
        engine.clear(0)
        restore(engine, 0, saved)
        assert [W in engine.export(0, block) for block in range(5)] == [False] * 3 + [True] * 2

    @pytest.mark.parametrize("block", [1, 3])
    def test_blocks_out_of_order_are_refused(self, engine: Engine, block: int) -> None:
        saved = prefill(engine, 0, tokens(4 * SIZE))
        engine.clear(0)
        with pytest.raises(StateRejected, match=f"block {block} does not follow"):
            engine.import_(0, block, saved[block])
        assert engine.length(0) == 0
        engine.import_(0, 0, saved[0])
        with pytest.raises(StateRejected):
            engine.import_(0, 0, saved[0])

    def test_a_block_does_not_follow_half_a_block(self, engine: Engine) -> None:
        saved = prefill(engine, 0, tokens(2 * SIZE))
        engine.clear(0)
        engine.decode([Chunk(0, tokens(30))])
        with pytest.raises(StateRejected):
            engine.import_(0, 1, saved[1])

    def test_a_missing_part_is_noticed(self, engine: Engine) -> None:
        saved = prefill(engine, 0, tokens(4 * SIZE))
        for part in engine.geometry.parts:
            engine.clear(0)
            if part is K:
                with pytest.raises(StateRejected, match="without its kv"):
                    restore(engine, 0, saved, without=[K])
            else:
                restore(engine, 0, saved, without=[part])
                assert not engine.restored(0), part
        engine.clear(0)
        restore(engine, 0, saved)
        assert engine.restored(0)

    def test_one_window_too_few_is_noticed(self, engine: Engine) -> None:
        if not engine.geometry.window_blocks:
            pytest.skip("no windows")
        saved = prefill(engine, 0, tokens(4 * SIZE))
        engine.clear(0)
        restore(engine, 0, [{**saved[0]}, {**saved[1]}])
        engine.import_(0, 2, {K: saved[2][K]})
        engine.import_(0, 3, saved[3])
        assert not engine.restored(0)

    def test_a_boundary_before_the_end_is_not_one_at_the_end(self, engine: Engine) -> None:
        """It may be there, and must then be no false witness."""
        if not engine.geometry.has_boundary:
            pytest.skip("no boundaries")
        prompt = tokens(2 * SIZE + 5)
        saved = prefill(engine, 0, prompt)
        engine.clear(0)
        engine.import_(0, 0, saved[0])
        assert engine.restored(0)
        engine.import_(0, 1, {part: saved[1][part] for part in saved[1] if part is not B})
        assert not engine.restored(0)
        assert not engine.can_truncate(0, SIZE), "llama.cpp dropped it"

    # Tails.

    def saved_tail(self, engine: Engine, prompt: Tokens, steps: int) -> tuple[Saved, Logits]:
        """Blocks and the tail, whose last ``steps`` tokens were computed one by one; and the logits
        that follow.
        """
        saved = prefill(engine, 0, prompt)
        rest = prompt[len(prompt) // SIZE * SIZE :]
        if len(rest) > steps:
            engine.decode([Chunk(0, rest[: len(rest) - steps])])
        for token in rest[len(rest) - steps :]:
            engine.decode([Chunk(0, np.array([token]))])
        state = engine.export(0, len(saved), boundary=True)
        kept = {part: bytes(payload) for part, payload in state.items()}
        assert kept.keys() == set(engine.geometry.parts)
        after = go_on(engine, 0, tokens(SIZE - len(rest) + 9, 5))
        engine.clear(0)
        return [*saved, kept], after

    def restore_tail(self, engine: Engine, saved: Saved, count: int) -> None:
        """As a restore would: windows of the last blocks, and all of the tail."""
        for index, block in enumerate(saved[:-1]):
            parts = wanted(engine.geometry, index, len(saved) - 1) - {B}
            engine.import_(0, index, {part: block[part] for part in parts})
        engine.import_(0, len(saved) - 1, saved[-1], count)

    @pytest.mark.parametrize(("count", "steps"), [(1, 1), (21, 0), (40, 17), (63, 63)])
    @pytest.mark.parametrize("blocks", [0, 1, 5])
    def test_a_tail_gives_the_same_bits(
        self, engine: Engine, blocks: int, count: int, steps: int
    ) -> None:
        saved, after = self.saved_tail(engine, tokens(blocks * SIZE + count), steps)
        self.restore_tail(engine, saved, count)
        assert engine.length(0) == blocks * SIZE + count
        assert engine.restored(0)
        exported = engine.export(0, blocks, boundary=True)
        assert {part: bytes(view) for part, view in exported.items()} == saved[-1]
        assert np.array_equal(go_on(engine, 0, tokens(SIZE - count + 9, 5)), after)

    def test_nothing_follows_a_tail(self, engine: Engine) -> None:
        saved, _ = self.saved_tail(engine, tokens(2 * SIZE + 5), 0)
        self.restore_tail(engine, saved, 5)
        for block in (2, 3):
            with pytest.raises(StateRejected, match="does not follow"):
                engine.import_(0, block, saved[1])
        with pytest.raises(StateRejected, match="beyond"):
            engine.export(0, 3)

    def test_a_part_of_a_tail_is_missing(self, engine: Engine) -> None:
        saved, _ = self.saved_tail(engine, tokens(2 * SIZE + 5), 2)
        for part in engine.geometry.parts:
            engine.clear(0)
            less = {p: payload for p, payload in saved[-1].items() if p is not part}
            try:
                self.restore_tail(engine, [*saved[:-1], less], 5)
            except StateRejected:
                continue
            assert not engine.restored(0), part

    @pytest.mark.parametrize("count", [0, 4, 6, SIZE, SIZE + 1])
    def test_a_tail_of_another_number_of_tokens_is_refused(
        self, engine: Engine, count: int
    ) -> None:
        saved, _ = self.saved_tail(engine, tokens(2 * SIZE + 5), 2)
        with pytest.raises(StateRejected):
            self.restore_tail(engine, saved, count)

    @pytest.mark.parametrize("part", list(Part))
    def test_a_damaged_tail_is_refused(
        self, engine: Engine, part: Part, header_bytes: Callable[[Part], Sequence[int]]
    ) -> None:
        if part not in engine.geometry.parts:
            pytest.skip("not on this engine")
        saved, after = self.saved_tail(engine, tokens(2 * SIZE + 5), 2)
        heads = [at for at in header_bytes(part) if at < 16]
        for name, payload in self.bad(saved[-1][part], heads).items():
            engine.clear(0)
            with pytest.raises(StateRejected):
                self.restore_tail(engine, [*saved[:-1], {**saved[-1], part: payload}], 5)
            assert name
        engine.clear(0)
        self.restore_tail(engine, saved, 5)
        assert np.array_equal(go_on(engine, 0, tokens(SIZE - 5 + 9, 5)), after)

    def test_an_empty_sequence_is_restored(self, engine: Engine) -> None:
        assert engine.restored(0)

    # Payloads that are not what they should be.

    def bad(self, good: bytes, header_bytes: Sequence[int]) -> dict[str, bytes]:
        flipped = {}
        for at in header_bytes:
            changed = bytearray(good)
            changed[at] ^= 0x04
            flipped[f"a bit of byte {at}"] = bytes(changed)
        return {
            "empty": b"",
            "one byte": good[:1],
            "half": good[: len(good) // 2],
            "all but the last byte": good[:-1],
            "one byte more": good + b"\0",
            "zeros": bytes(len(good)),
            **flipped,
        }

    def refused(self, engine: Engine, block: int, state: dict[Part, bytes]) -> bool:
        try:
            engine.import_(0, block, state)
        except StateRejected:
            return True
        return False

    @pytest.mark.parametrize("part", list(Part))
    def test_a_damaged_payload_is_refused_and_leaves_nothing_behind(
        self,
        engine: Engine,
        part: Part,
        header_bytes: Callable[[Part], Sequence[int]],
        cold: Callable[[Tokens], Logits],
    ) -> None:
        if part not in engine.geometry.parts:
            pytest.skip("not on this engine")
        prompt = tokens(2 * SIZE + 9)
        before = cold(prompt)
        saved = prefill(engine, 0, prompt)
        engine.decode([Chunk(1, tokens(40, 3))])
        for name, payload in self.bad(saved[1][part], header_bytes(part)).items():
            engine.clear(0)
            engine.import_(0, 0, saved[0])
            assert self.refused(engine, 1, {**saved[1], part: payload}), name
            engine.clear(0)
            restore(engine, 0, saved)
            exported = engine.export(0, 1, boundary=True)
            assert {p: bytes(v) for p, v in exported.items()} == saved[1], name
            engine.clear(0)
        engine.clear(1)
        assert np.array_equal(cold(prompt), before)

    def test_another_blocks_payload_is_refused(self, engine: Engine) -> None:
        saved = prefill(engine, 0, tokens(3 * SIZE))
        for part in engine.geometry.parts:
            engine.clear(0)
            engine.import_(0, 0, saved[0])
            with pytest.raises(StateRejected, match="position"):
                engine.import_(0, 1, {**saved[1], part: saved[2][part]})

    def test_another_models_payload_is_refused(
        self, engine: Engine, stranger: Saved, cold: Callable[[Tokens], Logits]
    ) -> None:
        before = cold(tokens(70))
        for part in engine.geometry.parts:
            good = prefill(engine, 0, tokens(SIZE))
            engine.clear(0)
            foreign = next((v for v in stranger[0].values()), b"")
            with pytest.raises(StateRejected):
                engine.import_(0, 0, {**good[0], part: stranger[0].get(part, foreign)})
            engine.clear(0)
        assert np.array_equal(cold(tokens(70)), before)

    # Truncate and fork.

    def expected(self, geometry: Geometry, length: int, full: int) -> bool | None:
        """Whether it must be possible; None: only the engine can tell."""
        if length in (0, full):
            return True
        if geometry.has_boundary:
            return False
        return None if geometry.window_blocks else True

    @pytest.mark.parametrize("length", [0, 1, 64, 100, 256, 383, 384, 447, 448])
    def test_truncate_leaves_a_state_that_goes_on_or_says_no(
        self, engine: Engine, length: int, cold: Callable[[Tokens], Logits]
    ) -> None:
        prompt, other = tokens(7 * SIZE), tokens(9, 4)
        prefill(engine, 0, prompt)
        can = engine.can_truncate(0, length)
        assert self.expected(engine.geometry, length, len(prompt)) in (can, None)
        if can:
            engine.truncate(0, length)
            assert engine.length(0) == length
            rows = go_on(engine, 0, other)
            engine.clear(0)
            fresh = np.concatenate([prompt[:length], other])
            if length % SIZE == 0:
                assert np.array_equal(rows, cold(fresh))
            else:  # calls of other lengths than a cold run's give nearly the same bits
                assert alike(rows[0], cold(fresh)[0])
        else:
            with pytest.raises(StateRejected, match=f"at position {length} is gone"):
                engine.truncate(0, length)
            assert engine.length(0) == len(prompt)
            assert engine.restored(0)

    def test_a_window_model_goes_back_as_far_as_its_windows_reach(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        if not engine.geometry.window_blocks:
            pytest.skip("no windows")
        prompt, other = tokens(12 * SIZE), tokens(9, 4)
        prefill(engine, 0, prompt)
        can = [engine.can_truncate(0, length) for length in range(12 * SIZE + 1)]
        first = can.index(True, 1)
        assert all(can[first:]), "no gaps"
        assert 4 * SIZE < first < 11 * SIZE, "the oldest windows are gone"
        block = -(-first // SIZE) * SIZE
        engine.truncate(0, block)
        rows = go_on(engine, 0, other)
        engine.clear(0)
        # A ring of window cells that has turned sums in another order than a fresh one.
        assert alike(rows[0], cold(np.concatenate([prompt[:block], other]))[0])

    def test_nobody_truncates_beyond_the_end(self, engine: Engine) -> None:
        engine.decode([Chunk(0, tokens(10))])
        assert not engine.can_truncate(0, 11)
        with pytest.raises(StateRejected):
            engine.truncate(0, 11)

    def test_placeholders_are_never_truncated_into(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        if not engine.geometry.window_blocks:
            pytest.skip("no windows")
        prompt = tokens(8 * SIZE + 9)
        saved = prefill(engine, 0, prompt)
        expected = cold(np.concatenate([prompt[: 6 * SIZE], tokens(9, 4)]))
        engine.clear(0)
        restore(engine, 0, saved[:6])
        for length in range(1, 6 * SIZE - 1):
            assert not engine.can_truncate(0, length), length
        assert engine.can_truncate(0, 6 * SIZE - 1), "the last token sees the last window exactly"
        with pytest.raises(StateRejected):
            engine.truncate(0, 5 * SIZE)
        assert not engine.fork(0, 1, 5 * SIZE)
        assert engine.length(1) == 0
        prefill(engine, 0, prompt, start=6 * SIZE)
        assert not engine.can_truncate(0, 6 * SIZE - 2)
        assert engine.can_truncate(0, 6 * SIZE), "from there on the windows are real"
        engine.truncate(0, 6 * SIZE)
        assert np.array_equal(go_on(engine, 0, tokens(9, 4)), expected)

    def test_a_fork_shares_the_prefix_and_then_goes_its_own_way(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        prompt, one, two = tokens(4 * SIZE), tokens(6, 7), tokens(6, 8)
        colds = [cold(np.concatenate([prompt, tail])) for tail in (one, two)]
        prefill(engine, 0, prompt)
        engine.decode([Chunk(1, tokens(33, 9))])
        assert engine.fork(0, 1, len(prompt))
        assert [engine.length(s) for s in (0, 1)] == [256, 256], "the target was cleared first"
        assert engine.restored(1)
        rows = [go_on(engine, 1, two), go_on(engine, 0, one)]
        assert alike(rows[0], colds[1])
        assert alike(rows[1], colds[0])
        assert not alike(rows[0], rows[1])
        engine.clear(0)
        assert engine.length(1) == 256 + 6 + STEPS

    @pytest.mark.parametrize("length", [0, 64, 200, 448, 449])
    def test_a_fork_in_the_middle_needs_what_a_truncate_needs(
        self, engine: Engine, length: int, cold: Callable[[Tokens], Logits]
    ) -> None:
        prompt, other = tokens(7 * SIZE), tokens(9, 4)
        prefill(engine, 0, prompt)
        can = engine.can_truncate(0, length)
        assert engine.fork(0, 1, length) is can
        assert engine.length(1) == (length if can else 0)
        assert engine.length(0) == len(prompt)
        rows = go_on(engine, 1, other)
        engine.clear(0)
        engine.clear(1)
        fresh = np.concatenate([prompt[: length if can else 0], other])
        assert alike(rows, cold(fresh)), "in both cases it goes on from what it says it holds"

    def test_a_fork_of_half_a_restore_is_none_either(self, engine: Engine) -> None:
        """What the source lacks the target lacks."""
        saved = prefill(engine, 0, tokens(4 * SIZE))
        for part in set(engine.geometry.parts) - {K}:
            engine.clear(0)
            restore(engine, 0, saved, without=[part])
            assert not engine.restored(0)
            if engine.fork(0, 1, engine.length(0)):
                assert not engine.restored(1)

    # Care.

    def test_the_self_test_passes_and_leaves_nothing(
        self, engine: Engine, cold: Callable[[Tokens], Logits]
    ) -> None:
        before = cold(tokens(100))
        verdict = engine.self_test()
        assert verdict.passed
        assert verdict.exact
        assert "bit-identical" in verdict.detail
        assert [engine.length(s) for s in (0, 1)] == [0, 0]
        assert np.array_equal(cold(tokens(100)), before)

    def test_closed_twice(self, engine: Engine) -> None:
        engine.close()
        engine.close()

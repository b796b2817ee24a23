"""llama.cpp as an engine: unified KV, one spare sequence through which blocks travel.

``seq_cp`` in a unified cache only tags cells, so the spare sequence can take any block's positions
out of a live sequence (``export``) or bring them in (``import_``) without disturbing it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spillcache.config import EngineConfig
from spillcache.engine.base import (
    AdapterScales,
    Chunk,
    Embedding,
    Engine,
    GrammarKind,
    Guide,
    Limits,
    Logits,
    Objects,
    Sampler,
    SamplingParams,
    SelfTest,
    Tokens,
)
from spillcache.engine.llama_adapters import LlamaAdapters
from spillcache.engine.llama_batch import LlamaBatch
from spillcache.engine.llama_embedder import LlamaEmbedder
from spillcache.engine.llama_identity import identity_of
from spillcache.engine.llama_import import LlamaImport
from spillcache.engine.llama_info import model_info
from spillcache.engine.llama_library import library, load_model, new_context, window_cells
from spillcache.engine.llama_memory import PARTIAL_ONLY, LlamaMemory
from spillcache.engine.llama_sampler import LlamaSampler
from spillcache.engine.llama_sections import HEADER_BYTES, header
from spillcache.engine.llama_sequence import NO_BOUNDARY, LlamaSequence
from spillcache.engine.llama_state import LlamaState
from spillcache.engine.llama_text import LlamaText
from spillcache.engine.self_test import run_self_test
from spillcache.errors import ConfigError, ContextFullError, DecodeError, StateRejected
from spillcache.state import HEADROOM_BYTES, BlockState, Buffer, Part

log = logging.getLogger("spillcache.engine")

_NO_SLOT = 1
"""llama_decode: no cells for this batch; nothing was changed."""


class LlamaEngine(Engine):
    """See Engine. Raises ModelLoadError, EngineLibraryError and ConfigError when made.

    ``stop`` is asked while the model loads; when it says so, ModelLoadError is raised soon.
    """

    def __init__(self, config: EngineConfig, stop: Callable[[], bool] = lambda: False) -> None:
        self._config = config
        self._lib = library()
        self._api = self._lib.api
        if config.ubatch_tokens < config.block_tokens:
            raise ConfigError(f"-ub must be at least {config.block_tokens}, one block")
        self._model: Any = load_model(self._lib, config, stop)
        self._context: Any = None
        self._embedder = LlamaEmbedder(self._lib, self._model, config)
        try:
            self._adapters = LlamaAdapters(self._lib, self._model, config.adapters, stop)
            self.adapters = self._adapters.known
            self._open(config)
        except BaseException:
            self.close()
            raise

    def _open(self, config: EngineConfig) -> None:
        api, block = self._api, config.block_tokens
        trained = int(api.llama_model_n_ctx_train(self._model))
        cells = config.context_tokens or trained
        cells = max(-(-cells // 256) * 256, 2 * block)
        self._spare = config.slots
        self._context = new_context(self._lib, self._model, config, config.slots + 1, cells)
        self._memory = LlamaMemory(api, self._context)
        self._text = LlamaText(api, self._model, config.chat_template)
        self._sequences = [LlamaSequence() for _ in range(config.slots + 1)]
        self.limits = Limits(
            context_tokens=int(api.llama_n_ctx(self._context)),
            train_tokens=trained,
            call_tokens=int(api.llama_n_ubatch(self._context)) // block * block,
            sequences=config.slots,
            vocabulary=self._text.size,
        )
        self._batch = LlamaBatch(api, self.limits.call_tokens)
        self._state = self._probe()
        self._imports = LlamaImport(
            self._memory,
            self._state,
            self._spare,
            ring=window_cells(api, self._context, self._model, config),
            call_tokens=self.limits.call_tokens,
        )
        self.geometry = self._state.geometry(block, self.limits.call_tokens)
        self.identity = identity_of(
            self._lib, self._model, config, self._state, self.limits.context_tokens
        )
        self.fim = self._text.fim
        self.part_bytes = self._state.part_bytes
        self.info = model_info(api, self._model, config.model.stem, self._text)
        threading.Thread(
            target=self._text.prepare, name="spillcache-vocabulary", daemon=True
        ).start()

    # What it is.

    def _probe(self) -> LlamaState:
        """Compute one block of arbitrary tokens and read the layout of its state; also warms up."""
        block = self._config.block_tokens
        tokens = (np.arange(block) % self.limits.vocabulary).astype(np.uint32)
        self.decode([Chunk(0, tokens)])
        self._memory.copy(0, self._spare, 0, block)
        full, second = self._memory.sizes(self._spare)
        blob = bytes(self._memory.read(self._spare, full))
        self._memory.drop(self._spare)
        self._forget_all()
        recurrent = bool(self._api.llama_model_is_recurrent(self._model))
        hybrid = bool(self._api.llama_model_is_hybrid(self._model))
        multi_rope = int(self._api.llama_model_rope_type(self._model)) in (8, 24, 40)
        return LlamaState.read(
            blob,
            len(blob) if recurrent else second,
            recurrent=recurrent,
            hybrid=hybrid,
            extra_words=3 if multi_rope else 0,
            window_tokens=int(self._api.llama_model_n_swa(self._model)),
            block_tokens=block,
        )

    # Text.

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """See Engine."""
        return self._text.tokenize(text, add_special=add_special, parse_special=parse_special)

    def least_tokens(self, text: str, most: int) -> int:
        """See Engine."""
        return self._text.least_tokens(text, most)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """See Engine."""
        return self._text.token_bytes(token, special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """See Engine."""
        return self._text.detokenize(tokens, special=special)

    def is_end(self, token: int) -> bool:
        """See Engine."""
        return self._text.is_end(token)

    def chat_prompt(
        self,
        messages: Objects,
        *,
        add_generation_prompt: bool = True,
        tools: Objects | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """See Engine."""
        return self._text.chat_prompt(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
        )

    def guide(self, kind: GrammarKind, text: str) -> Guide:
        """See Engine."""
        return self._text.guides.make(kind, text)

    # Tokens in, logits out.

    def length(self, sequence: int) -> int:
        """See Engine."""
        return self._sequences[sequence].length

    def decode(self, chunks: Sequence[Chunk]) -> None:
        """See Engine."""
        starts = [self._sequences[chunk.sequence].length for chunk in chunks]
        self._batch.fill(chunks, starts)
        code = int(self._api.llama_decode(self._context, self._batch.native))
        if code == _NO_SLOT:
            raise ContextFullError(
                f"the context of {self.limits.context_tokens} tokens is full; give a larger -c"
            )
        for chunk in chunks:
            sequence = self._sequences[chunk.sequence]
            sequence.length += len(chunk.tokens)
            sequence.boundary_at = sequence.length
        if code != 0:
            raise DecodeError(f"llama_decode failed with code {code}")

    def use_adapters(self, scales: AdapterScales) -> None:
        """See Engine."""
        self._adapters.use(self._context, scales)

    def logits(self, sequence: int) -> Logits:
        """See Engine."""
        row = self._api.llama_get_logits_ith(self._context, self._row(sequence))
        return np.ctypeslib.as_array(row, (self.limits.vocabulary,)).copy()

    def sampler(self, params: SamplingParams, history: Tokens) -> Sampler:
        """See Engine."""
        return LlamaSampler(
            self._api,
            self._context,
            self._model,
            params,
            history,
            self._row,
            self._text.ends,
        )

    def embed(self, tokens: Tokens) -> Embedding:
        """See Engine."""
        return self._embedder.embed(tokens) if self._config.embeddings else super().embed(tokens)

    def _row(self, sequence: int) -> int:
        return self._batch.rows[sequence]

    # State out.

    def export(self, sequence: int, block: int, *, boundary: bool = False) -> BlockState:
        """See Engine."""
        state, length = self._state, self._sequences[sequence].length
        start = block * self.geometry.block_tokens
        stop = min(start + self.geometry.block_tokens, length)
        if stop <= start:
            raise StateRejected(f"block {block} lies beyond a sequence of {length}")
        with_boundary = boundary and state.recurrent is not None
        if with_boundary and length != stop:
            raise StateRejected("a boundary can only be taken where the sequence ends")
        parts: dict[Part, Buffer] = {}
        # One buffer holds everything: the block's sections first, the boundary behind them.
        used = 0
        if state.kv is not None:
            self._memory.copy(sequence, self._spare, start, stop)
            try:
                full, second = self._memory.sizes(self._spare)
                view = self._memory.read(self._spare, full)
            finally:
                self._memory.drop(self._spare)
            used, first_end = full, HEADER_BYTES + full - second
            parts[Part.KV] = view[HEADER_BYTES:first_end]
            if self._has_window(view[first_end:], sequence, start, stop):
                parts[Part.WINDOW] = view[first_end:]
        if with_boundary:
            size = self._memory.partial_size(sequence)
            parts[Part.BOUNDARY] = self._memory.read(sequence, size, used, PARTIAL_ONLY)[
                HEADER_BYTES:
            ]
            if Part.KV in parts:  # the buffer may have grown: slice again
                view = self._memory.view(used)
                parts[Part.KV] = view[HEADER_BYTES:first_end]
        return parts

    def export_run(self, sequence: int, block: int, count: int, memory: memoryview) -> int:
        """See Engine."""
        start, stop = (at * self.geometry.block_tokens for at in (block, block + count))
        layout = self._state.run_layout(stop - start)
        if layout is None or stop > self._sequences[sequence].length:
            return 0
        self._memory.copy(sequence, self._spare, start, stop)
        try:
            full, second = self._memory.sizes(self._spare)
            if full > len(memory):
                return 0
            self._memory.read_into(self._spare, memory[:full])
        finally:
            self._memory.drop(self._spare)
        rest = self._state.nothing_more
        end = HEADER_BYTES + layout.size
        in_order = layout.in_order(memory[HEADER_BYTES:end], start)
        if full - second + HEADER_BYTES != end or end + len(rest) > len(memory) or not in_order:
            return 0
        memory[end : end + len(rest)] = rest
        return layout.size + len(rest)

    def split_run(self, payload: Buffer, count: int) -> Sequence[Buffer]:
        """See Engine."""
        size = self.geometry.block_tokens
        layout, kv = self._state.run_layout(count * size), self._state.kv
        if kv is None or layout is None or len(payload) < layout.size:
            return super().split_run(payload, count)
        return kv.split(payload, count)

    def _has_window(self, section: memoryview, sequence: int, start: int, stop: int) -> bool:
        window = self._state.window
        if window is None or start < self._sequences[sequence].windows_from:
            return False
        try:
            window.of(stop - start).check(section, start, stop)
        except StateRejected:
            return False
        return True

    # State in.

    def import_(
        self, sequence: int, block: int, state: BlockState, tokens: int | None = None
    ) -> None:
        """See Engine."""
        size = self.geometry.block_tokens
        stop = block * size + (size if tokens is None else tokens)
        if not block * size < stop <= block * size + size:
            raise StateRejected(f"a tail of {tokens} tokens")
        self._import(sequence, block, [state], stop)

    def import_run(self, sequence: int, block: int, states: Sequence[BlockState]) -> int:
        """See Engine. Small blocks cost more calls than copies, so what is alike goes in as one."""
        size, count = self.geometry.block_tokens, 1
        while count < len(states):
            if not self._joins(states[count], states[count - 1], (block + count) * size):
                break
            count += 1
        self._import(sequence, block, states[:count], (block + count) * size)
        return count

    def _joins(self, state: BlockState, before: BlockState, start: int) -> bool:
        """Whether a whole block from ``start`` on can go in together with the one before it."""
        if self._state.kv is None or self._state.v_trans or Part.BOUNDARY in state:
            return False
        if before.keys() not in (state.keys(), state.keys() - {Part.WINDOW}):
            return False
        try:
            self._check(state, start, start + self.geometry.block_tokens)
        except StateRejected:  # it is to be the first of its own run
            return False
        return True

    def import_in_place(self, sequence: int, block: int, count: int, memory: memoryview) -> bool:
        """See Engine."""
        start, stop = (at * self.geometry.block_tokens for at in (block, block + count))
        layout = self._state.run_layout(stop - start)
        if layout is None:
            return False
        payload = memory[HEADROOM_BYTES:]
        if payload[layout.size :] != self._state.nothing_more:
            raise StateRejected("a run of blocks with something else behind it")
        self._import(sequence, block, [{Part.KV: payload[: layout.size]}], stop, memory)
        return True

    def _import(
        self,
        sequence: int,
        block: int,
        states: Sequence[BlockState],
        stop: int,
        memory: memoryview | None = None,
    ) -> None:
        """Append ``states``, which end at position ``stop``. ``memory``: of ``import_in_place``."""
        known, start = self._sequences[sequence], block * self.geometry.block_tokens
        if known.length != start:
            raise StateRejected(f"block {block} does not follow a sequence of {known.length}")
        size = self.geometry.block_tokens
        begin = (start + n * size for n, state in enumerate(states) if Part.WINDOW in state)
        windows = next(begin, stop)
        if self._state.kv is not None:
            first = stop if memory is not None else start + size
            self._check(states[0], start, min(stop, first))
            lay_out = known.lay_out(start, windows, stop) if self._lays_out(known, stop) else 0
            with self._room(stop - start, stop - windows, len(states)):
                self._imports.append(sequence, start, states, lay_out=lay_out, memory=memory)
            known.window_at = 0 if windows < stop else known.window_at
        if self._state.window is not None and windows > start:
            known.windows_from = windows
        boundary = states[-1].get(Part.BOUNDARY)
        # An earlier one is gone: copying a block replaces the recurrent state by the block's none.
        known.boundary_at = NO_BOUNDARY
        if self._state.recurrent is not None and boundary is not None:
            self._state.recurrent.check(boundary, stop - 1)
            self._memory.write(sequence, (header(sequence), boundary), PARTIAL_ONLY)
            known.boundary_at = stop
        known.length = stop

    def expect_window(self, sequence: int, block: int) -> None:
        """See Engine. The first import replaces all that is there, so it must have been."""
        known, size = self._sequences[sequence], self.geometry.block_tokens
        start = block * size
        lays_out = self._lays_out(known, start + size) and not known.window_at
        if lays_out and 0 < known.length <= start:
            with self._room(size):
                self._imports.lay_out_windows(sequence, start)
            known.window_at = start

    def _lays_out(self, known: LlamaSequence, stop: int) -> bool:
        """Whether windows up to position ``stop`` get the cells of a cold run, by placeholders:
        where nobody else holds any, or the ring has not come round. Else there is no room for that.
        """
        others = self._holds() - known.length
        return self._state.blank is not None and (not others or others + stop <= self._imports.ring)

    @contextlib.contextmanager
    def _room(self, tokens: int, windows: int = 0, blocks: int = 1) -> Iterator[None]:
        """Raise ContextFullError where ``tokens``, the last of them with ``windows``, are rejected
        for want of cells.
        """
        try:
            yield
        except StateRejected as error:
            error.blocks = blocks
            # A sequence's cells in the ring are free again when they are out of sight.
            seen = sum(min(each.length, self._state.window_tokens) for each in self._sequences)
            in_ring = not windows or seen + windows <= self._imports.ring
            if in_ring and self._holds() + tokens <= self.limits.context_tokens:
                raise
            raise ContextFullError("there is no room for a restored block") from error

    def _holds(self) -> int:
        """How many tokens all sequences hold; those that sequences share count in each."""
        return sum(known.length for known in self._sequences)

    def _check(self, state: BlockState, start: int, stop: int) -> None:
        """Raise StateRejected unless ``state`` has the attention parts of these positions."""
        kv, layout = state.get(Part.KV), self._state.kv
        if kv is None or layout is None:
            raise StateRejected("a block without its kv part")
        layout.of(stop - start).check(kv, start, stop)
        window, blank = state.get(Part.WINDOW), self._state.blank
        if window is not None and self._state.window is not None:
            self._state.window.of(stop - start).check(window, start, stop)
        if window is None and blank is not None and (stop - start) % blank.layout.cells:
            raise StateRejected("a tail without its window")

    def restored(self, sequence: int) -> bool:
        """See Engine."""
        return self._can_go_on(self._sequences[sequence], self._sequences[sequence].length)

    def _can_go_on(self, known: LlamaSequence, length: int) -> bool:
        recurrent = self._state.recurrent is not None
        if known.window_at or (recurrent and known.boundary_at != length):
            return length == 0
        return known.windows_from <= self._window_start(length)

    def _window_start(self, length: int) -> int:
        """The oldest position that the token at position ``length`` sees in a window."""
        return max(0, length - self._state.window_tokens + 1)

    # Sequences.

    def can_truncate(self, sequence: int, length: int) -> bool:
        """See Engine."""
        known = self._sequences[sequence]
        if length > known.length:
            return False
        if length in (0, known.length):
            return True
        if not self._can_go_on(known, length):
            return False
        if self._state.window is None:
            return True
        # llama.cpp keeps a sequence's window cells without gaps from here on.
        oldest = self._memory.oldest(sequence)
        return 0 <= oldest <= self._window_start(length)

    def truncate(self, sequence: int, length: int) -> None:
        """See Engine."""
        if not self.can_truncate(sequence, length):
            raise StateRejected(f"the state at position {length} is gone")
        known = self._sequences[sequence]
        if length == known.length:
            return
        if length == 0:
            self.clear(sequence)
            return
        if not self._memory.cut(sequence, length):
            raise StateRejected(f"llama.cpp can't truncate the sequence to {length}")
        known.length = known.boundary_at = length

    def fork(self, source: int, target: int, length: int) -> bool:
        """See Engine."""
        self.clear(target)
        if not self.can_truncate(source, length):
            return False
        if length == 0:  # llama.cpp would copy a recurrent state whatever the range
            return True
        known = self._sequences[source]
        self._memory.copy(source, target, 0, length)
        if self._state.window is not None and not self._config.swa_full:
            try:
                # Whole blocks: they may be exported, and the last token may be taken back.
                size = self.geometry.block_tokens
                start = self._window_start(length - 1) // size * size
                self._imports.own_windows(target, range(start, length, size), length)
            except StateRejected:  # no room in the ring
                self.clear(target)
                return False
        # Where there is recurrent state, the source's was found to be the one at this length, or
        # is as missing here as there.
        boundary_at = length if self._state.recurrent is None else known.boundary_at
        self._sequences[target] = LlamaSequence(length, known.windows_from, boundary_at)
        return True

    def clear(self, sequence: int) -> None:
        """See Engine."""
        known, self._sequences[sequence] = self._sequences[sequence], LlamaSequence()
        if self._holds() or 2 * known.length < self.limits.context_tokens:
            self._memory.drop(sequence)
        else:  # there is nothing else, and this is quicker than to look for most of the cells
            self._memory.clear()

    def self_test(self) -> SelfTest:
        """See Engine."""
        if self._state.problem:
            return SelfTest(False, False, self._state.problem)
        try:
            return run_self_test(self, self._state.spoiled, self._spare)
        finally:
            self._forget_all()

    def close(self) -> None:
        """See Engine. A text that is still tokenised elsewhere keeps the model in memory."""
        text, imports = getattr(self, "_text", None), getattr(self, "_imports", None)
        if imports is not None:
            imports.close()
        free = text is None or text.close()
        self._embedder.close()
        if self._context is not None:
            self._api.llama_free(self._context)
            self._context = None
        if self._model is not None and free:
            self._api.llama_model_free(self._model)
            self._model = None

    def _forget_all(self) -> None:
        # A fresh context's cell layout comes back: warm runs lay out cells as cold ones.
        self._memory.clear()
        self._sequences = [LlamaSequence() for _ in self._sequences]

"""Tiny random-weight GGUF models that the real llama.cpp library loads: one per memory kind.

The weights mean nothing, but the state does: attention, sliding windows and recurrences behave as
in a trained model of that architecture, in milliseconds and a few megabytes. A model's bytes depend
on its kind and ``Shape`` alone. Names of tensors and keys: the GGUF specification and llama.cpp's
loaders of each architecture.
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BOS, EOS, IM_START, IM_END = 1, 2, 3, 4
FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
"""By their names llama.cpp knows what they are for."""
FIRST_BYTE = 5
"""The token of byte b is FIRST_BYTE + b."""
SPACE = "\u2581"
"""SentencePiece writes a space so."""
_EMBEDDING_SCALE = 0.02
_QUERY_GAIN = 4.0
"""Sharpens attention: with uniform weights over a long prompt nothing in it would matter."""
_TIME_STEP = -5.0
"""Before the softplus: small steps, so that a recurrence remembers hundreds of tokens."""


@dataclass(frozen=True)
class Shape:
    """What a model's bytes depend on, besides its kind; llama.cpp's names, counts unless noted."""

    n_embd: int = 128
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    """A multiple of 32, so that q8_0 K and V and flash attention work."""
    n_ff: int = 256
    n_ctx: int = 32768
    n_swa: int = 64
    """The sliding window in tokens; only kinds with one use it."""
    n_vocab: int = 512
    seed: int = 0
    fim: bool = False
    """Whether the vocabulary has tokens for filling in the middle."""


class _Model:
    """One GGUF file in the making."""

    def __init__(self, path: Path, architecture: str, shape: Shape) -> None:
        self.shape = shape
        self.gguf = gguf.GGUFWriter(path, architecture)
        self._rng = np.random.default_rng(shape.seed)

    def random(self, name: str, *dims: int, scale: float | None = None, f32: bool = False) -> None:
        """A normal tensor, input dimension first as ggml counts.

        Without ``scale`` it is 1/sqrt(inputs), which keeps activations level.
        """
        deviation = dims[0] ** -0.5 if scale is None else scale
        values = self._rng.normal(0.0, deviation, tuple(reversed(dims)))
        self._add(name, values.astype(np.float32), f32=f32)

    def constant(self, name: str, *dims: int, value: float = 1.0) -> None:
        """A float32 tensor of one value: norms, and the parameters of recurrences."""
        self._add(name, np.full(tuple(reversed(dims)), value, np.float32), f32=True)

    def values(self, name: str, values: NDArray[np.float32]) -> None:
        """A float32 tensor in numpy's order of dimensions."""
        self._add(name, values, f32=True)

    def _add(self, name: str, values: NDArray[np.float32], *, f32: bool) -> None:
        keep = f32 or values.ndim == 1  # the CPU backend wants biases and norms as float32
        self.gguf.add_tensor(name, values if keep else values.astype(np.float16))

    def save(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def _header(model: _Model, kind: str) -> None:
    shape = model.shape
    writer = model.gguf
    writer.add_name(f"tiny-{kind}")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.n_vocab)


def _vocabulary(model: _Model) -> None:
    """Control tokens, all 256 bytes, the space, and words that only answers hold: no merges lead
    to them.
    """
    kinds = gguf.TokenType
    tokens = [b"<unk>", *(token.encode() for token in CONTROL_TOKENS)]
    types = [kinds.UNKNOWN, *[kinds.CONTROL] * len(CONTROL_TOKENS)]
    tokens += [b"<0x%02X>" % byte for byte in range(256)]
    types += [kinds.BYTE] * 256
    tokens.append(SPACE.encode())
    types.append(kinds.NORMAL)
    words = model.shape.n_vocab - len(tokens)
    if words < 0:
        raise ValueError(f"n_vocab must be at least {len(tokens)}")
    fim = FIM_TOKENS if model.shape.fim else ()
    tokens += [token.encode() for token in fim]
    tokens += [f"{SPACE}word{index}".encode() for index in range(len(fim), words)]
    types += [kinds.CONTROL] * len(fim) + [kinds.NORMAL] * (words - len(fim))
    writer = model.gguf
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML)


def _embeddings(model: _Model, output_norm: str = "output_norm") -> None:
    """Quiet embeddings and an output matrix of its own: else each answer repeats its last token."""
    n_embd, n_vocab = model.shape.n_embd, model.shape.n_vocab
    model.random("token_embd.weight", n_embd, n_vocab, scale=_EMBEDDING_SCALE)
    model.random("output.weight", n_embd, n_vocab)
    model.constant(f"{output_norm}.weight", n_embd)


def _feed_forward(model: _Model, block: str, norm: str | None = "ffn_norm") -> None:
    n_embd, n_ff = model.shape.n_embd, model.shape.n_ff
    if norm is not None:
        model.constant(f"{block}.{norm}.weight", n_embd)
    model.random(f"{block}.ffn_gate.weight", n_embd, n_ff)
    model.random(f"{block}.ffn_up.weight", n_embd, n_ff)
    model.random(f"{block}.ffn_down.weight", n_ff, n_embd)


def _attention(model: _Model, block: str, *, gated: bool = False, head_norms: bool = False) -> None:
    """``gated``: the query projection also yields a gate of the same size.

    ``head_norms``: queries and keys are normed per head, so the gain goes there.
    """
    shape = model.shape
    queries, keys = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    sharp = _QUERY_GAIN * shape.n_embd**-0.5
    model.random(f"{block}.attn_q.weight", shape.n_embd, queries * (2 if gated else 1), scale=sharp)
    model.random(f"{block}.attn_k.weight", shape.n_embd, keys)
    model.random(f"{block}.attn_v.weight", shape.n_embd, keys)
    model.random(f"{block}.attn_output.weight", queries, shape.n_embd)
    if head_norms:
        model.constant(f"{block}.attn_q_norm.weight", shape.head_dim, value=_QUERY_GAIN)
        model.constant(f"{block}.attn_k_norm.weight", shape.head_dim)


def _head_sizes(model: _Model, rope_dimensions: int, rope_base: float) -> None:
    shape = model.shape
    model.gguf.add_head_count(shape.n_head)
    model.gguf.add_head_count_kv(shape.n_head_kv)
    model.gguf.add_key_length(shape.head_dim)
    model.gguf.add_value_length(shape.head_dim)
    model.gguf.add_rope_dimension_count(rope_dimensions)
    model.gguf.add_rope_freq_base(rope_base)


def _llama(model: _Model) -> None:
    """Plain attention in every layer."""
    _head_sizes(model, model.shape.head_dim, 10000.0)
    _embeddings(model)
    for layer in range(model.shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", model.shape.n_embd)
        _attention(model, block)
        _feed_forward(model, block)


def _gemma3(model: _Model) -> None:
    """Five layers with a sliding window, then one that sees everything."""
    shape = model.shape
    _head_sizes(model, shape.head_dim, 10000.0)
    model.gguf.add_sliding_window(shape.n_swa)
    _embeddings(model)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", shape.n_embd)
        _attention(model, block, head_norms=True)
        model.constant(f"{block}.post_attention_norm.weight", shape.n_embd)
        _feed_forward(model, block)
        model.constant(f"{block}.post_ffw_norm.weight", shape.n_embd)


def _lfm2(model: _Model) -> None:
    """Hybrid: short convolutions and attention in turn; head size is n_embd / n_head."""
    shape = model.shape
    if shape.n_embd != shape.n_head * shape.head_dim:
        raise ValueError("lfm2 derives its head size: n_embd must be n_head * head_dim")
    has_attention = [layer % 2 == 1 for layer in range(shape.n_layer)]
    model.gguf.add_head_count(shape.n_head)
    model.gguf.add_head_count_kv([shape.n_head_kv if yes else 0 for yes in has_attention])
    model.gguf.add_rope_freq_base(1e6)
    model.gguf.add_shortconv_l_cache(3)
    _embeddings(model, output_norm="token_embd_norm")
    for layer, attention in enumerate(has_attention):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", shape.n_embd)
        if attention:
            _attention(model, block, head_norms=True)
        else:
            model.random(f"{block}.shortconv.conv.weight", 3, shape.n_embd, f32=True)
            model.random(f"{block}.shortconv.in_proj.weight", shape.n_embd, 3 * shape.n_embd)
            model.random(f"{block}.shortconv.out_proj.weight", shape.n_embd, shape.n_embd)
        _feed_forward(model, block)


def _qwen35(model: _Model) -> None:
    """Hybrid: three layers of gated delta rule, then one of gated attention with M-RoPE."""
    shape = model.shape
    state, key_heads, value_heads = 64, 2, 4
    _head_sizes(model, shape.head_dim // 2, 1e6)
    model.gguf.add_rope_dimension_sections([8, 4, 4, 0])
    model.gguf.add_ssm_conv_kernel(4)
    model.gguf.add_ssm_inner_size(state * value_heads)
    model.gguf.add_ssm_state_size(state)
    model.gguf.add_ssm_time_step_rank(value_heads)
    model.gguf.add_ssm_group_count(key_heads)
    model.gguf.add_uint32("qwen35.full_attention_interval", 4)
    _embeddings(model)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", shape.n_embd)
        if layer % 4 == 3:
            _attention(model, block, gated=True, head_norms=True)
        else:
            _delta_rule(model, block, state, key_heads, value_heads)
        model.constant(f"{block}.post_attention_norm.weight", shape.n_embd)
        _feed_forward(model, block, norm=None)


def _delta_rule(model: _Model, block: str, state: int, key_heads: int, value_heads: int) -> None:
    n_embd = model.shape.n_embd
    keys, values = state * key_heads, state * value_heads
    model.random(f"{block}.attn_qkv.weight", n_embd, 2 * keys + values)
    model.random(f"{block}.attn_gate.weight", n_embd, values)
    model.random(f"{block}.ssm_conv1d.weight", 4, 2 * keys + values, f32=True)
    model.constant(f"{block}.ssm_dt.bias", value_heads, value=_TIME_STEP)
    model.constant(f"{block}.ssm_a", value_heads, value=-0.5)
    model.random(f"{block}.ssm_beta.weight", n_embd, value_heads)
    model.random(f"{block}.ssm_alpha.weight", n_embd, value_heads)
    model.constant(f"{block}.ssm_norm.weight", state)
    model.random(f"{block}.ssm_out.weight", values, n_embd)


_SSM_STATE, _SSM_KERNEL = 16, 4


def _ssm_sizes(model: _Model, time_step_rank: int) -> int:
    """Writes the keys that both generations of Mamba share; the inner size."""
    inner = 2 * model.shape.n_embd
    model.gguf.add_head_count(0)
    model.gguf.add_ssm_conv_kernel(_SSM_KERNEL)
    model.gguf.add_ssm_inner_size(inner)
    model.gguf.add_ssm_state_size(_SSM_STATE)
    model.gguf.add_ssm_time_step_rank(time_step_rank)
    return inner


def _mamba(model: _Model) -> None:
    """Recurrent, first generation: a state per channel."""
    n_embd, rank = model.shape.n_embd, 8
    inner = _ssm_sizes(model, rank)
    decay = -np.tile(np.arange(1, _SSM_STATE + 1, dtype=np.float32), (inner, 1))
    _embeddings(model)
    for layer in range(model.shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", n_embd)
        model.random(f"{block}.ssm_in.weight", n_embd, 2 * inner)
        model.random(f"{block}.ssm_conv1d.weight", _SSM_KERNEL, inner, f32=True)
        model.random(f"{block}.ssm_conv1d.bias", inner, scale=0.02)
        model.random(f"{block}.ssm_x.weight", inner, rank + 2 * _SSM_STATE)
        model.random(f"{block}.ssm_dt.weight", rank, inner)
        model.constant(f"{block}.ssm_dt.bias", inner, value=_TIME_STEP)
        model.values(f"{block}.ssm_a", decay)
        model.constant(f"{block}.ssm_d", inner)
        model.random(f"{block}.ssm_out.weight", inner, n_embd)


def _mamba2(model: _Model) -> None:
    """Recurrent, second generation: a state per head, one group."""
    n_embd, heads, groups = model.shape.n_embd, 4, 1
    inner = _ssm_sizes(model, heads)
    model.gguf.add_ssm_group_count(groups)
    mixed = inner + 2 * groups * _SSM_STATE
    _embeddings(model)
    for layer in range(model.shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", n_embd)
        model.random(f"{block}.ssm_in.weight", n_embd, inner + mixed + heads)
        model.random(f"{block}.ssm_conv1d.weight", _SSM_KERNEL, mixed, f32=True)
        model.random(f"{block}.ssm_conv1d.bias", mixed, scale=0.02)
        model.constant(f"{block}.ssm_dt.bias", heads, value=_TIME_STEP)
        model.constant(f"{block}.ssm_a", 1, heads, value=-1.0)
        model.constant(f"{block}.ssm_d", 1, heads)
        model.constant(f"{block}.ssm_norm.weight", inner // groups, groups)
        model.random(f"{block}.ssm_out.weight", inner, n_embd)


KINDS: dict[str, tuple[Callable[[_Model], None], Shape]] = {
    "llama": (_llama, Shape()),
    "gemma3": (_gemma3, Shape(n_layer=6)),
    "lfm2": (_lfm2, Shape(n_head=2, n_head_kv=1)),
    "qwen35": (_qwen35, Shape()),
    "mamba": (_mamba, Shape()),
    "mamba2": (_mamba2, Shape()),
}
"""kind → its architecture's layers, and the shape it has unless told otherwise."""


def write_model(path: Path, kind: str, **overrides: Any) -> None:
    """Write a model of ``kind`` to ``path``; ``overrides`` are fields of ``Shape``."""
    layers, shape = KINDS[kind]
    model = _Model(path, kind, dataclasses.replace(shape, **overrides))
    _header(model, kind)
    _vocabulary(model)
    layers(model)
    model.save()


def write_reranker(path: Path) -> None:
    """A model that gives a text two scores, and no vector."""
    model = _Model(path, "qwen3", Shape())
    _header(model, "qwen3")
    _vocabulary(model)
    _head_sizes(model, model.shape.head_dim, 10000.0)
    _embeddings(model)
    for layer in range(model.shape.n_layer):
        block = f"blk.{layer}"
        model.constant(f"{block}.attn_norm.weight", model.shape.n_embd)
        _attention(model, block, head_norms=True)
        _feed_forward(model, block)
    model.gguf.add_pooling_type(gguf.PoolingType.RANK)
    model.gguf.add_array("qwen3.classifier.output_labels", ["yes", "no"])
    model.random("cls.output.weight", model.shape.n_embd, 2)
    model.save()


def write_adapter(
    path: Path, seed: int, rank: int = 4, gain: float = 1.0, **overrides: Any
) -> None:
    """A LoRA adapter of a "llama" model of that shape, for values and for the way down."""
    shape = dataclasses.replace(KINDS["llama"][1], **overrides)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    values = shape.n_head_kv * shape.head_dim
    for layer in range(shape.n_layer):
        for name, inputs, outputs in (
            ("attn_v", shape.n_embd, values),
            ("ffn_down", shape.n_ff, shape.n_embd),
        ):
            a = rng.normal(0.0, inputs**-0.5, (rank, inputs)).astype(np.float32)
            b = rng.normal(0.0, gain * rank**-0.5, (outputs, rank)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class ModelShelf:
    """Models in one directory, each written once; two processes may share it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, kind: str, **overrides: Any) -> Path:
        """The path of a model of ``kind``; ``overrides`` are fields of ``Shape``: ``n_swa=512``."""
        name = "-".join([kind, *(f"{key}{value}" for key, value in sorted(overrides.items()))])
        path = self._directory / f"{name}.gguf"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}.partial")
            write_model(partial, kind, **overrides)
            partial.replace(path)
        return path

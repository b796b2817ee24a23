"""What changes the meaning of a llama.cpp engine's state, other than the tokens and the model's
content.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spillcache.config import EngineConfig
from spillcache.engine.llama_info import meta
from spillcache.engine.llama_library import Library
from spillcache.engine.llama_state import LlamaState
from spillcache.namespace import FieldValue


def identity_of(
    lib: Library, model: Any, config: EngineConfig, state: LlamaState, context_tokens: int
) -> Mapping[str, FieldValue]:
    """The fields of the engine's namespace; see Engine. ``context_tokens``: the context's size."""
    original = meta(lib.api, model, "rope.scaling.original_context_length")
    return {
        "engine": "llama.cpp",
        "library": lib.version,
        "library_digest": lib.digest,
        "device": lib.devices,
        "offload": config.gpu_layers != 0 and bool(lib.api.llama_supports_gpu_offload()),
        "state_format": state.state_format,
        "type_k": config.type_k,
        "type_v": config.type_v,
        # What "auto" came to: without flash attention V is stored transposed.
        "flash_attention": not state.v_trans,
        "rotation_k": state.rotation[0],
        "rotation_v": state.rotation[1],
        "rotation_disabled": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),
        # Some models switch RoPE factors when the context outgrows the one they began with.
        "rope_long": bool(original) and context_tokens > int(original or 0),
        "rope_scale": float(lib.api.llama_model_rope_freq_scale_train(model)),
        "block_tokens": config.block_tokens,
        "tag": config.namespace_tag,
        **_chosen(config),
    }


def _chosen(config: EngineConfig) -> Mapping[str, FieldValue]:
    """What was set otherwise than the model's file has it: nothing, for most."""
    rope = asdict(config.rope)
    fields: dict[str, FieldValue] = {
        f"rope_{name}": value for name, value in rope.items() if value is not None
    }
    for key, kind, value in sorted(config.overrides):
        fields[f"override_{key}"] = f"{kind}:{value}"
    return fields

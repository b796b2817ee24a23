"""What a loaded GGUF file says about itself. Source: llama.h, ``llama_model_*``."""

import ctypes
from typing import Any

from spillcache.engine.base import ModelInfo
from spillcache.engine.llama_text import LlamaText

_ROOM_BYTES = 256


def model_info(api: Any, model: Any, name: str, text: LlamaText) -> ModelInfo:
    """Sizes and words of the model. Engine's thread."""
    room = ctypes.create_string_buffer(_ROOM_BYTES)
    api.llama_model_desc(model, room, len(room))
    return ModelInfo(
        name=name,
        description=room.value.decode(errors="replace"),
        size_bytes=int(api.llama_model_size(model)),
        parameters=int(api.llama_model_n_params(model)),
        embedding=int(api.llama_model_n_embd(model)),
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        chat_template=text.template.source,
    )


def meta(api: Any, model: Any, key: str) -> str | None:
    """The value of a key of the model's architecture, or None. Engine's thread."""
    architecture = _value(api, model, "general.architecture") or ""
    return _value(api, model, f"{architecture}.{key}")


def _value(api: Any, model: Any, key: str) -> str | None:
    room = ctypes.create_string_buffer(_ROOM_BYTES)
    count = api.llama_model_meta_val_str(model, key.encode(), room, len(room))
    return room.value.decode(errors="replace") if count >= 0 else None

"""A user's say in how llama.cpp loads a model: devices, tensors, metadata, RoPE."""

import ctypes
from collections.abc import Mapping
from typing import Any

from spillcache.config import EngineConfig, KVOverride, RopeConfig
from spillcache.errors import ConfigError

_SPLIT_MODES: Mapping[str, int] = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_SCALINGS: Mapping[str, int] = {"none": 0, "linear": 1, "yarn": 2}
_KINDS: Mapping[str, tuple[int, str]] = {
    "int": (0, "val_i64"),
    "float": (1, "val_f64"),
    "bool": (2, "val_bool"),
    "str": (3, "val_str"),
}
"""Kind → llama_model_kv_override_type, and the member of the union."""
_KEY_BYTES_MAX = 127


class _BufferType(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_void_p))


def place(api: Any, params: Any, config: EngineConfig) -> list[Any]:
    """Set the model's parameters as ``config`` has them; what they point to, to be kept until the
    model is loaded. Raises ConfigError for devices that there are not.
    """
    kept: list[Any] = []
    wanted = config.placement
    if wanted.split_mode is not None:
        params.split_mode = _SPLIT_MODES[wanted.split_mode]
    if wanted.main_gpu is not None:
        params.main_gpu = wanted.main_gpu
    if wanted.tensor_split:
        most = int(api.llama_max_devices())
        if len(wanted.tensor_split) > most:
            raise ConfigError(f"--tensor-split: the library knows {most} devices at most")
        shares = (ctypes.c_float * most)(*wanted.tensor_split)
        params.tensor_split = shares
        kept.append(shares)
    if wanted.tensors:
        types = _buffer_types(api)
        rows = [_BufferType(name.encode(), _type(types, kind)) for name, kind in wanted.tensors]
        table = (_BufferType * (len(rows) + 1))(*rows)  # an empty row ends it
        params.tensor_buft_overrides = ctypes.cast(table, ctypes.c_void_p)
        kept.append(table)
    if config.overrides:
        facts = _facts(api, config.overrides)
        params.kv_overrides = facts
        kept.append(facts)
    return kept


def set_rope(params: Any, rope: RopeConfig) -> None:
    """Set the context's parameters as ``rope`` has them."""
    if rope.scaling is not None:
        params.rope_scaling_type = _SCALINGS[rope.scaling]
    for name, value in (
        ("rope_freq_base", rope.freq_base),
        ("rope_freq_scale", rope.freq_scale),
        ("yarn_orig_ctx", rope.yarn_orig_ctx),
        ("yarn_ext_factor", rope.yarn_ext_factor),
        ("yarn_attn_factor", rope.yarn_attn_factor),
        ("yarn_beta_slow", rope.yarn_beta_slow),
        ("yarn_beta_fast", rope.yarn_beta_fast),
    ):
        if value is not None:
            setattr(params, name, value)


def _facts(api: Any, overrides: tuple[KVOverride, ...]) -> Any:
    table = (api.llama_model_kv_override * (len(overrides) + 1))()  # an empty key ends it
    for row, (key, kind, value) in zip(table, overrides, strict=False):
        if len(key.encode()) > _KEY_BYTES_MAX or len(str(value).encode()) > _KEY_BYTES_MAX:
            raise ConfigError(f"--override-kv: {key[:32]}: more than {_KEY_BYTES_MAX} bytes")
        row.tag, member = _KINDS[kind]
        row.key = key.encode()
        setattr(row.value, member, value.encode() if isinstance(value, str) else value)
    return table


def _type(types: Mapping[str, int], name: str) -> int:
    if name not in types:
        raise ConfigError(
            f"--override-tensor: there is no buffer type {name}; there are {', '.join(types)}"
        )
    return types[name]


def _buffer_types(api: Any) -> dict[str, int]:
    """The devices' buffer types, by name."""
    library = ctypes.CDLL(api.llama_cpp._lib._name) if hasattr(api, "llama_cpp") else None
    if library is None:
        raise ConfigError("--override-tensor: this llama.cpp library tells no buffer types")

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(library, name)
        found.restype, found.argtypes = result, arguments
        return found

    try:
        count = function("ggml_backend_dev_count", ctypes.c_size_t)
        device = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
        type_of = function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
        name_of = function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    except AttributeError as error:
        raise ConfigError("--override-tensor: this llama.cpp library tells no types") from error
    types = [type_of(device(index)) for index in range(count())]
    return {name_of(each).decode(): each for each in types if each}

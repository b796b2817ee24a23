"""Settings: one frozen dataclass per room, composed in ``Settings``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from spillcache.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_LIMIT_BYTES = 1 << 62
"""As ``CacheConfig.ram_bytes``: as much as the machine gives."""

Codec = Literal["auto", "raw", "zstd", "byteplane"]
KVType = Literal["f16", "bf16", "q8_0", "f32"]
Pooling = Literal["mean", "cls", "last"]
FlashAttention = Literal["auto", "on", "off"]
SpillReason = Literal["evict", "idle", "shutdown", "flush"]
SPILL_REASONS: tuple[SpillReason, ...] = get_args(SpillReason)
RestoreWhen = Literal["auto", "always"]
Isolation = Literal["none", "api-key"]

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w|)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_POWERS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}


def parse_size(text: str, flag: str) -> int:
    """``"64GiB"``, ``"64G"`` or a count of bytes → bytes, in powers of 1024.

    Raises ConfigError naming ``flag``.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{flag}: {text!r} is not a size; write for example 64GiB, 512MiB or a number of bytes"
        )
    return int(float(match[1]) * _POWERS[match[2].lower()])


def parse_age(text: str, flag: str) -> float:
    """``"30d"``, ``"12h"`` or a count of seconds → seconds.

    Raises ConfigError naming ``flag``.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{flag}: {text!r} is not an age; write for example 30d, 12h or 90min")
    return float(match[1]) * _SECONDS[match[2].lower()]


def expanded(path: Path) -> Path:
    """``path`` with ``~`` and ``~user`` replaced; raises ConfigError if there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no such user's home directory") from error


def format_age(seconds: float) -> str:
    """A length of time for people: ``"20 s"``, ``"1.5 h"``, ``"10 days"``."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def counted(count: int, noun: str) -> str:
    """A number of things for people: ``"1 block"``, ``"2,048 blocks"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(size_bytes: float) -> str:
    """Bytes for people: ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The store on disk."""

    path: Path
    quota_bytes: int | None = None
    """``--cache-disk-size``; None keeps what the store has, or 32 GiB for a new one."""
    min_free_bytes: int = 4 * GIB
    max_age_s: float | None = None
    """``--cache-max-age``: what was not used for longer is evicted; None: age is no reason."""
    codec: Codec = "auto"
    """How new objects are stored; auto: as measured, per namespace and part."""
    key_file: Path | None = None
    """``--cache-disk-key-file``: the key that new payloads are encrypted with."""
    direct_io: bool = True
    """Bypass the page cache on reads where the filesystem allows it."""
    throttle_bytes_s: float | None = None
    """``--cache-disk-throttle``: read no faster than this; for benchmarks."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The tiers."""

    ram_bytes: int = 8192 * MIB
    min_tokens: int = 128
    restore: RestoreWhen = "auto"
    """``--cache-restore``: where that is quicker than computing, or whatever it costs."""
    write_limit_bytes_day: int | None = None
    """``--cache-disk-write-limit``: within any 24 hours, by all who use the directory."""
    idle_spill_s: float = 30.0
    dirty_spill_s: float = 60.0
    shutdown_spill_s: float = 8.0
    spill_queue_bytes: int = 1 * GIB
    spill_on: frozenset[SpillReason] = frozenset(SPILL_REASONS)
    """``--cache-spill-on``: what has blocks written; idle: both times above, too."""
    read_ahead_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A LoRA adapter to load with the model."""

    path: Path
    scale: float = 1.0
    """What requests that say nothing get; 0: loaded, but not applied."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """``--rope-…`` and ``--yarn-…``; None: the model's own."""

    scaling: Literal["none", "linear", "yarn"] | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Which device holds what; None: as the library thinks."""

    split_mode: Literal["none", "layer", "row", "tensor"] | None = None
    tensor_split: tuple[float, ...] = ()
    main_gpu: int | None = None
    tensors: tuple[tuple[str, str], ...] = ()
    """``--override-tensor`` and the like: (regular expression of names, buffer type)."""
    kv_offload: bool = True


KVOverride = tuple[str, Literal["int", "float", "bool", "str"], int | float | bool | str]
"""A key of the model's metadata, the kind of its value, and the value."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The llama.cpp engine."""

    model: Path
    context_tokens: int = 0
    """``-c``: cells shared by all slots; 0: what the model was trained for."""
    ubatch_tokens: int = 512
    slots: int = 1
    threads: int = 0
    """0: as many as the process may use."""
    gpu_layers: int = 0
    type_k: KVType = "f16"
    type_v: KVType = "f16"
    flash_attention: FlashAttention = "auto"
    swa_full: bool = False
    block_tokens: int = 64
    chat_template: str | None = None
    """A built-in template's name or Jinja text; None: the model's own."""
    namespace_tag: str = ""
    mmap: bool = True
    adapters: tuple[AdapterFile, ...] = ()
    """``--lora``, ``--lora-scaled``."""
    mlock: bool = False
    """Keep the model in memory, whatever else needs it."""
    direct_io: bool = False
    """Read the model past the page cache."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    overrides: tuple[KVOverride, ...] = ()
    """``--override-kv``."""
    embeddings: bool = False
    """Whether embeddings may be asked for."""
    pooling: Pooling | None = None
    """``--pooling``: how the vectors of a text's tokens become one; None: as the model says."""


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What requests that say nothing get; None: the engine's own default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    """-1: a random one."""
    max_tokens: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: tuple[str, ...] | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    grammar: tuple[Literal["gbnf", "json_schema"], str] | None = None
    """Its kind and its text."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """``--chat-template-kwargs``."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What HTTPS is spoken with, in PEM."""

    key: Path
    certificate: Path


@dataclass(frozen=True, slots=True)
class SlotFilesConfig:
    """``--slot-save-path``."""

    path: Path
    min_free_bytes: int = 4 * GIB
    """What stays free on its filesystem; 0: never mind that."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Clients must send one of them; none: anybody may ask."""
    isolation: Isolation = "none"
    """``--cache-isolation``: whether requests with different keys share state."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names of this server in ``Host``; "*": any."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may use it; "*": any."""
    tls: TlsFiles | None = None
    alias: str | None = None
    queue_limit: int = 256
    """Requests that may wait for a slot."""
    timeout_s: float = 600.0
    """How long a client may take to send a request's body, and to read on."""
    body_limit_bytes: int = 16 * MIB
    bodies_limit_bytes: int = 512 * MIB
    """All that are held at a time, and what is made of them; others get 429."""
    drain_s: float = 5.0
    """How long running answers may go on after SIGTERM before they are cut."""
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    slot_files: SlotFilesConfig | None = None
    session_headers: tuple[str, ...] = ()
    """``--cache-session-headers``: names of headers, in lower case, that name a conversation."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it; ``store`` is None without ``--cache-disk``: then nothing is written."""

    engine: EngineConfig
    serve: ServeConfig = field(default_factory=ServeConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    store: StoreConfig | None = None

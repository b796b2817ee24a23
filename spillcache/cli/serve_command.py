"""``spillcache serve``: from flags to ``Settings``, and into the server."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from spillcache.cli import guard_flags as guards
from spillcache.cli import serve_flags as flags
from spillcache.cli.adapter_flags import adapter_files
from spillcache.cli.config_file import IGNORED
from spillcache.cli.hub_model import hub_model
from spillcache.cli.model_path import find_model
from spillcache.cli.more_flags import with_more_flags
from spillcache.cli.more_settings import (
    kv_overrides,
    load_mode,
    placement_config,
    request_defaults,
    rope_config,
    template_text,
)
from spillcache.cli.more_settings import log_level as level_of
from spillcache.cli.secret_files import api_keys, tls_files, warn_if_exposed
from spillcache.cli.slot_flags import header_names, slot_files
from spillcache.config import (
    MIB,
    NO_LIMIT_BYTES,
    SPILL_REASONS,
    CacheConfig,
    Codec,
    EngineConfig,
    FlashAttention,
    Isolation,
    KVType,
    ServeConfig,
    Settings,
    SpillReason,
    StoreConfig,
    expanded,
    parse_age,
    parse_size,
)
from spillcache.errors import ConfigError

log = logging.getLogger("spillcache.serve")

_ENGINE = EngineConfig(model=Path())
_SERVE = ServeConfig()
_CACHE = CacheConfig()
_ALL_REASONS = ",".join(SPILL_REASONS)
_ALL_LAYERS = 9999
"""More than any model has."""


@with_more_flags
def serve(
    *,
    context: typer.Context,
    model: flags.Model = "",
    ctx_size: flags.ContextSize = _ENGINE.context_tokens,
    ubatch_size: flags.UbatchSize = _ENGINE.ubatch_tokens,
    parallel: flags.Parallel = _ENGINE.slots,
    threads: flags.Threads = _ENGINE.threads,
    n_gpu_layers: flags.GpuLayers = str(_ENGINE.gpu_layers),
    cache_type_k: flags.TypeK = _ENGINE.type_k,
    cache_type_v: flags.TypeV = _ENGINE.type_v,
    flash_attn: flags.FlashAttn = _ENGINE.flash_attention,
    swa_full: flags.SwaFull = _ENGINE.swa_full,
    no_mmap: flags.NoMmap = not _ENGINE.mmap,
    chat_template: flags.ChatTemplate = _ENGINE.chat_template,
    lora: flags.Lora = None,
    lora_scaled: flags.LoraScaled = None,
    lora_init_without_apply: flags.LoraInit = False,
    host: flags.Host = _SERVE.host,
    port: flags.Port = _SERVE.port,
    api_key: guards.ApiKey = None,
    api_key_file: guards.ApiKeyFile = None,
    allowed_hosts: guards.AllowedHosts = None,
    allowed_origins: guards.AllowedOrigins = None,
    ssl_key_file: guards.SslKeyFile = None,
    ssl_cert_file: guards.SslCertFile = None,
    timeout: guards.Timeout = _SERVE.timeout_s,
    queue_limit: guards.QueueLimit = _SERVE.queue_limit,
    alias: flags.Alias = None,
    log_level: flags.Level = "info",
    log_format: guards.Format = "text",
    config: guards.Config = None,
    temp: flags.Temperature = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    min_p: flags.MinP = None,
    seed: flags.Seed = None,
    n_predict: flags.Predict = None,
    slot_save_path: flags.SlotSavePath = None,
    slot_save_min_free: flags.SlotSaveMinFree = None,
    cache_disk: flags.CacheDisk = None,
    cache_disk_size: flags.CacheDiskSize = None,
    cache_disk_min_free: flags.CacheDiskMinFree = None,
    cache_disk_codec: flags.CacheDiskCodec = None,
    cache_disk_key_file: flags.CacheDiskKeyFile = None,
    cache_disk_write_limit: flags.CacheDiskWriteLimit = None,
    cache_max_age: flags.CacheMaxAge = None,
    cache_ram: flags.CacheRam = str(_CACHE.ram_bytes // MIB),
    cache_min_tokens: flags.CacheMinTokens = _CACHE.min_tokens,
    cache_spill_on: flags.CacheSpillOn = _ALL_REASONS,
    cache_restore: flags.CacheRestore = _CACHE.restore,
    cache_disk_throttle: flags.CacheDiskThrottle = None,
    cache_namespace: flags.CacheNamespace = "",
    cache_session_headers: flags.SessionHeaders = "",
    cache_isolation: guards.CacheIsolation = _SERVE.isolation,
    **more: Any,
) -> None:
    """Serve a model over OpenAI's and Anthropic's APIs; with --cache-disk, prompts survive a
    restart.

    Flags and variables (LLAMA_ARG_…) are llama-server's; docs/flags.md has all of them.
    """
    keys = api_keys(_key_words(context, api_key), api_key_file)
    settings = Settings(
        engine=EngineConfig(
            model=_model(model, more),
            context_tokens=ctx_size,
            ubatch_tokens=_ubatch(ubatch_size),
            slots=parallel,
            threads=threads,
            gpu_layers=_gpu_layers(n_gpu_layers),
            type_k=cache_type_k,
            type_v=_type_v(cache_type_v, flash_attn),
            flash_attention=flash_attn,
            swa_full=swa_full,
            chat_template=template_text(chat_template, more["chat_template_file"]),
            namespace_tag=cache_namespace,
            rope=rope_config(more),
            placement=placement_config(more),
            overrides=kv_overrides(more["override_kv"]),
            embeddings=bool(more["embeddings"]),
            pooling=more["pooling"],
            **load_mode(more, mmap=not no_mmap),
            adapters=adapter_files(
                lora or (), lora_scaled or (), apply=not lora_init_without_apply
            ),
        ),
        serve=ServeConfig(
            host=host,
            port=port,
            api_keys=keys,
            isolation=_isolation(cache_isolation, keys, slot_files=slot_save_path is not None),
            allowed_hosts=guards.hosts(allowed_hosts),
            allowed_origins=guards.origins(allowed_origins),
            tls=tls_files(ssl_key_file, ssl_cert_file),
            timeout_s=timeout,
            queue_limit=queue_limit,
            alias=alias,
            defaults=request_defaults(
                more,
                temperature=temp,
                top_k=top_k,
                top_p=_top_p(top_p),
                min_p=min_p,
                seed=seed,
                max_tokens=_limit(n_predict),
            ),
            slot_files=slot_files(slot_save_path, slot_save_min_free),
            session_headers=header_names(cache_session_headers),
        ),
        cache=CacheConfig(
            ram_bytes=_ram_bytes(cache_ram),
            min_tokens=cache_min_tokens,
            spill_on=_spill_on(cache_spill_on),
            restore=cache_restore,
            write_limit_bytes_day=_write_limit(cache_disk_write_limit, cache_disk),
        ),
        store=_with(
            _store(
                cache_disk,
                cache_disk_size,
                cache_disk_min_free,
                cache_disk_codec,
                cache_disk_key_file,
            ),
            max_age=cache_max_age,
            throttle=cache_disk_throttle,
        ),
    )
    from spillcache.serve.server_log import log_to_stderr  # noqa: PLC0415 — not for --help

    with log_to_stderr(level_of(log_level, more), log_format):
        if ignored := context.meta.get(IGNORED):
            log.warning("ignored, for they mean nothing here: %s", ", ".join(ignored))
        warn_if_exposed(
            [api_key_file, ssl_key_file, config if "api_key" in _configured(context) else None]
        )
        _warn_if_open(settings.serve)
        raise typer.Exit(_run_server(settings))


def _model(path: str, more: Mapping[str, Any]) -> Path:
    """Where ``-m`` or ``-hf`` leads. Raises ConfigError where neither or both are given."""
    if more["hf_repo"] is None:
        if not path:
            raise ConfigError("--model: which model? Give -m FILE, or -hf USER/REPO")
        if more["hf_file"] is not None:
            raise ConfigError("--hf-file needs --hf-repo USER/REPO")
        return find_model(path)
    if path:
        raise ConfigError("--model and --hf-repo: give one of them")
    return hub_model(
        more["hf_repo"], more["hf_file"], more["hf_token"], offline=bool(more["offline"])
    )


def _key_words(context: typer.Context, words: list[str] | None) -> list[str]:
    """What was given to ``--api-key``. A variable would have been cut at its spaces."""
    source = context.get_parameter_source("api_key")
    if source is not None and source.name == "ENVIRONMENT":
        return list(filter(None, [os.environ["LLAMA_API_KEY"]]))
    return words or []


def _configured(context: typer.Context) -> Mapping[str, object]:
    """What ``--config`` sets."""
    return context.default_map or {}


def _isolation(isolation: Isolation, keys: Sequence[str], *, slot_files: bool) -> Isolation:
    if isolation == "api-key" and not keys:
        raise ConfigError(
            "--cache-isolation api-key needs API keys: without them all clients are one; give "
            "--api-key or --api-key-file"
        )
    if isolation == "api-key" and slot_files:
        raise ConfigError(
            "--cache-isolation api-key and --slot-save-path: slots are no tenant's own, so who may "
            "save one could take another's; leave one of them out (--cache-disk keeps all of them)"
        )
    return isolation


def _ubatch(tokens: int) -> int:
    """A decode call holds whole blocks, so that blocks can be exported right after it."""
    block = _ENGINE.block_tokens
    if tokens < block or tokens % block:
        below = tokens // block * block
        write = f"{below} or {below + block}" if below > 0 else str(block)
        raise ConfigError(f"--ubatch-size: {tokens} is not a multiple of {block}; write {write}")
    return tokens


def _gpu_layers(text: str) -> int:
    """A number of layers; all of them for ``all``, ``auto`` and -1."""
    if text.lower() in ("all", "auto", "-1"):
        return _ALL_LAYERS
    if not text.isdecimal():
        raise ConfigError(f"--n-gpu-layers: {text!r} is not a number of layers; or write all")
    return min(int(text), _ALL_LAYERS)


def _top_p(share: float | None) -> float | None:
    if share is not None and share <= 0:
        raise ConfigError(f"--top-p: {share:g} leaves no token; write more than 0, up to 1")
    return share


def _limit(tokens: int | None) -> int | None:
    if tokens == 0:
        raise ConfigError("--n-predict: 0 leaves no answer; write at least 1, or -1")
    return None if tokens == -1 else tokens


def _ram_bytes(text: str) -> int:
    """MiB as llama-server's, or a size with its unit; -1: no limit but the machine's."""
    if text.strip() == "-1":
        return NO_LIMIT_BYTES
    if text.strip().isdecimal():
        return min(int(text) * MIB, NO_LIMIT_BYTES)
    if not text.strip()[-1:].isalpha():
        raise ConfigError(f"--cache-ram: {text!r} is not a number of MiB; or write a size, as 2GiB")
    return parse_size(text, "--cache-ram")


def _spill_on(text: str) -> frozenset[SpillReason]:
    words = {word.strip() for word in text.split(",")}
    if not words <= set(SPILL_REASONS):
        known = ",".join(SPILL_REASONS)
        raise ConfigError(f"--cache-spill-on: {text!r} is not known; write some of {known}")
    return frozenset(reason for reason in SPILL_REASONS if reason in words)


def _type_v(type_v: KVType, flash_attention: FlashAttention) -> KVType:
    if type_v == "q8_0" and flash_attention == "off":
        raise ConfigError("--cache-type-v: q8_0 needs flash attention; leave out --flash-attn off")
    return type_v


def _store(
    path: Path | None,
    size: str | None,
    min_free: str | None,
    codec: Codec | None,
    key_file: Path | None,
) -> StoreConfig | None:
    """The store's settings; raises ConfigError for flags without a directory, or bad sizes."""
    if path is None:
        given = {"size": size, "min-free": min_free, "codec": codec, "key-file": key_file}
        for flag, value in given.items():
            if value is not None:
                raise ConfigError(f"--cache-disk-{flag} needs --cache-disk DIR")
        return None
    defaults = StoreConfig(path=expanded(path))
    return StoreConfig(
        path=defaults.path,
        quota_bytes=None if size is None else parse_size(size, "--cache-disk-size"),
        min_free_bytes=defaults.min_free_bytes
        if min_free is None
        else parse_size(min_free, "--cache-disk-min-free"),
        codec=codec or defaults.codec,
        key_file=None if key_file is None else expanded(key_file),
    )


def _with(
    store: StoreConfig | None, *, max_age: str | None, throttle: str | None
) -> StoreConfig | None:
    """The same with these; raises ConfigError for what needs a directory, or makes no sense."""
    for flag, value in (("--cache-max-age", max_age), ("--cache-disk-throttle", throttle)):
        if value is not None and store is None:
            raise ConfigError(f"{flag} needs --cache-disk DIR")
    if store is None:
        return None
    return replace(
        store,
        max_age_s=None if max_age is None else parse_age(max_age, "--cache-max-age"),
        throttle_bytes_s=None if throttle is None else _throttle(throttle),
    )


def _throttle(text: str) -> float:
    size = parse_size(text, "--cache-disk-throttle")
    if not size:
        raise ConfigError("--cache-disk-throttle: 0 would never end; write for example 5MB")
    return float(size)


def _write_limit(text: str | None, disk: Path | None) -> int | None:
    """Bytes per day."""
    if text is None:
        return None
    if disk is None:
        raise ConfigError("--cache-disk-write-limit needs --cache-disk DIR")
    size, _, period = text.partition("/")
    if period.strip().lower() not in ("", "d", "day"):
        raise ConfigError(
            f"--cache-disk-write-limit: {text!r} is not per day; write for example 200GiB/day"
        )
    return parse_size(size, "--cache-disk-write-limit")


def _warn_if_open(config: ServeConfig) -> None:
    if not config.api_keys and config.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning(
            "%s may be reachable from other machines, and there is no --api-key", config.host
        )


def _run_server(settings: Settings) -> int:
    if settings.store is not None:
        # The tier opens when the model's digest is known; a bad directory should be said at once.
        from spillcache.store.location import open_location  # noqa: PLC0415

        open_location(settings.store.path, settings.store.quota_bytes)
    if (slots := settings.serve.slot_files) is not None:
        from spillcache.store.slot_folder import open_slot_folder  # noqa: PLC0415

        open_slot_folder(slots.path, slots.min_free_bytes)
    from spillcache.serve.server import run_server  # noqa: PLC0415 — a second of imports

    return run_server(settings)

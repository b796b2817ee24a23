"""The flags of ``spillcache serve``, in llama-server's words; ours begin with ``--cache-``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spillcache.cli.care import DISK_VARIABLE
from spillcache.config import Codec, FlashAttention, KVType, RestoreWhen

LogLevel = Literal["debug", "info", "warning", "error"]

_MODEL = "Model and context"
_SERVER = "Server"
_DEFAULTS = "Where requests say nothing"
_CACHE = "Cache"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="LLAMA_ARG_MODEL",
        metavar="PATH",
        help="A GGUF file, or gemma3-270m (the demo model, from its package).",
        rich_help_panel=_MODEL,
    ),
]
ContextSize = Annotated[
    int,
    typer.Option(
        "--ctx-size",
        "-c",
        envvar="LLAMA_ARG_CTX_SIZE",
        metavar="N",
        min=0,
        help="Tokens that all slots share; 0: as many as the model was trained for.",
        rich_help_panel=_MODEL,
    ),
]
UbatchSize = Annotated[
    int,
    typer.Option(
        "--ubatch-size",
        "-ub",
        envvar="LLAMA_ARG_UBATCH",
        metavar="N",
        help="The most tokens in one decode call; a multiple of 64.",
        rich_help_panel=_MODEL,
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        "-np",
        envvar="LLAMA_ARG_N_PARALLEL",
        metavar="N",
        min=1,
        help="Slots: conversations that are answered at once.",
        rich_help_panel=_MODEL,
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        envvar="LLAMA_ARG_THREADS",
        metavar="N",
        min=0,
        max=512,
        help="CPU threads; 0: as many as the process may use.",
        rich_help_panel=_MODEL,
    ),
]
GpuLayers = Annotated[
    str,
    typer.Option(
        "--n-gpu-layers",
        "-ngl",
        envvar="LLAMA_ARG_N_GPU_LAYERS",
        metavar="N|all|auto",
        help="Layers on the GPU, if the library was built for one; auto: as all.",
        rich_help_panel=_MODEL,
    ),
]
TypeK = Annotated[
    KVType,
    typer.Option(
        "--cache-type-k",
        "-ctk",
        envvar="LLAMA_ARG_CACHE_TYPE_K",
        metavar="TYPE",
        help="The type of keys in the KV cache: f16, bf16, q8_0 or f32.",
        rich_help_panel=_MODEL,
    ),
]
TypeV = Annotated[
    KVType,
    typer.Option(
        "--cache-type-v",
        "-ctv",
        envvar="LLAMA_ARG_CACHE_TYPE_V",
        metavar="TYPE",
        help="The type of values, likewise; q8_0 needs flash attention.",
        rich_help_panel=_MODEL,
    ),
]
FlashAttn = Annotated[
    FlashAttention,
    typer.Option(
        "--flash-attn",
        "-fa",
        envvar="LLAMA_ARG_FLASH_ATTN",
        metavar="on|off|auto",
        help="Flash attention.",
        rich_help_panel=_MODEL,
    ),
]
SwaFull = Annotated[
    bool,
    typer.Option(
        "--swa-full",
        envvar="LLAMA_ARG_SWA_FULL",
        help="Keep every position of sliding-window layers: several times the memory.",
        rich_help_panel=_MODEL,
    ),
]
NoMmap = Annotated[
    bool,
    typer.Option(
        "--no-mmap",
        envvar="LLAMA_ARG_NO_MMAP",
        help="Read the model into memory instead of mapping it.",
        rich_help_panel=_MODEL,
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        envvar="LLAMA_ARG_CHAT_TEMPLATE",
        metavar="NAME|JINJA",
        help="chatml, gemma, llama3 or Jinja text, instead of the model's own.",
        rich_help_panel=_MODEL,
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="FILE",
        help="A LoRA adapter (GGUF); may be given more than once.",
        rich_help_panel=_MODEL,
    ),
]
LoraScaled = Annotated[
    list[str] | None,
    typer.Option(
        "--lora-scaled",
        metavar="FILE:SCALE",
        help="The same, at another scale than 1.",
        rich_help_panel=_MODEL,
    ),
]
LoraInit = Annotated[
    bool,
    typer.Option(
        "--lora-init-without-apply",
        help="Load adapters for requests that name them, and apply none to others.",
        hidden=True,  # its name is too long for 80 columns
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        envvar="LLAMA_ARG_HOST",
        metavar="ADDRESS",
        help="The address to listen on.",
        rich_help_panel=_SERVER,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        envvar="LLAMA_ARG_PORT",
        metavar="N",
        min=0,
        max=65535,
        help="Port; 0: a free one.",
        rich_help_panel=_SERVER,
    ),
]
Alias = Annotated[
    str | None,
    typer.Option(
        "--alias",
        "-a",
        envvar="LLAMA_ARG_ALIAS",
        metavar="NAME",
        help="The model's name in answers.",
        rich_help_panel=_SERVER,
    ),
]
Level = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="What is logged, to stderr: debug, info, warning or error.",
        rich_help_panel=_SERVER,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temp",
        envvar="LLAMA_ARG_TEMPERATURE",
        min=0,
        metavar="X",
        help="Temperature; 0: the likeliest token. Default: 0.8.",
        rich_help_panel=_DEFAULTS,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        envvar="LLAMA_ARG_TOP_K",
        metavar="N",
        help="The N likeliest tokens; 0: all. Default: 40.",
        rich_help_panel=_DEFAULTS,
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        envvar="LLAMA_ARG_TOP_P",
        max=1,
        metavar="X",
        help="The likeliest tokens that together have this share. Default: 0.95.",
        rich_help_panel=_DEFAULTS,
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        envvar="LLAMA_ARG_MIN_P",
        min=0,
        max=1,
        metavar="X",
        help="Tokens with at least this share of the likeliest one's. Default: 0.05.",
        rich_help_panel=_DEFAULTS,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        "-s",
        metavar="N",
        help="-1: a random one for each request, the default.",
        rich_help_panel=_DEFAULTS,
    ),
]
Predict = Annotated[
    int | None,
    typer.Option(
        "--n-predict",
        "-n",
        envvar="LLAMA_ARG_N_PREDICT",
        min=-1,
        metavar="N",
        help="Tokens of an answer; -1: until the context is full, the default.",
        rich_help_panel=_DEFAULTS,
    ),
]
SlotSavePath = Annotated[
    Path | None,
    typer.Option(
        "--slot-save-path",
        envvar="LLAMA_ARG_SLOT_SAVE_PATH",
        metavar="DIR",
        help="Where POST /slots/{id} saves slots to files; without it that is off.",
        rich_help_panel=_SERVER,
    ),
]
SlotSaveMinFree = Annotated[
    str | None,
    typer.Option(
        "--slot-save-min-free",
        metavar="SIZE",
        help="What stays free on that filesystem; 0: never mind. Default: 4GiB.",
        rich_help_panel=_SERVER,
    ),
]
SessionHeaders = Annotated[
    str,
    typer.Option(
        "--cache-session-headers",
        metavar="NAME,…",
        help="Headers that name a conversation, as x-session-id: a hint for the choice of a slot.",
        rich_help_panel=_CACHE,
    ),
]
CacheDisk = Annotated[
    Path | None,
    typer.Option(
        "--cache-disk",
        envvar=DISK_VARIABLE,
        metavar="DIR",
        help="Keep the cache in DIR across restarts. Without it nothing is written.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskSize = Annotated[
    str | None,
    typer.Option(
        "--cache-disk-size",
        metavar="SIZE",
        help="The most that DIR may hold, as 64GiB; the store remembers it. Default: 32GiB.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskMinFree = Annotated[
    str | None,
    typer.Option(
        "--cache-disk-min-free",
        metavar="SIZE",
        help="What stays free on DIR's filesystem. Default: 4GiB.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskCodec = Annotated[
    Codec | None,
    typer.Option(
        "--cache-disk-codec",
        metavar="CODEC",
        help="How new blocks are written: auto (measures what pays; the default), raw, zstd or "
        "byteplane.",
        rich_help_panel=_CACHE,
    ),
]
CacheMaxAge = Annotated[
    str | None,
    typer.Option(
        "--cache-max-age",
        metavar="AGE",
        help="Blocks on disk that were not used for longer go, as 30d or 12h. Default: never.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--cache-disk-key-file",
        metavar="FILE",
        help="Encrypt new blocks with the key in FILE: 32 bytes or 64 hexadecimal digits.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskWriteLimit = Annotated[
    str | None,
    typer.Option(
        "--cache-disk-write-limit",
        metavar="SIZE/day",
        help="The most that is written within 24 hours, as 200GiB/day. Default: no limit.",
        rich_help_panel=_CACHE,
    ),
]
CacheRam = Annotated[
    str,
    typer.Option(
        "--cache-ram",
        "-cram",
        envvar="LLAMA_ARG_CACHE_RAM",
        metavar="MIB",
        help="Memory for blocks that no slot holds: MiB, or a size as 2GiB; -1: what there is.",
        rich_help_panel=_CACHE,
    ),
]
CacheRestore = Annotated[
    RestoreWhen,
    typer.Option(
        "--cache-restore",
        metavar="auto|always",
        help="auto: what is computed sooner than restored is computed; always: never mind that.",
        rich_help_panel=_CACHE,
    ),
]
CacheDiskThrottle = Annotated[
    str | None,
    typer.Option(
        "--cache-disk-throttle",
        metavar="SIZE",
        hidden=True,
        help="Read no more than SIZE a second from DIR; for benchmarks.",
        rich_help_panel=_CACHE,
    ),
]
CacheMinTokens = Annotated[
    int,
    typer.Option(
        "--cache-min-tokens",
        min=0,
        metavar="N",
        help="Prompts shorter than this are not written to disk.",
        rich_help_panel=_CACHE,
    ),
]
CacheSpillOn = Annotated[
    str,
    typer.Option(
        "--cache-spill-on",
        metavar="WHEN,…",
        help="What has blocks written to disk: evict (RAM is full), idle (a conversation rests, or "
        "a minute is over), shutdown, flush (POST /cache/flush).",
        rich_help_panel=_CACHE,
    ),
]
CacheNamespace = Annotated[
    str,
    typer.Option(
        "--cache-namespace",
        metavar="TAG",
        help="Keeps this server's blocks apart from those under another tag.",
        rich_help_panel=_CACHE,
    ),
]

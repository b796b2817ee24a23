"""Flags of ``serve`` that a table describes: defaults for sampling, and where a model lies.

Each becomes a parameter of the command under its name here, None unless it is given. Names,
meanings and variables are llama-server's. ``--help`` shows those that have a help text here,
docs/flags.md all of them.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

Function = TypeVar("Function", bound=Callable[..., None])

_MODEL = "Model and context"
_SERVER = "Server"
_SAMPLING = "Where requests say nothing"


def _flag(kind: Any, *names: str, env: str | None = None, says: str = "", **more: Any) -> Any:
    """``env``: the variable, behind LLAMA_ARG_; ``says``: the help; ``more``: what typer.Option
    takes.
    """
    variable = f"LLAMA_ARG_{env}" if env else None
    option = typer.Option(*names, envvar=variable, help=says, hidden=not says, **more)
    return Annotated[kind | None, option]


def _number(*names: str, **more: Any) -> Any:
    return _flag(float, *names, metavar="X", **more)


def _count(*names: str, **more: Any) -> Any:
    return _flag(int, *names, metavar="N", **{"max": 2**31 - 1, **more})


SAMPLING: Mapping[str, Any] = {
    "repeat_penalty": _number(
        "--repeat-penalty",
        env="REPEAT_PENALTY",
        min=0.01,
        says="For tokens that came of late. Default: 1, off.",
        rich_help_panel=_SAMPLING,
    ),
    "repeat_last_n": _count("--repeat-last-n", min=-1),
    "presence_penalty": _number("--presence-penalty", env="PRESENCE_PENALTY", min=-2, max=2),
    "frequency_penalty": _number("--frequency-penalty", env="FREQUENCY_PENALTY", min=-2, max=2),
    "ignore_eos": _flag(bool, "--ignore-eos"),
    "typical_p": _number("--typical-p", "--typical", max=1),
    "top_n_sigma": _number("--top-n-sigma", "--top-nsigma", max=1000),
    "xtc_probability": _number("--xtc-probability", min=0, max=1),
    "xtc_threshold": _number("--xtc-threshold", min=0, max=1),
    "dynatemp_range": _number("--dynatemp-range", min=0, max=1000),
    "dynatemp_exponent": _number("--dynatemp-exp", min=0, max=1000),
    "dry_multiplier": _number("--dry-multiplier", min=0, max=1000),
    "dry_base": _number("--dry-base", min=1, max=1000),
    "dry_allowed_length": _count("--dry-allowed-length", min=0),
    "dry_penalty_last_n": _count("--dry-penalty-last-n", min=-1),
    "dry_sequence_breaker": _flag(list[str], "--dry-sequence-breaker", metavar="TEXT"),
    "mirostat": _count("--mirostat", min=0, max=2),
    "mirostat_eta": _number("--mirostat-lr", min=0, max=1000),
    "mirostat_tau": _number("--mirostat-ent", min=0, max=1000),
    "samplers": _flag(str, "--samplers", metavar="NAME;…"),
    "sampler_letters": _flag(str, "--sampling-seq", "--sampler-seq", metavar="LETTERS"),
    "logit_bias": _flag(list[str], "--logit-bias", "-l", metavar="ID+BIAS"),
    "grammar": _flag(str, "--grammar", metavar="GBNF"),
    "grammar_file": _flag(
        Path,
        "--grammar-file",
        metavar="FILE",
        says="A grammar (GBNF) that answers must follow.",
        rich_help_panel=_SAMPLING,
    ),
    "json_schema": _flag(str, "--json-schema", "-j", metavar="SCHEMA"),
    "json_schema_file": _flag(
        Path,
        "--json-schema-file",
        "-jf",
        metavar="FILE",
        says="A JSON schema that answers must fit.",
        rich_help_panel=_SAMPLING,
    ),
}
"""Defaults of requests: names are mostly those of RequestDefaults."""

PLACES: Mapping[str, Any] = {
    "load_mode": _flag(
        Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"],
        "--load-mode",
        "-lm",
        env="LOAD_MODE",
        metavar="MODE",
    ),
    "mlock": _flag(
        bool,
        "--mlock",
        env="MLOCK",
        says="Keep the model in memory, whatever else needs it.",
        rich_help_panel=_MODEL,
    ),
    "rope_scaling": _flag(
        Literal["none", "linear", "yarn"],
        "--rope-scaling",
        env="ROPE_SCALING_TYPE",
        metavar="TYPE",
    ),
    "rope_scale": _number("--rope-scale", env="ROPE_SCALE"),
    "rope_freq_base": _number("--rope-freq-base", env="ROPE_FREQ_BASE", min=0),
    "rope_freq_scale": _number("--rope-freq-scale", env="ROPE_FREQ_SCALE", min=0),
    "yarn_orig_ctx": _count("--yarn-orig-ctx", env="YARN_ORIG_CTX", min=0),
    "yarn_ext_factor": _number("--yarn-ext-factor", env="YARN_EXT_FACTOR"),
    "yarn_attn_factor": _number("--yarn-attn-factor", env="YARN_ATTN_FACTOR"),
    "yarn_beta_slow": _number("--yarn-beta-slow", env="YARN_BETA_SLOW"),
    "yarn_beta_fast": _number("--yarn-beta-fast", env="YARN_BETA_FAST"),
    "split_mode": _flag(
        Literal["none", "layer", "row", "tensor"],
        "--split-mode",
        "-sm",
        env="SPLIT_MODE",
        metavar="MODE",
    ),
    "tensor_split": _flag(str, "--tensor-split", "-ts", env="TENSOR_SPLIT", metavar="SHARE,…"),
    "main_gpu": _count("--main-gpu", "-mg", env="MAIN_GPU", min=0),
    "override_tensor": _flag(
        list[str],
        "--override-tensor",
        "-ot",
        env="OVERRIDE_TENSOR",
        metavar="REGEX=TYPE",
        says="Where tensors with such names lie, as exps=CPU.",
        rich_help_panel=_MODEL,
    ),
    "cpu_moe": _flag(bool, "--cpu-moe", "-cmoe", env="CPU_MOE"),
    "n_cpu_moe": _count(
        "--n-cpu-moe",
        "-ncmoe",
        env="N_CPU_MOE",
        min=0,
        max=10_000,
        says="The first N layers' experts stay on the CPU.",
        rich_help_panel=_MODEL,
    ),
    "n_cpu_ffn": _count("--n-cpu-ffn", "-ncffn", env="N_CPU_FFN", min=0, max=10_000),
    "kv_offload": _flag(bool, "--kv-offload/--no-kv-offload", "-kvo/-nkvo", env="KV_OFFLOAD"),
    "override_kv": _flag(list[str], "--override-kv", metavar="KEY=TYPE:VALUE"),
    "embeddings": _flag(
        bool,
        "--embeddings",
        "--embedding",
        env="EMBEDDINGS",
        says="Serve /v1/embeddings, too.",
        rich_help_panel=_SERVER,
    ),
    "pooling": _flag(Literal["mean", "cls", "last"], "--pooling", env="POOLING", metavar="TYPE"),
    "hf_repo": _flag(
        str,
        "--hf-repo",
        "-hf",
        "-hfr",
        env="HF_REPO",
        metavar="USER/REPO",
        says="Instead of -m: fetch it, as USER/REPO:QUANT; needs spillcache\\[hf].",
        rich_help_panel=_MODEL,
    ),
    "hf_file": _flag(str, "--hf-file", "-hff", env="HF_FILE", metavar="FILE"),
    "hf_token": _flag(str, "--hf-token", "-hft", metavar="TOKEN"),
    "offline": _flag(bool, "--offline", env="OFFLINE"),
    "chat_template_file": _flag(
        Path,
        "--chat-template-file",
        env="CHAT_TEMPLATE_FILE",
        metavar="FILE",
        says="The same in a file.",
        rich_help_panel=_MODEL,
    ),
    "chat_template_kwargs": _flag(
        str, "--chat-template-kwargs", env="CHAT_TEMPLATE_KWARGS", metavar="JSON"
    ),
    "verbosity": _count("--verbosity", "-lv", "--log-verbosity", env="LOG_VERBOSITY", min=0),
    "verbose": _flag(
        bool,
        "--verbose",
        "-v",
        "--log-verbose",
        says="The same as --log-level debug.",
        rich_help_panel=_SERVER,
    ),
}
"""Where the model comes from and lies, and a few more."""

MORE = {**SAMPLING, **PLACES}


def with_more_flags(command: Function) -> Function:
    """``command`` with the flags of the tables, which it takes as keywords."""
    signature = inspect.signature(command)
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    named += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in MORE.items()
    ]
    command.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    command.__annotations__.update(MORE)
    return command

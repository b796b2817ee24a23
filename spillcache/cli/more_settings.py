"""From the flags of ``more_flags`` to settings."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from spillcache.config import (
    KVOverride,
    PlacementConfig,
    RequestDefaults,
    RopeConfig,
    expanded,
)
from spillcache.errors import ConfigError, RequestError

Given = Mapping[str, Any]
"""Flag → value; None where it was not given."""

_FILE_BYTES_MAX = 1 << 20
_BIAS = re.compile(r"(\d{1,10})([+-](?:\d{1,6}(?:\.\d{1,9})?|inf))")
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\.weight"
_YARN = tuple(field.name for field in fields(RopeConfig) if field.name.startswith("yarn_"))
_KINDS = get_args(get_args(KVOverride)[1])
_LEVELS: Mapping[int, Literal["error", "warning", "info", "debug"]] = {
    0: "error",
    1: "error",
    2: "warning",
    3: "info",
}


def request_defaults(given: Given, **plain: Any) -> RequestDefaults:
    """What requests that say nothing get; ``plain``: fields that have flags of their own.

    Raises ConfigError.
    """
    names = {field.name for field in fields(RequestDefaults)}
    same = {name: value for name, value in given.items() if name in names}
    breakers = given.get("dry_sequence_breaker")
    made = {
        "dry_sequence_breakers": None if not breakers else _breakers(breakers),
        "samplers": _samplers(given),
        "logit_bias": tuple(_bias(word) for word in given.get("logit_bias") or ()) or None,
        "grammar": _grammar(given),
        "template_variables": _object(
            given.get("chat_template_kwargs") or "{}", "--chat-template-kwargs"
        ),
    }
    typical = given.get("typical_p")
    if typical is not None and typical <= 0:
        raise ConfigError("--typical-p: 0 leaves no token; write more than 0, up to 1")
    return RequestDefaults(**{**same, **made, **plain})


def rope_config(given: Given) -> RopeConfig:
    """``--rope-…`` and ``--yarn-…``. Raises ConfigError for a scale that is said twice."""
    scale, frequency = given.get("rope_scale"), given.get("rope_freq_scale")
    if scale is not None:
        if frequency is not None:
            raise ConfigError("--rope-scale and --rope-freq-scale say the same: give one of them")
        if scale <= 0:
            raise ConfigError("--rope-scale: write more than 0")
        frequency = 1 / scale
    yarn: dict[str, Any] = {name: given.get(name) for name in _YARN}
    return RopeConfig(given.get("rope_scaling"), given.get("rope_freq_base"), frequency, **yarn)


def placement_config(given: Given) -> PlacementConfig:
    """Which device holds what. Raises ConfigError."""
    return PlacementConfig(
        split_mode=given.get("split_mode"),
        tensor_split=_shares(given.get("tensor_split")),
        main_gpu=given.get("main_gpu"),
        tensors=_tensors(given),
        kv_offload=given.get("kv_offload") is not False,
    )


def kv_overrides(words: Sequence[str] | None) -> tuple[KVOverride, ...]:
    """``--override-kv KEY=TYPE:VALUE``, several with commas between. Raises ConfigError."""
    return tuple(_override(one) for word in words or () for one in word.split(","))


def load_mode(given: Given, *, mmap: bool) -> dict[str, bool]:
    """Fields of EngineConfig; ``--load-mode`` wins over ``--mlock`` and ``--no-mmap``."""
    mode = given.get("load_mode") or "auto"
    if mode == "auto":
        return {"mmap": mmap, "mlock": bool(given.get("mlock"))}
    return {"mmap": "mmap" in mode, "mlock": "mlock" in mode, "direct_io": mode == "dio"}


def template_text(template: str | None, file: Path | None) -> str | None:
    """``--chat-template``, or what ``--chat-template-file`` holds. Raises ConfigError."""
    if file is None:
        return template
    if template is not None:
        raise ConfigError("--chat-template and --chat-template-file: give one of them")
    return _text(file, "--chat-template-file")


def log_level(
    level: Literal["debug", "info", "warning", "error"], given: Given
) -> Literal["debug", "info", "warning", "error"]:
    """``--log-level``, unless llama-server's own flags say otherwise."""
    if given.get("verbose"):
        return "debug"
    verbosity = given.get("verbosity")
    return level if verbosity is None else _LEVELS.get(verbosity, "debug")


def _samplers(given: Given) -> tuple[str, ...] | None:
    """Checked: a server that starts with others would refuse every request."""
    from spillcache.serve.sampling import samplers_of  # noqa: PLC0415 — not for --help

    words, letters = given.get("samplers"), given.get("sampler_letters")
    if words is not None and letters is not None:
        raise ConfigError("--samplers and --sampling-seq: give one of them")
    asked = letters if words is None else words.split(";")
    if asked is None:
        return None
    try:
        return samplers_of(asked)
    except RequestError as error:
        raise ConfigError(f"--{error}") from error


def _breakers(words: Sequence[str]) -> tuple[str, ...]:
    plain = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}
    return tuple(plain.get(word, word) for word in words if word != "none")


def _bias(word: str) -> tuple[int, float]:
    match = _BIAS.fullmatch(word.strip())
    if match is None:
        raise ConfigError(f"--logit-bias: {word!r} is not ID+BIAS; write 15043+1 or 15043-1")
    return int(match[1]), float(match[2])


def _grammar(given: Given) -> tuple[Literal["gbnf", "json_schema"], str] | None:
    found: list[tuple[Literal["gbnf", "json_schema"], str]] = []
    for kind, flag in (("gbnf", "grammar"), ("json_schema", "json_schema")):
        if given.get(flag):
            found.append((kind, given[flag]))  # type: ignore[arg-type]
        if given.get(f"{flag}_file") is not None:
            name = f"--{flag}-file".replace("_", "-")
            found.append((kind, _text(given[f"{flag}_file"], name)))  # type: ignore[arg-type]
    if len(found) > 1:
        raise ConfigError("--grammar and --json-schema, as text or in files: give one of them")
    for kind, text in found:
        if kind == "json_schema":
            _object(text, "--json-schema")
        else:
            _check_gbnf(text)
    return found[0] if found else None


def _check_gbnf(text: str) -> None:
    from spillcache.engine.gbnf import lark_of  # noqa: PLC0415 — not for --help

    try:
        lark_of(text)
    except RequestError as error:
        raise ConfigError(f"--{error}") from error


def _object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: that is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag}: a JSON object is wanted, as {{}}")
    return value


def _text(path: Path, flag: str) -> str:
    try:
        with open(expanded(path), "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{flag}: {path} is larger than 1 MiB")
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag}: {path} is no text") from error


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        shares = tuple(float(word) for word in re.split(r"[,/]", text or "") if word.strip())
    except ValueError:
        shares = (-1.0,)
    if any(not 0 <= share < 1e9 for share in shares):
        raise ConfigError(f"--tensor-split: {text!r} are no shares; write for example 3,1")
    return shares


def _tensors(given: Given) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for word in given.get("override_tensor") or ():
        for one in word.split(","):
            name, mark, kind = one.partition("=")
            if not mark or not name or not kind:
                raise ConfigError(f"--override-tensor: {one!r} is not REGEX=TYPE, as exps=CPU")
            found.append((name, kind))
    if given.get("cpu_moe"):
        found.append((_EXPERTS, "CPU"))
    for flag, pattern in (("n_cpu_moe", _EXPERTS), ("n_cpu_ffn", _DENSE)):
        found += [(rf"blk\.{layer}{pattern}", "CPU") for layer in range(given.get(flag) or 0)]
    return tuple(found)


def _override(word: str) -> KVOverride:
    key, _, rest = word.partition("=")
    kind, mark, text = rest.partition(":")
    try:
        if not key or not mark or kind not in _KINDS:
            raise ValueError
        return key, kind, _value(kind, text)  # type: ignore[return-value]  # it is one of them
    except ValueError:
        raise ConfigError(
            f"--override-kv: {word!r} is not KEY=TYPE:VALUE; types are {', '.join(_KINDS)}"
        ) from None


def _value(kind: str, text: str) -> int | float | bool | str:
    if kind == "int":
        value = int(text)
        if not -(2**63) <= value < 2**63:
            raise ValueError
        return value
    if kind == "float":
        return float(text)
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"
    return text

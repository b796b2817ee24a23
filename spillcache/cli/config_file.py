"""``--config FILE``: flags of ``serve`` in TOML, each by its long name.

    model = "model.gguf"
    cache-disk = "/var/lib/spillcache"
    no-mmap = true
    api-key = ["one", "another"]

A flag on the command line wins over its variable, a variable over the file, the file over the
default: the file becomes the context's ``default_map``.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spillcache.cli.llama_flags import (
    ALIASES,
    IGNORED_SWITCHES,
    IGNORED_VALUES,
    REFUSED,
    is_harmless,
)
from spillcache.config import expanded
from spillcache.errors import ConfigError

IGNORED = "spillcache.ignored"
"""Where a context's ``meta`` has the flags that were left out, as they were written."""

_MOST_BYTES = 1 << 20


def use_config(context: Any, path: Path | None) -> Path | None:
    """Take the values in ``path`` for flags and variables that are not given; as a callback of
    ``--config``, before other flags are read. Raises ConfigError.
    """
    if path is None:
        return None
    options = {
        name.removeprefix("--"): option
        for option in context.command.params
        if option.param_type_name == "option"
        for name in option.opts
        if name.startswith("--")
    }
    values: dict[str, Any] = {}
    for key, value in _read(path).items():
        flag = f"--{key}"
        if flag in IGNORED_SWITCHES | IGNORED_VALUES or is_harmless(flag, str(value)):
            context.meta.setdefault(IGNORED, []).append(key)
            continue
        option = options.get(ALIASES.get(flag, flag).removeprefix("--"))
        if option is None or key in ("config", "help"):
            raise ConfigError(_no_such_key(path, key, options))
        values[option.name] = _value(option, value, f"{path}: {key}")
    context.default_map = values
    return path


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with open(expanded(path), "rb") as file:
            text = file.read(_MOST_BYTES).decode()
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"--config: {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is no TOML: {error}") from error


def _no_such_key(path: Path, key: str, options: Mapping[str, Any]) -> str:
    if f"--{key}" in REFUSED:
        return f"{path}: {key} is not supported: {REFUSED[f'--{key}']}"
    near = difflib.get_close_matches(key, [name for name in options if name != "config"], 1)
    hint = f"did you mean {near[0]}?" if near else "keys are the long names of serve's flags"
    return f"{path}: {key}: no such key; {hint}"


def _value(option: Any, value: Any, where: str) -> Any:
    """As the flag's parser takes it."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise ConfigError(f"{where}: a text, a number, true, false, or a list of these is wanted")
    if option.is_flag != (isinstance(value, bool)):
        raise ConfigError(f"{where}: {'true or false' if option.is_flag else 'a value'} is wanted")
    if option.is_flag:
        return value
    texts = [str(item) for item in items]
    return texts if option.multiple else ",".join(texts)

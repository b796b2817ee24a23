"""``--lora`` and ``--lora-scaled``: from what was typed to the files to load."""

from collections.abc import Sequence
from pathlib import Path

from spillcache.config import AdapterFile
from spillcache.errors import ConfigError


def adapter_files(
    plain: Sequence[str], scaled: Sequence[str], *, apply: bool
) -> tuple[AdapterFile, ...]:
    """All of them, those of ``--lora`` first; each word may name several, with commas between.

    ``apply``: whether requests that say nothing get them. Raises ConfigError for a file that is not
    there and for a scale that is no number.
    """
    files = [AdapterFile(_file(name, "--lora")) for word in plain for name in _names(word)]
    files += [_scaled(name) for word in scaled for name in _names(word)]
    return tuple(files if apply else [AdapterFile(file.path, 0.0) for file in files])


def _names(word: str) -> list[str]:
    # A file's name may hold a comma.
    return [word] if Path(word).exists() else word.split(",")


def _scaled(word: str) -> AdapterFile:
    name, mark, number = word.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        mark = ""
    if not mark:
        raise ConfigError(f"--lora-scaled: {word!r} is not FILE:SCALE, as in adapter.gguf:0.5")
    if not abs(scale) <= 1000:  # nor NaN
        raise ConfigError(f"--lora-scaled: a scale of {number} is out of reason")
    return AdapterFile(_file(name, "--lora-scaled"), scale)


def _file(name: str, flag: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{flag}: there is no file {name}; give the path of a LoRA adapter (GGUF)"
        )
    return path

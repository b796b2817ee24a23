"""``-hf USER/REPO[:QUANT]``: a model from the Hugging Face hub, through its own package.

What was fetched once is found again without the network.
"""

import fnmatch
import importlib
import re
from pathlib import Path
from typing import Any

from spillcache.errors import ConfigError, ModelLoadError

_QUANT = "Q4_K_M"
"""Where nothing else is said, as llama-server."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def hub_model(
    repo: str, file: str | None = None, token: str | None = None, *, offline: bool = False
) -> Path:
    """The path of the model's file, fetched if need be, with all parts of a split one.

    ``file``: its name in the repository; without it, that of the quantisation behind the colon, or
    the first. Raises ConfigError, and ModelLoadError where it can't be had.
    """
    name, _, quant = repo.partition(":")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise ConfigError(f"--hf-repo: {repo!r} is not USER/REPO or USER/REPO:QUANT")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise ModelLoadError(
            "-hf needs the hub's package; run: pip install 'spillcache[hf]'"
        ) from error
    try:
        return _fetched(hub, name, quant, file, token, offline=offline)
    except ModelLoadError:
        raise
    except Exception as error:  # the hub's, the network's, the disk's: all of them mean no model
        what = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelLoadError(f"{name} can't be fetched: {what}") from error


def _fetched(
    hub: Any, repo: str, quant: str, file: str | None, token: str | None, *, offline: bool
) -> Path:
    names = _kept(hub, repo) if offline else list(hub.HfApi(token=token).list_repo_files(repo))
    models = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name)
    chosen = _chosen(models, quant, file, repo)
    paths = [
        Path(hub.hf_hub_download(repo, part, token=token, local_files_only=offline))
        for part in _parts(chosen, models)
    ]
    return paths[0]


def _kept(hub: Any, repo: str) -> list[str]:
    """The files of a repository that were fetched before."""
    folder = Path(hub.snapshot_download(repo, local_files_only=True))
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]


def _chosen(models: list[str], quant: str, file: str | None, repo: str) -> str:
    if file is not None:
        if file not in models:
            raise ModelLoadError(f"{repo} has no file {file}; it has {_listed(models)}")
        return file
    pattern = f"*{quant or _QUANT}*".lower()
    fitting = [name for name in models if fnmatch.fnmatch(name.lower(), pattern)]
    if not fitting and (quant or not models):
        what = f"{quant} in a" if quant else "a"
        raise ModelLoadError(f"{repo} has not {what} GGUF file; it has {_listed(models)}")
    return (fitting or models)[0]


def _parts(chosen: str, models: list[str]) -> list[str]:
    match = _PART.search(chosen)
    if match is None:
        return [chosen]
    stem = chosen[: match.start()]
    return [name for name in models if name.startswith(stem) and _PART.search(name)]


def _listed(models: list[str]) -> str:
    return ", ".join(models[:10]) + ("…" if len(models) > 10 else "") or "none"

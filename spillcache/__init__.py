"""spillcache: the prompt cache of local LLM engines, kept on disk across restarts."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("spillcache")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0+source"

__all__ = ["__version__"]

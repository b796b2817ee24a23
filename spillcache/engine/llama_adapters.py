"""LoRA adapters of a llama.cpp context: loaded with the model, switched between decode calls."""

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spillcache.config import AdapterFile
from spillcache.engine.base import Adapter, AdapterScales
from spillcache.engine.llama_library import Library
from spillcache.errors import EngineLibraryError, ModelLoadError
from spillcache.namespace import file_digest, file_identity

_NEEDED = ("llama_adapter_lora_init", "llama_set_adapters_lora")


class LlamaAdapters:
    """The adapters of one model; the model owns and frees them. Engine's thread."""

    def __init__(
        self,
        lib: Library,
        model: Any,
        files: Sequence[AdapterFile],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Load them, before a context is made. Raises ModelLoadError, EngineLibraryError."""
        self._lib = lib
        self._in_use: AdapterScales = ()
        if files and any(not hasattr(lib.api, name) for name in _NEEDED):
            raise EngineLibraryError("this llama.cpp library can't load LoRA adapters")
        loaded = [self._load(model, file, number, stop) for number, file in enumerate(files)]
        self._handles = [handle for handle, _ in loaded]
        self.known = tuple(adapter for _, adapter in loaded)

    def _load(
        self, model: Any, file: AdapterFile, number: int, stop: Callable[[], bool]
    ) -> tuple[Any, Adapter]:
        """One adapter, with the digest of the very content that was loaded."""
        self._lib.log.errors.clear()
        try:
            before = file_identity(file.path)
            digest = file_digest(file.path, stop)
            handle = self._lib.api.llama_adapter_lora_init(model, os.fsencode(file.path))
            changed = file_identity(file.path) != before
        except InterruptedError as error:
            raise ModelLoadError("the server was stopped while an adapter loaded") from error
        except OSError as error:
            raise ModelLoadError(
                f"the adapter {file.path} can't be read: {error.strerror}"
            ) from error
        if not handle:
            words = "; ".join(self._lib.log.errors) or "it is no LoRA adapter of this model"
            raise ModelLoadError(f"llama.cpp can't load the adapter {file.path}: {words}")
        if changed:
            raise ModelLoadError(f"the adapter {file.path} changed while it was loaded; try again")
        self._refuse_activated(handle, file.path)
        return handle, Adapter(number, file.path.name, digest, file.scale)

    def _refuse_activated(self, handle: Any, path: Path) -> None:
        """An "activated" adapter works from certain tokens on only, which nobody here looks for."""
        count = getattr(self._lib.api, "llama_adapter_get_alora_n_invocation_tokens", None)
        if count is not None and count(handle):
            raise ModelLoadError(f"{path} is an activated LoRA (aLoRA): those are not supported")

    def use(self, context: Any, scales: AdapterScales) -> None:
        """Compute with these from the next call on; cheap when they are in use already."""
        if scales == self._in_use:
            return
        pointer = self._lib.api.llama_adapter_lora_p_ctypes
        handles = (pointer * len(scales))(*(self._handles[number] for number, _ in scales))
        values = (ctypes.c_float * len(scales))(*(scale for _, scale in scales))
        self._lib.api.llama_set_adapters_lora(context, handles, len(scales), values)
        self._in_use = scales

"""What the llama.cpp library can compute on: ggml's list of devices, by backend.

The functions are ggml's (``ggml-backend.h``); llama-cpp-python has no names for them.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spillcache.config import format_size


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one backend."""

    backend: str
    name: str
    description: str
    total_bytes: int
    """0 where it does not say."""

    def __str__(self) -> str:
        size = f", {format_size(self.total_bytes)}" if self.total_bytes else ""
        return f"{self.backend}: {self.description or self.name}{size}"


def devices(library_files: Iterable[Path]) -> list[Device]:
    """Those of the loaded library, which consists of these files; empty where it can't be asked.

    Any thread, after ``llama_backend_init``.
    """
    for path in library_files:
        if path.name.startswith(("libggml.", "ggml.")):
            try:
                return _listed(ctypes.CDLL(str(path)))
            except (OSError, AttributeError):  # an old one, or built in another way
                return []
    return []


def _listed(ggml: ctypes.CDLL) -> list[Device]:
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    get, registry = ggml.ggml_backend_dev_get, ggml.ggml_backend_dev_backend_reg
    get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
    registry.argtypes, registry.restype = [ctypes.c_void_p], ctypes.c_void_p
    texts = [
        ggml.ggml_backend_reg_name,
        ggml.ggml_backend_dev_name,
        ggml.ggml_backend_dev_description,
    ]
    for text in texts:
        text.argtypes, text.restype = [ctypes.c_void_p], ctypes.c_char_p
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = get(index)
        asked = zip(texts, (registry(device), device, device), strict=True)
        backend, name, what = ((ask(of) or b"").decode(errors="replace") for ask, of in asked)
        found.append(Device(backend, name, what.strip(), _memory(ggml, device)))
    return found


def _memory(ggml: ctypes.CDLL, device: int) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ask = ggml.ggml_backend_dev_memory
    pointer = ctypes.POINTER(ctypes.c_size_t)
    ask.argtypes, ask.restype = [ctypes.c_void_p, pointer, pointer], None
    ask(device, ctypes.byref(free), ctypes.byref(total))
    return total.value

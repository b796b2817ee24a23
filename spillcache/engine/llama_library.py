"""The llama.cpp shared library: loaded once, its log captured, models and contexts made.

Everything here wraps ``llama-cpp-python``'s low-level layer; a user may point
``LLAMA_CPP_LIB_PATH`` at a library of their own. Any thread may load; one thread at a time uses a
context.
"""

import ctypes
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blake3 import blake3

from spillcache.config import EngineConfig
from spillcache.engine.llama_backends import Device, devices
from spillcache.engine.llama_placement import place, set_rope
from spillcache.errors import EngineLibraryError, ModelLoadError
from spillcache.namespace import file_digest

log = logging.getLogger("spillcache.llama")

GGUF_MAGIC = b"GGUF"
GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
NEEDED = (
    "llama_state_seq_get_size_ext",
    "llama_state_seq_get_data_ext",
    "llama_state_seq_set_data_ext",
    "llama_memory_seq_cp",
    "llama_memory_seq_rm",
    "llama_memory_seq_pos_min",
)
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class LibraryLog:
    """Sends llama.cpp's log to ``logging`` and keeps the last errors for our own messages."""

    def __init__(self, library: Any) -> None:
        self.errors: deque[str] = deque(maxlen=4)
        self._partial = ""
        self._callback = library.llama_log_callback(self._receive)
        library.llama_log_set(self._callback, ctypes.c_void_p())

    def _receive(self, level: int, text: bytes, _user: object) -> None:
        self._partial += text.decode(errors="replace")
        while "\n" in self._partial:
            line, self._partial = self._partial.split("\n", 1)
            # GGML_LOG_LEVEL_ERROR is 4; a continuation (5) belongs to whatever came before.
            if level == 4 and line.strip():
                self.errors.append(line.strip())
            log.debug("%s", line)


class Library:
    """The loaded library: ``api`` is llama_cpp's module of C functions."""

    def __init__(self) -> None:
        try:
            import llama_cpp as api  # noqa: PLC0415 - heavy, and an extra
        except ImportError as error:
            raise EngineLibraryError(
                "the llama.cpp engine is not installed; run: pip install 'spillcache[llama]'"
            ) from error
        except (OSError, RuntimeError) as error:
            raise EngineLibraryError(f"the llama.cpp library does not load: {error}") from error
        missing = [name for name in NEEDED if not hasattr(api, name)]
        if missing:
            raise EngineLibraryError(
                f"this llama.cpp library lacks {', '.join(missing)}; "
                "install llama-cpp-python 0.3.36 or newer"
            )
        self.api: Any = api
        self.log = LibraryLog(api)
        api.llama_backend_init()

    @property
    def version(self) -> str:
        """llama-cpp-python's version and llama.cpp's own."""
        native = self.api.llama_version().decode() if hasattr(self.api, "llama_version") else ""
        return f"{version('llama-cpp-python')} {native}".strip()

    @property
    def digest(self) -> bytes:
        """BLAKE3 over the content of the shared libraries in use: two builds of one version
        differ.
        """
        return _files_digest(tuple(self._loaded_files()))

    def _loaded_files(self) -> list[Path]:
        base = os.environ.get("LLAMA_CPP_LIB_PATH")
        folder = Path(base) if base else Path(self.api.__file__).parent / "lib"
        files = {p.resolve() for p in folder.iterdir() if re.match(r"lib(llama|ggml)", p.name)}
        return sorted(p for p in files if p.is_file())

    @property
    def backends(self) -> list[Device]:
        """The devices that it can compute on."""
        return devices(self._loaded_files())

    @property
    def devices(self) -> str:
        """What computes: instruction sets and backends, as the library prints them."""
        text: str = self.api.llama_print_system_info().decode()
        return " ".join(text.split())


@cache
def _files_digest(files: tuple[Path, ...]) -> bytes:
    hasher = blake3()
    for path in files:
        hasher.update(file_digest(path))
    return hasher.digest()


_library: Library | None = None
_library_lock = threading.Lock()


def library() -> Library:
    """The process's one library; loads it at the first call. Raises EngineLibraryError."""
    global _library  # noqa: PLW0603 - llama.cpp itself is global: one backend, one log callback
    with _library_lock:
        if _library is None:
            _library = Library()
        return _library


def model_files(path: Path) -> list[Path]:
    """Every file that a model is made of: itself, or all parts of a split one."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, count = match.groups()
    return [path.with_name(f"{stem}-{i:05d}-of-{count}.gguf") for i in range(1, int(count) + 1)]


def check_model_file(path: Path) -> None:
    """Raise ModelLoadError unless ``path`` is a readable file that starts like a GGUF model."""
    if not path.exists():
        raise ModelLoadError(f"there is no model file {path}; give the path of a .gguf file to -m")
    if not path.is_file():
        raise ModelLoadError(f"{path} is not a file; give the path of a .gguf file to -m")
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"the model {path} can't be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF model; convert it, or give another file to -m")


def load_model(lib: Library, config: EngineConfig, stop: Callable[[], bool] = lambda: False) -> Any:
    """The model's handle; raises ModelLoadError with llama.cpp's last words, or when ``stop`` says
    so, which is asked while tensors are read.
    """
    for path in model_files(config.model):
        check_model_file(path)
    params = lib.api.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers
    if config.gpu_layers and not lib.api.llama_supports_gpu_offload():
        log.warning(
            "-ngl: this llama.cpp library was built without a GPU, so all layers stay on the CPU; "
            "LLAMA_CPP_LIB_PATH may name another one (spillcache doctor -m MODEL lists backends)"
        )
    if not config.gpu_layers and lib.api.llama_supports_gpu_offload():
        log.warning("the library has a GPU, and all layers stay on the CPU; -ngl all moves them")
    params.load_mode = _load_mode(lib.api, config)
    kept = place(lib.api, params, config)  # must live until the model is loaded
    params.progress_callback = lib.api.llama_progress_callback(lambda *_: not stop())
    lib.log.errors.clear()
    model = lib.api.llama_model_load_from_file(os.fsencode(config.model), params)
    del kept
    if not model and stop():
        raise ModelLoadError("the server was stopped while the model loaded")
    if not model:
        raise ModelLoadError(f"llama.cpp can't load {config.model}: {_last_words(lib.log.errors)}")
    return model


def _load_mode(api: Any, config: EngineConfig) -> int:
    if config.direct_io:
        mode = api.LLAMA_LOAD_MODE_DIRECT_IO
    elif config.mlock:
        mode = api.LLAMA_LOAD_MODE_MMAP_MLOCK if config.mmap else api.LLAMA_LOAD_MODE_MLOCK
    else:
        mode = api.LLAMA_LOAD_MODE_MMAP if config.mmap else api.LLAMA_LOAD_MODE_NONE
    return int(mode)


_WINDOW_CELLS_STEP = 256


def new_context(
    lib: Library,
    model: Any,
    config: EngineConfig,
    sequences: int,
    cells: int,
    *,
    pooling: int | None = None,
) -> Any:
    """A context with ``cells`` unified cells for ``sequences`` sequences; for embeddings if there
    is a ``pooling``, llama.cpp's number of it. Raises ModelLoadError.
    """
    params = lib.api.llama_context_default_params()
    params.n_ctx = cells
    params.n_batch = params.n_ubatch = config.ubatch_tokens
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = config.threads or len(os.sched_getaffinity(0))
    params.kv_unified = True
    params.swa_full = config.swa_full
    params.flash_attn_type = FLASH_ATTENTION[config.flash_attention]
    params.offload_kqv = config.placement.kv_offload
    set_rope(params, config.rope)
    if pooling is not None:
        params.embeddings, params.pooling_type = True, pooling
    params.type_k, params.type_v = GGML_TYPES[config.type_k], GGML_TYPES[config.type_v]
    lib.log.errors.clear()
    context = lib.api.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(
            f"llama.cpp can't make a context of {cells} tokens for {config.model} "
            f"(K {config.type_k}, V {config.type_v}, flash attention {config.flash_attention}): "
            f"{_last_words(lib.log.errors)}"
        )
    return context


def window_cells(api: Any, context: Any, model: Any, config: EngineConfig) -> int:
    """How many cells the windows of a unified cache share, as llama.cpp makes them: a window for
    each sequence, and a call.
    """
    cells = int(api.llama_n_ctx(context))
    if config.swa_full:
        return cells
    windows = int(api.llama_model_n_swa(model)) * int(api.llama_n_seq_max(context))
    wanted = min(cells, windows + int(api.llama_n_ubatch(context)))
    return -(-wanted // _WINDOW_CELLS_STEP) * _WINDOW_CELLS_STEP


def _last_words(errors: Sequence[str]) -> str:
    return "; ".join(list(errors)[-2:]) or "no reason given; is there enough memory?"

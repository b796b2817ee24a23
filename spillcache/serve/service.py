"""Engine, store, tiers and scheduler, put together and taken apart in the right order."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from blake3 import blake3

from spillcache.cache.prefix_cache import PrefixCache
from spillcache.cache.spill import Flushed
from spillcache.config import Settings
from spillcache.engine.base import Embedding, Engine, SelfTest, Tokens
from spillcache.engine.llama_engine import LlamaEngine
from spillcache.engine.llama_library import check_model_file, model_files
from spillcache.errors import (
    EngineError,
    NotReady,
    SlotFilesOff,
    SpillcacheError,
    StoreError,
    Unsupported,
)
from spillcache.metrics import Metrics
from spillcache.namespace import Namespace, file_identity, remembered_digest
from spillcache.processors import give_way
from spillcache.serve.adapters import Adapters
from spillcache.serve.door import SlotAction
from spillcache.serve.job import GenerationRequest, Listener, Ticket
from spillcache.serve.overview import Overview
from spillcache.serve.scheduler import Scheduler
from spillcache.serve.slot_actions import SlotDone
from spillcache.serve.token_memory import TokenMemory
from spillcache.serve.token_shelf import TokenShelf, shelf_namespace
from spillcache.store.block_store import BlockStore
from spillcache.store.cipher import read_key
from spillcache.store.slot_folder import SlotFolder, open_slot_folder

log = logging.getLogger("spillcache.serve")

State = Literal["loading", "ready", "failed", "stopping", "stopped"]
_SETTLE_S = 5.0
"""A flush waits so long for what only the engine has; its thread may hang."""
_HASH_WAIT_S = 5.0
"""A model that is hashed within this is waited for: then the first request finds the cache."""


class Service:
    """The routes' only door. Any thread, unless a method says otherwise."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.token_memory = TokenMemory()
        self.failure: SpillcacheError | None = None
        """Why ``state`` is "failed"."""
        self._state: State = "loading"
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._store: BlockStore | None = None
        self._scheduler: Scheduler | None = None
        self._cache: PrefixCache | None = None
        self._shelf: TokenShelf | None = None
        self._overview: Overview | None = None
        self._cache_off = "the model loads"
        self._verdict: SelfTest | None = None
        self._stop_loading = threading.Event()
        self._slot_folder: SlotFolder | None = None
        self._digest: list[bytes] | None = None
        self._hashed = threading.Event()
        self._loader = threading.Thread(target=self._load, name="spillcache-load", daemon=True)
        self._opener = threading.Thread(
            target=self._open_cache, name="spillcache-open", daemon=True
        )

    # Coming up.

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._loader.start()

    @property
    def state(self) -> State:
        """Where in its life the service is."""
        if self._state == "ready" and self._scheduler is not None and not self._scheduler.alive:
            self.failure = EngineError("the engine's thread has ended; restart the server")
            self._become("failed")
        return self._state

    def _become(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until loading is over, one way or another; True when the service is ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != "loading", timeout_s)
            return self._state == "ready"

    def _load(self) -> None:
        try:
            self._open_store()
            self._load_engine()
        except SpillcacheError as error:
            self._fail(error)
        except Exception as error:  # the loader must say that it failed, whatever it was
            log.exception("loading failed")
            self._fail(EngineError(f"loading failed: {type(error).__name__}: {error}"))

    def _open_store(self) -> None:
        for path in model_files(self.settings.engine.model):
            check_model_file(path)
        slot_files, store = self.settings.serve.slot_files, self.settings.store
        if slot_files is not None:
            key = store.key_file if store is not None else None
            self._slot_folder = open_slot_folder(
                slot_files.path, slot_files.min_free_bytes, None if key is None else read_key(key)
            )
        if store is not None:
            self._store = BlockStore.open(store, self.metrics)
        if store is not None or slot_files is not None:
            threading.Thread(target=self._hash, name="spillcache-hash", daemon=True).start()

    def _load_engine(self) -> None:
        engine = LlamaEngine(self.settings.engine, self._stop_loading.is_set)
        self._engine = engine
        self._verdict = self._test(engine)
        self._scheduler = Scheduler(engine, self.metrics, self.settings.serve.queue_limit)
        self._scheduler.start()
        self._overview = Overview(engine, self._scheduler.glance, self.metrics)
        self._opener.start()
        self._opener.join(_HASH_WAIT_S)
        with self._changed:
            if self._state == "loading":
                self._become("ready")

    def _fail(self, error: SpillcacheError) -> None:
        self.failure = error
        self._stop_loading.set()
        if self._store is not None:
            self._store.close()
        if self._engine is not None:
            self._engine.close()
        self._become("failed")

    def _test(self, engine: Engine) -> SelfTest:
        """The self-test's verdict, remembered per engine setting and model file.

        It serves every set of adapters: they change what state says, not how it is laid out.
        """
        fields = dict(engine.identity)
        for i, path in enumerate(model_files(self.settings.engine.model)):
            fields[f"file_{i}"] = file_identity(path)
        key = f"self-test 3:{blake3(Namespace.of(fields).encode()).hexdigest()[:32]}"
        known = self._recall(key)
        if known is not None:
            return SelfTest(True, known.startswith(b"exact "), known.decode().split(" ", 1)[1])
        verdict = engine.self_test()
        if verdict.passed:
            log.debug("self-test passed: %s", verdict.detail)  # the server's first lines have it
            self._remember(
                key, f"{'exact' if verdict.exact else 'close'} {verdict.detail}".encode()
            )
        else:
            log.warning("self-test failed, no prompt is cached: %s", verdict.detail)
        return verdict

    def _recall(self, key: str) -> bytes | None:
        try:
            return self._store.note(key) if self._store is not None else None
        except StoreError as error:
            log.warning("the store's notes can't be read: %s", error)
            return None

    def _remember(self, key: str, value: bytes) -> None:
        try:
            if self._store is not None:
                self._store.set_note(key, value)
        except StoreError as error:
            log.warning("the store's notes can't be written: %s", error)

    def _hash(self) -> None:
        """Hash the model's files, once per file; a thread of its own."""
        try:
            self._digest = [
                remembered_digest(path, self._recall, self._remember, self._stop_loading.is_set)
                for path in model_files(self.settings.engine.model)
            ]
        except InterruptedError:
            pass
        except OSError as error:
            log.warning("the model can't be hashed, so nothing is kept on disk: %s", error)
        finally:
            self._hashed.set()

    def _open_cache(self) -> None:
        """Attach the tiers as soon as the model's identity is known; a thread of its own."""
        try:
            self._try_open_cache()
        except Exception:  # requests are served all the same
            log.exception("the tiers could not be opened; nothing is cached")
            self._cache_off = "the tiers could not be opened, see the log"

    def _try_open_cache(self) -> None:
        engine, scheduler, verdict = self._engine, self._scheduler, self._verdict
        if engine is None or scheduler is None or verdict is None:
            return
        if not verdict.passed:
            self._cache_off = f"self-test: {verdict.detail}"
            return
        if self._store is None and self.settings.cache.ram_bytes <= 0:
            self._cache_off = "--cache-ram is 0 and there is no --cache-disk"
            if self._slot_folder is None:
                return
        elif self._store is None and self._slot_folder is None:
            # Without a disk nothing outlives the process, so the model's content need not be known.
            self._attach(Namespace.of(dict(engine.identity)))
            return
        self._cache_off = "the model's content is being hashed"
        self._hashed.wait()
        if self._digest is None:
            self._cache_off = "the model's content could not be hashed"
            return
        model = {f"model_{i}": digest for i, digest in enumerate(self._digest)}
        self._attach(Namespace.of({**engine.identity, **model}))
        if self._store is None:
            return
        tag = self.settings.engine.namespace_tag
        self._shelf = TokenShelf(self._store, shelf_namespace(model, tag))
        self.token_memory.shelf = self._shelf

    def _attach(self, namespace: Namespace) -> None:
        engine, scheduler = self._engine, self._scheduler
        if engine is None or scheduler is None:
            return
        with self._changed:
            if self._state in {"stopping", "stopped", "failed"}:
                return
            if self._store is not None or self.settings.cache.ram_bytes > 0:
                self._cache_off = ""
                self._cache = PrefixCache(
                    self.settings.cache, engine.geometry, self._store, self.metrics
                )
        scheduler.attach(namespace, self._cache)

    # Up.

    @property
    def engine(self) -> Engine:
        """The engine, for its text methods; raises NotReady until it is loaded."""
        if self._engine is None or self._state != "ready":
            raise self._not_ready()
        return self._engine

    def _not_ready(self) -> NotReady:
        if self._state == "loading":
            return NotReady("Loading model")
        return NotReady("the server is stopping; ask again when it is back")

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; see Scheduler.submit."""
        if self._scheduler is None or self._state != "ready":
            raise self._not_ready()
        return self._scheduler.submit(request, listener)

    def embed(self, tokens: Tokens) -> Embedding:
        """See Door."""
        if self._scheduler is None or self._state != "ready":
            raise self._not_ready()
        return self._scheduler.embeddings.of(tokens)

    def flush(self, timeout_s: float) -> Flushed:
        """See Door."""
        if self._state != "ready":
            raise self._not_ready()
        if self.settings.store is None:
            raise Unsupported("there is no disk to write to: the server runs without --cache-disk")
        if "flush" not in self.settings.cache.spill_on:
            raise Unsupported("the server's --cache-spill-on leaves out flush")
        if self._cache is None:
            raise NotReady(f"the disk tier is not in use: {self._cache_off}")
        if self._shelf is not None:
            self._shelf.flush()
        began = time.monotonic()
        if self._scheduler is not None and self._scheduler.alive:
            self._scheduler.settle(min(timeout_s, _SETTLE_S))
        return self._cache.flush(max(0.0, timeout_s - (time.monotonic() - began)))

    def slot_action(self, action: SlotAction, slot: int, name: str) -> SlotDone:
        """See Door."""
        scheduler, folder, verdict = self._scheduler, self._slot_folder, self._verdict
        if self.settings.serve.slot_files is None:
            raise SlotFilesOff("slots are not saved to files: start with --slot-save-path DIR")
        if scheduler is None or folder is None or verdict is None or self._state != "ready":
            raise self._not_ready()
        if not verdict.passed:
            raise SlotFilesOff(f"this model's state can't be moved: {verdict.detail}")
        if self._hashed.is_set() and self._digest is None:
            raise SlotFilesOff("the model's content can't be hashed, see the log: whose is a file?")
        give_way()
        if action == "erase":
            return scheduler.actions.erase(slot)
        if action == "save":
            return scheduler.actions.save(slot, folder, name)
        return scheduler.actions.restore(slot, folder, name)

    def slot_actions(self) -> dict[int, str]:
        """See Door."""
        return self._scheduler.actions.running() if self._scheduler is not None else {}

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters; raises NotReady until the model is loaded."""
        if self._scheduler is None or self._state != "ready":
            raise self._not_ready()
        return self._scheduler.adapters

    def slots_total(self) -> int:
        """How many requests can be worked on at once."""
        return self.settings.engine.slots

    def slots(self) -> list[bool]:
        """Which slots work on a request now; raises NotReady until the model is loaded."""
        if self._scheduler is None or self._state != "ready":
            raise self._not_ready()
        return self._scheduler.slots()

    def health(self) -> dict[str, object]:
        """What ``/health`` says."""
        words = {"loading": "loading model", "ready": "ok"}
        test = self._verdict
        return {
            "status": words.get(self._state, self._state),
            "cache": {
                **self._tiers(),
                "self_test": None if test is None else {
                    "passed": test.passed, "exact": test.exact, "detail": test.detail,
                },
            },
        }  # fmt: skip

    def _tiers(self) -> dict[str, Any]:
        """RAM and disk, as they are."""
        cache = self._cache
        disk: dict[str, object] = {"on": False, "reason": self._cache_off or "no --cache-disk"}
        if cache is not None and self._store is not None:
            disk = {"on": not cache.disk_reason, "reason": cache.disk_reason}
            store = self._store.describe()
            disk |= {name: store[name] for name in ("reads", "pinned_blocks", "quota_bytes")}
            if limit := cache.write_limit():
                disk["write_limit"] = limit
        ram: dict[str, object] = {"on": cache is not None, "reason": self._cache_off}
        if cache is not None:
            ram |= cache.status()
        return {"ram": ram, "disk": disk}

    def overview(self) -> dict[str, Any]:
        """See Door."""
        if self._overview is None or self._state != "ready":
            raise self._not_ready()
        return self._overview.take(self._cache, self._tiers())

    # Going down.

    def stop(self, progress: Callable[[str], None], drain_s: float | None = None) -> None:
        """Drain, spill, close; blocks, so call it in a worker thread. May be called twice."""
        with self._changed:
            if self._state in {"stopping", "stopped"}:
                self._changed.wait_for(lambda: self._state == "stopped")
                return
            self._become("stopping")
        self._stop_loading.set()
        self._loader.join()
        if (
            self._scheduler is not None or self.failure is None
        ):  # else loading failed and cleaned up
            self._take_apart(progress, drain_s)
        self._become("stopped")

    def _take_apart(self, progress: Callable[[str], None], drain_s: float | None) -> None:
        if self._scheduler is not None:
            if self._scheduler.busy():
                progress("waiting for running answers")
            drain = self.settings.serve.drain_s if drain_s is None else drain_s
            self._scheduler.stop(drain)
        if self._opener.is_alive():
            self._opener.join()
        if self._shelf is not None:
            self._shelf.close()
        if self._cache is not None:
            self._cache.close(progress)
        elif self._store is not None:
            self._store.close()
        if self._engine is not None:
            self._engine.close()

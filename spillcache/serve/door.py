"""What the HTTP routes need of the service; ``service.Service`` is it."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from spillcache.cache.spill import Flushed
from spillcache.config import Settings
from spillcache.engine.base import Embedding, Engine, Tokens
from spillcache.errors import SpillcacheError
from spillcache.metrics import Metrics
from spillcache.serve.adapters import Adapters
from spillcache.serve.job import GenerationRequest, Listener, Ticket
from spillcache.serve.slot_actions import SlotDone
from spillcache.serve.token_memory import TokenMemory

SlotAction = Literal["save", "restore", "erase"]
State = Literal["loading", "ready", "failed", "stopping", "stopped"]


class Door(Protocol):
    """The routes' only way to engine, cache and scheduler. Any thread."""

    @property
    def settings(self) -> Settings:
        """As it was started."""

    @property
    def metrics(self) -> Metrics:
        """For ``/metrics``."""

    @property
    def state(self) -> State:
        """From loading to stopped."""

    @property
    def failure(self) -> SpillcacheError | None:
        """Why the state is ``failed``."""

    @property
    def engine(self) -> Engine:
        """For its text methods and facts only; raises NotReady until it is loaded."""

    @property
    def token_memory(self) -> TokenMemory:
        """What is known of earlier answers."""

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters; raises NotReady until the model is loaded."""

    def start(self) -> None:
        """Begin to load; returns at once."""

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; raises NotReady, Overloaded, PromptTooLong or RequestError."""

    def embed(self, tokens: Tokens) -> Embedding:
        """The vector of a text of these tokens; blocks. Raises as Engine.embed, and NotReady."""

    def flush(self, timeout_s: float) -> Flushed:
        """Write what is not on disk yet; blocks up to ``timeout_s``. Raises NotReady, or
        Unsupported where there is no disk tier or flushing is off.
        """

    def health(self) -> dict[str, object]:
        """For ``/health``."""

    def overview(self) -> dict[str, Any]:
        """For ``/cache``; reads the store's index. Raises NotReady until the model is loaded."""

    def slots_total(self) -> int:
        """How many requests run at a time."""

    def slots(self) -> list[bool]:
        """Which slots work on a request now; raises NotReady until the model is loaded."""

    def slot_action(self, action: SlotAction, slot: int, name: str) -> SlotDone:
        """Do it; blocks its thread, and lowers its priority. May raise any SlotFileError, NotReady
        and Overloaded. ``name``: the file's; not looked at to erase.
        """

    def slot_actions(self) -> dict[int, str]:
        """Which slots have an action at work now, and which it is."""

    def stop(self, progress: Callable[[str], None], drain_s: float | None = None) -> None:
        """End running answers, save, close; blocks for seconds and tells its progress in lines."""

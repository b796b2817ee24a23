"""The token memory's records in the store on disk, so that they survive restarts.

They are objects of a namespace of their own, by model: found by their keys, encrypted, verified and
evicted as all others are, and hidden, purged and listed with them. Nothing depends on them.
"""

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence

from spillcache.chain import BlockHash
from spillcache.errors import StoreError
from spillcache.namespace import FieldValue, Namespace
from spillcache.state import Part
from spillcache.store.block_store import BlockStore, Entry
from spillcache.store.objects import StoreObject

log = logging.getLogger("spillcache.serve")

_KIND = "token memory"
_FILE = re.compile(r"model_\d+")
"""Fields with a digest of a model's file."""
_WRITE_DELAY_S = 30.0
"""As long as a conversation may rest before its blocks are written."""
_PENDING_MAX = 4096
_READ_WAIT_S = 2.0
_WRITE_WAIT_S = 5.0
_PAUSE_S = 60.0


def shelf_namespace(model: Mapping[str, FieldValue], tag: str) -> Namespace:
    """The namespace of a model's records: the content of its files, and the user's tag."""
    return Namespace.of({**model, "kind": _KIND, "tag": tag})


def shelf_of(namespace: Namespace) -> Namespace | None:
    """The namespace of the records that belong to a model's state; None where there are none, or
    these are records themselves.
    """
    fields = dict(namespace.fields)
    model = {name: value for name, value in fields.items() if _FILE.fullmatch(name)}
    if not model or fields.get("kind") == _KIND:
        return None
    return shelf_namespace(model, str(fields.get("tag", "")))


class TokenShelf:
    """A ``token_memory.Shelf`` over ``store``, which the owner closes after this. Any thread.

    Records are written in the background, together, half a minute after the first of them. A disk
    that fails or hangs is left alone for a minute; what was to be written meanwhile is kept, up to
    a bound, and what can't be written in the end is learnt again some day.
    """

    def __init__(
        self, store: BlockStore, namespace: Namespace, delay_s: float = _WRITE_DELAY_S
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pending: dict[bytes, bytes] = {}
        self._timer: threading.Timer | None = None
        self._closed = False
        self._paused_until = 0.0

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """See Shelf. Waits two seconds at most, so that no request hangs on a disk."""
        if self._closed or time.monotonic() < self._paused_until:
            return {}
        try:
            entries = self._entries(keys)
        except StoreError as error:
            self._pause(error)
            return {}
        return self._read(entries) if entries else {}

    def _entries(self, keys: Sequence[bytes]) -> list[Entry]:
        hashes = [BlockHash(key) for key in keys]
        found = self._store.find(self._namespace.id, hashes, (Part.KV,))
        return [found[i][Part.KV] for i, has in enumerate(found.has(Part.KV)) if has]

    def _read(self, entries: list[Entry]) -> dict[bytes, bytes]:
        """The records of these entries, read in a thread that may be left behind."""
        found: dict[bytes, bytes] = {}
        over = threading.Event()

        def read() -> None:
            for entry in entries:
                if over.is_set():
                    return
                try:
                    for payload in self._store.read([entry]):
                        found[bytes(entry.block)] = bytes(payload.view)
                        payload.release()
                    self._store.touch(self._namespace.id, entry.block)
                except StoreError as error:  # evicted meanwhile, or damaged: it is not known
                    log.debug("a record of the token memory is lost: %s", error)

        reader = threading.Thread(target=read, name="spillcache-recall", daemon=True)
        reader.start()
        reader.join(_READ_WAIT_S)
        over.set()
        if reader.is_alive():
            self._pause("the disk takes too long to read")
        return dict(found)

    def put(self, key: bytes, value: bytes) -> None:
        """See Shelf."""
        with self._lock:
            if self._closed or len(self._pending) >= _PENDING_MAX:
                return
            self._pending[key] = value
            if self._timer is None:
                self._timer = threading.Timer(self._delay_s, self._write)
                self._timer.daemon = True
                self._timer.start()

    def flush(self, wait_s: float = _WRITE_WAIT_S) -> None:
        """Write what is not written yet; waits for it, but not longer than that. What fails is
        tried again with the next record.
        """
        writer = threading.Thread(target=self._write, name="spillcache-remember", daemon=True)
        writer.start()
        writer.join(wait_s)
        if writer.is_alive():
            self._pause("the disk takes too long to write")

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                pending, self._timer = dict(self._pending), None
            if not pending or time.monotonic() < self._paused_until:
                return
            try:
                self._store.put(self._namespace, [_object(*item) for item in pending.items()])
            except StoreError as error:
                self._pause(error)
                return
            with self._lock:
                for key, value in pending.items():
                    if self._pending.get(key) is value:
                        del self._pending[key]

    def close(self) -> None:
        """Write the rest and stop; waits as ``flush``."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.flush()
        self._closed = True

    def _pause(self, why: object) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        log.warning("the token memory leaves the disk alone for %.0f s: %s", _PAUSE_S, why)


def _object(key: bytes, value: bytes) -> StoreObject:
    """A record: a first block, so that it hangs on nothing."""
    block = BlockHash(key)
    return StoreObject(
        block=block,
        part=Part.KV,
        parent=BlockHash(bytes(len(key))),
        block_index=0,
        token_count=len(value) // 4,
        payload=value,
    )

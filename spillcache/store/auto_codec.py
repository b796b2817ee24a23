"""Which codec pays: measured on the first payloads of each namespace and part, decided once, and
remembered in the store's notes.

Compression is worth it where it saves space and reading does not get slower: where one core decodes
at least as fast as the disk reads.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spillcache.config import MIB
from spillcache.state import Buffer, Part
from spillcache.store import codec as codecs
from spillcache.store.codec import FixedCodec

SAMPLE_BYTES = 4 * MIB
"""How much of a part is looked at; until then it is stored raw."""
LEAST_SAVING = 0.10
_CANDIDATES: tuple[FixedCodec, ...] = ("byteplane", "zstd")
_READ_NOTE = "disk-read"

log = logging.getLogger("spillcache.store")

Recall = Callable[[str], bytes | None]
Remember = Callable[[str, bytes], None]


@dataclass(slots=True)
class _Trial:
    """What one codec made of the sample."""

    stored_bytes: int = 0
    decode_s: float = 0.0


@dataclass(slots=True)
class _Sample:
    raw_bytes: int = 0
    trials: dict[FixedCodec, _Trial] = field(
        default_factory=lambda: {codec: _Trial() for codec in _CANDIDATES}
    )

    def add(self, payload: Buffer) -> None:
        """Try every codec on one payload."""
        target = memoryview(bytearray(len(payload)))
        self.raw_bytes += len(payload)
        for codec, trial in self.trials.items():
            used, stored = codecs.encode(codec, payload)
            start = time.thread_time()
            codecs.decode_into(used, stored, target)
            trial.decode_s += time.thread_time() - start
            trial.stored_bytes += len(stored)

    def best(self, read_bytes_s: float) -> tuple[FixedCodec, dict[str, object]]:
        """The codec that pays most, and the figures for it; raw if none does."""
        figures: dict[str, object] = {
            "sample_bytes": self.raw_bytes,
            "read_mb_s": round(read_bytes_s / 1e6),
        }
        best: FixedCodec = "raw"
        least = self.raw_bytes * (1 - LEAST_SAVING)
        for codec, trial in self.trials.items():
            decode_bytes_s = self.raw_bytes / max(trial.decode_s, 1e-9)
            figures[codec] = {
                "saving": round(1 - trial.stored_bytes / self.raw_bytes, 4),
                "decode_mb_s": round(decode_bytes_s / 1e6),
            }
            if trial.stored_bytes <= least and decode_bytes_s >= read_bytes_s:
                best, least = codec, trial.stored_bytes
        return best, figures


class AutoCodec:
    """The decisions of one store; any thread.

    ``recall`` and ``remember`` keep them (a store's notes); ``read_speed`` measures how many bytes
    per second the disk reads, None if that can't be told yet.
    """

    def __init__(
        self, recall: Recall, remember: Remember, read_speed: Callable[[], float | None]
    ) -> None:
        self._recall = recall
        self._remember = remember
        self._read_speed = read_speed
        self._lock = threading.Lock()
        self._decided: dict[tuple[bytes, Part], FixedCodec] = {}
        self._samples: dict[tuple[bytes, Part], _Sample] = {}

    def choose(self, namespace_id: bytes, part: Part, payload: Buffer) -> FixedCodec:
        """How to store this payload; it may be looked at for a decision. Raises what ``recall`` and
        ``remember`` raise.
        """
        key = (namespace_id, part)
        with self._lock:
            decided = self._decided.get(key)
            if decided is None and key not in self._samples:
                decided = self._recalled(namespace_id, part)
            if decided is None:
                decided = self._sampled(key, payload)
            if decided is None:
                return "raw"
            self._decided[key] = decided
            return decided

    def _recalled(self, namespace_id: bytes, part: Part) -> FixedCodec | None:
        value = self._recall(note_key(namespace_id, part))
        try:
            found = json.loads(value)["codec"] if value is not None else None
        except (ValueError, TypeError, KeyError):
            return None
        return found if found in ("raw", *_CANDIDATES) else None

    def _sampled(self, key: tuple[bytes, Part], payload: Buffer) -> FixedCodec | None:
        """Look at one more payload; None until enough was seen, and written to measure the disk."""
        sample = self._samples.setdefault(key, _Sample())
        if sample.raw_bytes < SAMPLE_BYTES:
            sample.add(payload)
        if sample.raw_bytes < SAMPLE_BYTES:
            return None
        read_bytes_s = self._disk()
        if read_bytes_s is None:
            return None
        codec, figures = sample.best(read_bytes_s)
        namespace_id, part = key
        note = json.dumps({"codec": codec, **figures})
        self._remember(note_key(namespace_id, part), note.encode())
        del self._samples[key]
        log.info("codec chosen namespace=%s part=%s %s", namespace_id.hex(), part.name, note)
        return codec

    def _disk(self) -> float | None:
        value = self._recall(_READ_NOTE)
        if value is not None:
            try:
                return float(value)
            except ValueError:
                log.warning("a damaged note on the disk's speed is replaced")
        measured = self._read_speed()
        if measured is not None:
            self._remember(_READ_NOTE, f"{measured:.0f}".encode())
        return measured


def note_key(namespace_id: bytes, part: Part) -> str:
    """The note that a decision is remembered under."""
    return f"codec:{namespace_id.hex()}:{part.name.lower()}"

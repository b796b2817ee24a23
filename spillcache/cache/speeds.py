"""What computing and restoring cost here: measured in use, and remembered in the store's notes.

The cost of computing belongs to a namespace (a model and its settings), and so does that of an
import; the speed of the disk belongs to the directory.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spillcache.config import MIB
from spillcache.errors import StoreError
from spillcache.store.read_meter import Reading

log = logging.getLogger("spillcache.cache")

Recall = Callable[[str], bytes | None]
Remember = Callable[[str, bytes], object]

DISK_NOTE = "speed:disk"
HALF_LIFE_TOKENS = 8192
"""What was computed so many tokens ago counts half."""
LARGE_READ_BYTES = MIB
"""Larger reads tell the disk's speed, smaller ones how long it takes to begin."""
_OUTLIER = 3.0
_SHARE_OF_NEW = 0.3
_NOTICEABLE = 0.1


class PrefillCost:
    """The seconds that prefill takes: so much per token, and more for each token before it, since
    attention looks at all of them. Least squares over whole calls, the older the less they count.
    """

    def __init__(self, sums: tuple[float, ...] = (0.0,) * 5) -> None:
        self._xx, self._xy, self._yy, self._xt, self._yt = sums

    def add(self, start: int, stop: int, seconds: float) -> None:
        """One call took ``seconds`` for the tokens from position ``start`` to ``stop``."""
        expected = self.seconds(start, stop)
        if expected is not None:  # the machine may have slept
            seconds = min(seconds, _OUTLIER * expected)
        x, y = _amounts(start, stop)
        keep = 0.5 ** (x / HALF_LIFE_TOKENS)
        self._xx = keep * self._xx + x * x
        self._xy = keep * self._xy + x * y
        self._yy = keep * self._yy + y * y
        self._xt = keep * self._xt + x * seconds
        self._yt = keep * self._yt + y * seconds

    def seconds(self, start: int, stop: int) -> float | None:
        """What the tokens from ``start`` to ``stop`` would take; None before the first call."""
        if not self._xx:
            return None
        per_x, per_y = self._rates()
        x, y = _amounts(start, stop)
        return per_x * x + per_y * y

    def _rates(self) -> tuple[float, float]:
        """Seconds per token, and per token for each token before it; neither is negative."""
        alone = self._xt / self._xx, 0.0
        determinant = self._xx * self._yy - self._xy * self._xy
        if determinant <= 1e-9 * self._xx * self._yy:
            return alone  # all calls began at the same place
        per_x = (self._xt * self._yy - self._yt * self._xy) / determinant
        per_y = (self._yt * self._xx - self._xt * self._xy) / determinant
        if per_y < 0:
            return alone
        return (per_x, per_y) if per_x >= 0 else (0.0, self._yt / self._yy)

    @property
    def sums(self) -> tuple[float, ...]:
        """All there is to remember: what the constructor takes."""
        return self._xx, self._xy, self._yy, self._xt, self._yt


def _amounts(start: int, stop: int) -> tuple[float, float]:
    """Tokens, and tokens times the thousands of tokens before them."""
    return float(stop - start), (stop * stop - start * start) / 2000.0


class DiskSpeed:
    """How long the disk takes to begin, and how many bytes it then gives per second."""

    def __init__(
        self, bytes_s: float | None = None, latency_s: float = 0.0, seen_s: float = 0.0
    ) -> None:
        self.bytes_s, self.latency_s, self.seen_s = bytes_s, latency_s, seen_s
        """``seen_s``: when that was last measured, in seconds of the clock on the wall."""

    def add(self, size_bytes: int, seconds: float, now_s: float) -> None:
        """``size_bytes`` were read in ``seconds``."""
        if size_bytes <= 0 or seconds <= 0:
            return
        self.seen_s = now_s
        if self.bytes_s is None:
            self.bytes_s = size_bytes / seconds
        elif size_bytes < LARGE_READ_BYTES:
            latency = max(0.0, seconds - size_bytes / self.bytes_s)
            self.latency_s += _SHARE_OF_NEW * (latency - self.latency_s)
        else:
            transfer_s = max(seconds - self.latency_s, seconds / 2)
            self.bytes_s = _followed(self.bytes_s, size_bytes / transfer_s)

    def seconds(self, size_bytes: int) -> float | None:
        """What reading ``size_bytes`` would take; None while nothing was read."""
        if not size_bytes:
            return 0.0
        return None if self.bytes_s is None else self.latency_s + size_bytes / self.bytes_s


def _followed(old: float, new: float) -> float:
    """``old``, a little nearer to ``new``; ``new`` itself where that is another world."""
    if not 0.5 <= new / old <= 2.0:
        return new
    return float(math.exp((1 - _SHARE_OF_NEW) * math.log(old) + _SHARE_OF_NEW * math.log(new)))


class Costs:
    """What one namespace's blocks cost to compute and to import."""

    def __init__(
        self, prefill: PrefillCost | None = None, import_block_s: float | None = None
    ) -> None:
        self.prefill = prefill or PrefillCost()
        self.import_block_s = import_block_s

    def note(self) -> dict[str, Any]:
        """What is remembered."""
        return {"prefill": self.prefill.sums, "import_block_s": self.import_block_s}


class Speeds:
    """All of them. Any thread; only ``save`` writes, so it is not for the engine's.

    ``recall`` and ``remember`` keep notes and may raise StoreError, which is logged. ``wall``: the
    clock on the wall, in seconds.
    """

    def __init__(
        self, recall: Recall, remember: Remember, wall: Callable[[], float] = time.time
    ) -> None:
        self._recall, self._remember, self._wall = recall, remember, wall
        self._lock = threading.Lock()
        self._costs: dict[bytes, Costs] = {}
        self._warm: set[bytes] = set()
        self._taken = Reading(0, 0.0, 0)
        self._saved: dict[str, float | None] = {}
        found = self._recalled(DISK_NOTE)
        self._disk = DiskSpeed(
            _positive(found.get("bytes_s")),
            _positive(found.get("latency_s")) or 0.0,
            _positive(found.get("seen_s")) or 0.0,
        )
        self._saved[DISK_NOTE] = self._disk.bytes_s

    # What was measured.

    def prefilled(self, namespace_id: bytes, start: int, stop: int, seconds: float) -> None:
        """One call computed whole blocks. A process's first is not counted: it finds the model's
        pages cold.
        """
        with self._lock:
            costs = self._costs_of(namespace_id)
            if namespace_id in self._warm:
                costs.prefill.add(start, stop, seconds)
            self._warm.add(namespace_id)

    def imported(self, namespace_id: bytes, blocks: int, seconds: float) -> None:
        """The engine took ``blocks`` blocks in ``seconds``, without waiting for them."""
        if not blocks or seconds <= 0:
            return
        with self._lock:
            costs = self._costs_of(namespace_id)
            old, new = costs.import_block_s, seconds / blocks
            costs.import_block_s = new if old is None else _followed(old, new)

    def read(self, reading: Reading) -> None:
        """The store's meter, whenever something was read."""
        with self._lock:
            new, self._taken = reading.since(self._taken), reading
            self._disk.add(new.done_bytes, new.busy_s, self._wall())

    def no_faster_than(self, bytes_s: float) -> None:
        """A read that is not over yet shows that much of the disk."""
        with self._lock:
            self._disk.seen_s = self._wall()
            self._disk.bytes_s = min(bytes_s, self._disk.bytes_s or bytes_s)

    def probed(self, bytes_s: float | None) -> None:
        """The disk was tried, by one reader: it can do better than that, but not worse. None: it
        could not be tried.
        """
        with self._lock:
            self._disk.seen_s = self._wall()
            if bytes_s is not None and bytes_s > (self._disk.bytes_s or 0.0):
                self._disk.bytes_s = bytes_s

    # What things would cost; None: nothing like it was measured yet.

    def prefill_s(self, namespace_id: bytes, start: int, stop: int) -> float | None:
        """Computing the tokens from position ``start`` to ``stop``."""
        with self._lock:
            return self._costs_of(namespace_id).prefill.seconds(start, stop)

    def read_s(self, size_bytes: int) -> float | None:
        """Reading from disk."""
        with self._lock:
            return self._disk.seconds(size_bytes)

    def import_s(self, namespace_id: bytes, blocks: int) -> float:
        """Importing; nothing while it was never measured, for it is quick everywhere."""
        with self._lock:
            return blocks * (self._costs_of(namespace_id).import_block_s or 0.0)

    def of(self, namespace_id: bytes) -> "Rates":
        """Those of one namespace."""
        return Rates(self, namespace_id)

    @property
    def disk_bytes_s(self) -> float | None:
        """The disk's speed."""
        return self._disk.bytes_s

    def disk_age_s(self) -> float:
        """How long ago the disk was last measured."""
        with self._lock:
            return abs(self._wall() - self._disk.seen_s)

    # Notes.

    def save(self, *, final: bool = False) -> None:
        """Note what has changed noticeably; ``final``: at all."""
        with self._lock:
            disk = self._disk
            notes: dict[str, tuple[float | None, dict[str, Any]]] = {
                DISK_NOTE: (
                    disk.bytes_s,
                    {"bytes_s": disk.bytes_s, "latency_s": disk.latency_s, "seen_s": disk.seen_s},
                )
            }
            for namespace_id, costs in self._costs.items():
                gauge = costs.prefill.seconds(0, HALF_LIFE_TOKENS)
                notes[_note_key(namespace_id)] = gauge, costs.note()
            due = {
                key: (gauge, json.dumps(note).encode())
                for key, (gauge, note) in notes.items()
                if gauge is not None and _has_changed(self._saved.get(key), gauge, final=final)
            }
        for key, (gauge, value) in due.items():
            try:
                self._remember(key, value)
            except StoreError as error:
                log.warning("the measured speeds were not noted: %s", error)
                return
            self._saved[key] = gauge

    def _costs_of(self, namespace_id: bytes) -> Costs:
        known = self._costs.get(namespace_id)
        if known is None:
            key = _note_key(namespace_id)
            found = self._recalled(key)
            known = Costs(_prefill(found.get("prefill")), _positive(found.get("import_block_s")))
            self._costs[namespace_id] = known
            self._saved[key] = known.prefill.seconds(0, HALF_LIFE_TOKENS)
        return known

    def _recalled(self, key: str) -> dict[str, Any]:
        """A note's fields; none if there is no note that makes sense."""
        try:
            found = json.loads(self._recall(key) or b"{}")
        except (StoreError, ValueError) as error:
            log.warning("the measured speeds are not known: %s", error)
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Rates:
    """What ``worth.choose`` asks of the speeds of one namespace."""

    speeds: Speeds
    namespace_id: bytes

    def prefill_s(self, start: int, stop: int) -> float | None:
        """Computing the tokens from position ``start`` to ``stop``."""
        return self.speeds.prefill_s(self.namespace_id, start, stop)

    def restore_s(self, blocks: int, disk_bytes: int) -> float | None:
        """Reading ``disk_bytes`` and importing ``blocks`` blocks."""
        read_s = self.speeds.read_s(disk_bytes)
        return None if read_s is None else read_s + self.speeds.import_s(self.namespace_id, blocks)


def _note_key(namespace_id: bytes) -> str:
    return f"speed:{namespace_id.hex()}"


def _positive(value: object) -> float | None:
    """A note's number; None if it is none that can be true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def _prefill(sums: object) -> PrefillCost | None:
    if not isinstance(sums, list) or len(sums) != 5:
        return None
    numbers = [_positive(each) or 0.0 for each in sums]
    return PrefillCost(tuple(numbers))


def _has_changed(saved: float | None, now: float, *, final: bool) -> bool:
    if saved is None or final:
        return saved != now
    return abs(now - saved) > _NOTICEABLE * saved

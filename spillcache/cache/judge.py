"""Restore or compute: ``worth``'s choices, by what was measured here."""

import logging
from collections.abc import Mapping, Sequence

from spillcache.cache.policy import prefixes
from spillcache.cache.probe import EVERY_S as PROBE_EVERY_S
from spillcache.cache.probe import Probe
from spillcache.cache.restore import RestoreStream
from spillcache.cache.speeds import Speeds
from spillcache.cache.worth import Verdict, bytes_s_of, choose, disk_bytes_of, gives_up
from spillcache.config import RestoreWhen
from spillcache.errors import StoreError
from spillcache.state import Geometry, Part
from spillcache.store.block_store import BlockStore, Entry

log = logging.getLogger("spillcache.cache")


class Judge:
    """Owns the speeds of one cache. Any thread; nothing here waits for the disk but ``has_read``
    and ``close``.
    """

    def __init__(self, when: RestoreWhen, geometry: Geometry, store: BlockStore | None) -> None:
        self._when, self._geometry, self._store = when, geometry, store
        self._probe = Probe()
        self.speeds = Speeds(self._recall, self._remember)

    def choose(
        self,
        namespace_id: bytes,
        ram: Sequence[set[Part]],
        found: Sequence[Mapping[Part, Entry]],
        live_tokens: int,
    ) -> Verdict:
        """How much of a prompt's blocks to restore. ``ram``, ``found``: for each block, the parts
        that lie in RAM, and those that the disk was found to have.
        """
        both = [parts | disk.keys() for parts, disk in zip(ram, found, strict=True)]
        on_disk = [
            {part: entry.stored_bytes for part, entry in disk.items() if part not in parts}
            for parts, disk in zip(ram, found, strict=True)
        ]
        verdict = choose(
            prefixes(both, self._geometry, len(both)),
            live_tokens,
            self._geometry.block_tokens,
            disk_bytes_of(on_disk, self._geometry),
            self.speeds.of(namespace_id) if self._when == "auto" else None,
        )
        if verdict.word in ("compute", "partial"):
            log.info("%s", verdict)
            # Whether a disk that was too slow still is, is found out beside the request.
            if verdict.disk_bytes and self.speeds.disk_age_s() >= PROBE_EVERY_S:
                self._probe.start(self._try_disk)
        return verdict

    def gives_up(
        self, namespace_id: bytes, stream: RestoreStream, usable_blocks: int, blocks: int
    ) -> bool:
        """Whether computing the rest is quicker than what ``stream`` still has to bring.

        ``usable_blocks``: of the prefix's ``blocks``, those that the engine could go on from now.
        """
        if self._when != "auto" or self._store is None or not stream.left_bytes:
            return False
        size = self._geometry.block_tokens
        compute_s = self.speeds.prefill_s(namespace_id, usable_blocks * size, blocks * size)
        pace = self._store.reading().since(stream.began)
        bytes_s = bytes_s_of(pace)
        if compute_s is None or bytes_s is None:
            return False
        # What was read and not yet taken is there, however long the engine is busy elsewhere.
        left_bytes = min(stream.left_bytes, max(0, stream.disk_bytes - pace.done_bytes))
        if not gives_up(left_bytes, bytes_s, compute_s):
            return False
        self.speeds.no_faster_than(bytes_s)
        return True

    def has_read(self) -> None:
        """A restore has read all that it is going to; on its reader's thread."""
        try:
            if self._store is not None:
                self.speeds.read(self._store.reading())
        except StoreError:  # closed meanwhile
            return
        self.speeds.save()

    def join(self, timeout_s: float) -> bool:
        """Wait for what is looked at; whether that has ended."""
        return self._probe.join(timeout_s)

    def close(self) -> None:
        """Note what was measured, before the store is closed."""
        if self._store is not None:
            self.speeds.save(final=True)

    def _try_disk(self) -> None:
        if self._store is not None:
            self.speeds.probed(self._store.read_speed())
            self.speeds.save()

    def _recall(self, key: str) -> bytes | None:
        return self._store.note(key) if self._store is not None else None

    def _remember(self, key: str, value: bytes) -> None:
        if self._store is not None:
            self._store.set_note(key, value)

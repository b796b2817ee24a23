"""The queue's head waits for a slot: what it needs from disk is read meanwhile.

No more than a restore's own read-ahead is held, and its match pinned, only for one request at a
time; both are given back when the request leaves the queue, however it does.
"""

from spillcache.chain import Chain
from spillcache.serve.job import Decision
from spillcache.serve.restorer import Restorer
from spillcache.serve.slots import Job, Restore


class ReadAhead:
    """The head's chain, and the restore that was begun for it, if any; engine's thread."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._restore: Restore | None = None

    def knows(self, job: Job | None) -> bool:
        """Whether ``job`` is the head that was last looked at."""
        return self._job is job

    def begin(self, job: Job, chain: Chain, live: int, restorer: Restorer) -> None:
        """``job`` is the head now: read what the tiers hold of ``chain`` beyond ``live`` tokens.

        RAM needs no reading, so a prefix that lies there is not held.
        """
        self.close()
        self._job = job
        restore, _ = restorer.begin(chain, live, ahead=True)
        if restore is not None and not restore.stream.reads_disk:
            restore.close()
            restore = None
        self._restore = restore

    def restore(
        self, job: Job, chain: Chain, live: int, restorer: Restorer | None
    ) -> tuple[Restore | None, Decision]:
        """``job`` got its slot: the restore that was begun for it, or another, or none if none is
        worth it; and the decision. ``live``: what the engine could go on from instead.
        """
        if not job.reuses:
            return None, "failed" if job.cold else "off"
        if restorer is None:
            return None, "live" if live else "off"
        ahead = self._taken(job)
        if ahead is not None:
            return restorer.take_up(ahead, chain, live)
        return restorer.begin(chain, live)

    def _taken(self, job: Job) -> Restore | None:
        if self._job is not job:
            return None
        restore, self._job, self._restore = self._restore, None, None
        return restore

    def close(self) -> None:
        """Give up what is held; may be called at any time."""
        if self._restore is not None:
            self._restore.close()
        self._job = self._restore = None

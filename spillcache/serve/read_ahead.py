"""The queue's head waits for a slot: what it needs from disk is read meanwhile.

No more than a restore's own read-ahead is held, and only for one request at a time; it is given
back when the request leaves the queue, however it does.
"""

from spillcache.chain import Chain
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
        restore = restorer.begin(chain, live)
        if restore is not None and not restore.stream.reads_disk:
            restore.close()
            restore = None
        self._restore = restore

    def take(self, job: Job) -> Restore | None:
        """``job`` got its slot: the restore that was begun for it, which is the caller's now."""
        if self._job is not job:
            return None
        restore, self._job, self._restore = self._restore, None, None
        return restore

    def close(self) -> None:
        """Give up what is held; may be called at any time."""
        if self._restore is not None:
            self._restore.close()
        self._job = self._restore = None

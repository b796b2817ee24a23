"""Requests that wait for a slot, in the order in which they came."""

import threading
from collections import deque

from spillcache.errors import Overloaded
from spillcache.metrics import Metrics
from spillcache.serve.slots import Job


class JobQueue:
    """Any thread; ``lock`` is the scheduler's."""

    def __init__(self, lock: threading.Condition, metrics: Metrics, limit: int) -> None:
        self._lock = lock
        self._metrics = metrics
        self._limit = limit
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> None:
        """Let a request wait; raises Overloaded."""
        with self._lock:
            if len(self._jobs) >= self._limit:
                raise Overloaded(f"{len(self._jobs)} requests are waiting; try again later")
            self._jobs.append(job)
            self._count()

    def put_back(self, job: Job) -> None:
        """Let a request that gave way be the next."""
        with self._lock:
            self._jobs.appendleft(job)
            self._count()

    @property
    def head(self) -> Job | None:
        """The request that is the next."""
        with self._lock:
            return self._jobs[0] if self._jobs else None

    def pop(self) -> Job | None:
        """Take the next one."""
        with self._lock:
            job = self._jobs.popleft() if self._jobs else None
            self._count()
        return job

    def pop_cancelled(self) -> list[Job]:
        """Take all whose clients have left."""
        with self._lock:
            gone = [job for job in self._jobs if job.ticket.cancelled]
            for job in gone:
                self._jobs.remove(job)
            self._count()
        return gone

    def _count(self) -> None:
        self._metrics.queued.set(len(self._jobs))

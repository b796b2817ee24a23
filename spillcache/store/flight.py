"""A group of records between its append and the transaction that names it."""

import contextlib
import threading
from collections.abc import Callable, Sequence

from spillcache.store.outgoing import Outgoing
from spillcache.store.put_job import Committed, PutJob
from spillcache.store.staging import Staging


class Flight:
    """See the module. Made, waited for and closed by the writer, under its lock; the commit may run
    on a thread of its own, so that the next group is appended meanwhile.
    """

    def __init__(
        self, job: PutJob, group: Sequence[Outgoing], segment: int, need_bytes: int
    ) -> None:
        """``need_bytes``: what was reserved for it in ``segment``."""
        self.job = job
        self.group = group
        self.segment = segment
        self.need_bytes = need_bytes
        self.end = 0
        """Where it ends in the segment."""
        self.staging: Staging | None = None
        self._thread: threading.Thread | None = None
        self._done: Committed | None = None
        self._error: BaseException | None = None

    def commit(self, work: Callable[["Flight"], Committed], *, aside: bool) -> None:
        """Have ``work`` name it: here and now, or ``aside``, on another thread. ``wait`` tells how
        it went.
        """

        def run() -> None:
            try:
                self._done = work(self)
            except BaseException as error:  # raised where it is waited for
                self._error = error

        if aside:
            thread = threading.Thread(target=run, name="spillcache-commit", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has no more threads
                thread.start()
                self._thread = thread
        if self._thread is None:
            run()

    def sync(self) -> None:
        """Return when its bytes are on the device; called by ``work``, perhaps again. Raises
        OSError.
        """
        if self.staging is not None:
            self.staging.finish()
            self._unstage()

    def wait(self) -> Committed:
        """What the commit did; raises what it raised."""
        self.close()
        if self._error is not None:
            raise self._error
        if self._done is None:
            raise RuntimeError("a group was waited for before its commit")
        return self._done

    def close(self) -> None:
        """Wait until neither thread nor device works on it; may be called twice."""
        if self._thread is not None:
            self._thread.join()
        self._unstage()

    def _unstage(self) -> None:
        staging, self.staging = self.staging, None
        if staging is not None:
            staging.close()

"""What a process takes from the machine, as Linux counts it."""

import resource
import threading
from pathlib import Path

_SAMPLE_S = 0.05


class ResidentSize:
    """Samples a process's resident size in a thread until ``stop``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.max_bytes = 0
        self._thread.start()

    def now_bytes(self) -> int:
        return resident_bytes(self._pid)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(_SAMPLE_S):
            try:
                self.max_bytes = max(self.max_bytes, self.now_bytes())
            except OSError:
                return


def resident_bytes(pid: int) -> int:
    """0 for a process that has just ended; OSError for one that is gone."""
    return 1024 * _status(pid, "VmRSS")


def anonymous_bytes(pid: int) -> int:
    """Of the resident size, what is no file: mapped models and indexes are not a process's own."""
    return 1024 * _status(pid, "RssAnon")


def threads(pid: int) -> int:
    return _status(pid, "Threads")


def descriptors(pid: int) -> int:
    """How many files, sockets and the like are open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def written_bytes() -> int:
    """What ended child processes of this one have written to filesystems, each page once."""
    return 512 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0

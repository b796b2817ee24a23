"""A real ``spillcache serve`` process under measurement, on a free loopback port."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from spillcache.cli.bench_client import BenchClient
from spillcache.errors import BenchError
from spillcache.own_child import module_command, own_environment

HOST = "127.0.0.1"
_READY_S = 600.0
_STOP_S = 60.0
_POLL_S = 0.05
_LAST_WORDS_BYTES = 2000


class BenchServer:
    """One server process. A context manager: ready on entry, gone on exit whatever happened."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        """``flags``: those of ``spillcache serve``, without host and port; ``log``: its stderr."""
        self._flags = list(flags)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.port = _free_port()
        try:
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 — ours
                    self._command(), env=own_environment(), stdout=log, stderr=log
                )
            self._wait_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def _command(self) -> list[str]:
        command = module_command("spillcache", "serve", *self._flags)
        return [*command, "--host", HOST, "--port", str(self.port)]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    @property
    def client(self) -> BenchClient:
        """A client of this server."""
        return BenchClient(HOST, self.port)

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        return self._running().pid

    def health(self) -> dict[str, Any]:
        """What ``/health`` says."""
        status, body = self.client.get("/health")
        if status != 200:
            raise BenchError(f"/health answered {status}: {body}")
        return dict(body)

    def stop(self) -> None:
        """SIGTERM, as service managers do; raises BenchError unless it exits with 0 in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the server did not stop within {_STOP_S:.0f} s") from error
        if code != 0:
            raise BenchError(f"the server stopped with code {code}: {self._last_words()}")

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is out; waits until it is gone."""
        self._running().kill()
        self._running().wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BenchError("the server was not started")
        return self._process

    def _wait_ready(self) -> None:
        """Until the model is loaded and, with ``--cache-disk``, the disk tier is on."""
        deadline = time.monotonic() + _READY_S
        process = self._running()
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise BenchError(
                    f"the server ended with code {process.returncode}: {self._last_words()}"
                )
            if self._is_ready():
                return
            time.sleep(_POLL_S)
        raise BenchError(f"the server was not ready within {_READY_S:.0f} s: {self._last_words()}")

    def _is_ready(self) -> bool:
        try:
            status, body = self.client.get("/health")
        except (OSError, ValueError):
            return False
        if status != 200:
            return False
        disk = body.get("cache", {}).get("disk", {})
        return "--cache-disk" not in self._flags or bool(disk.get("on"))

    def _last_words(self) -> str:
        text = self._log.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
        return " / ".join(line for line in text.splitlines()[-5:] if line.strip()) or "no output"

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block SIGTERM unwinds as SIGINT does, so that no server and no file is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, and the end is quick
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def drop_page_cache(directory: Path) -> int:
    """Ask the kernel to forget the cached pages of all files below ``directory``; the files' count.

    Nobody must have them mapped. Works without privileges; where the platform has no fadvise, 0.
    """
    if not hasattr(os, "posix_fadvise"):
        return 0
    count = 0
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)  # dirty pages would stay
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
            count += 1
    return count


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])

"""``spillcache serve``: a listening socket, the service behind it, and an orderly end.

The socket is bound before the model loads, so that a port in use is told at once; requests get 503
until it is loaded. The first SIGTERM or SIGINT drains, saves and exits 0; a second exits at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from spillcache.config import Settings, TlsFiles
from spillcache.errors import ConfigError, NotReady
from spillcache.serve.app import create_app
from spillcache.serve.door import Door
from spillcache.serve.guards import HEADER_BYTES_MAX
from spillcache.serve.http_protocol import timed_protocol
from spillcache.serve.listen_socket import BACKLOG, bind_socket, socket_url
from spillcache.serve.service import Service
from spillcache.serve.start_report import log_start
from spillcache.serve.text_thread import leave_text_threads, text_threads_at_work

log = logging.getLogger("spillcache.serve")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_S = 0.02
_CLOSE_S = 2.0
"""How long clients may take to read the rest of their answers once everything else is done."""


def run_server(
    settings: Settings,
    *,
    on_ready: Callable[[str], None] | None = None,
    make_service: Callable[[Settings], Door] = Service,
) -> int:
    """Serve until a signal comes; returns the exit code.

    0 after an orderly end, 1 when the model could not be loaded (the log's last line says why).
    ``on_ready`` is called with the server's URL once it answers. Raises ConfigError when the
    address can't be used. Call it on the main thread: signals arrive nowhere else.
    """
    if settings.serve.tls is not None:
        _check_tls(settings.serve.tls)
    sock = bind_socket(settings.serve)
    with contextlib.closing(sock):
        run = _Run(make_service(settings), sock, on_ready)
        with run.signals_handled():
            return _leave(asyncio.run(run.serve()))


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: ``_Run`` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Run:
    """One run of the server. All on the main thread; ``stop`` of the service in a worker thread."""

    def __init__(
        self, service: Door, sock: socket.socket, on_ready: Callable[[str], None] | None
    ) -> None:
        self._service = service
        self._socket = sock
        self._on_ready = on_ready
        self._url = socket_url(sock, tls=service.settings.serve.tls is not None)
        self._signalled = False
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def signals_handled(self) -> Iterator[None]:
        """Route the signals here; put back what was there afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._signalled:
            # At once, whatever hangs: no clean-up, no thread is waited for.
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(2, f"{now} spillcache: stopped at once\n".encode())
            os._exit(128 + number)
        self._signalled = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self) -> int:
        """Load, serve, stop; returns the exit code."""
        self._loop = asyncio.get_running_loop()
        if self._signalled:
            return 0
        server = _QuietServer(_uvicorn_config(self._service))
        log.info("loading %s", self._service.settings.engine.model.name)
        self._service.start()
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        # It ends before it is told to only by an error, which ``_end`` then raises.
        serving.add_done_callback(lambda _: self._stop.set())
        failure = None
        try:
            if await self._loaded():
                await self._tell_ready()
                await self._stop.wait()
            failure = self._service.failure
        finally:
            server.should_exit = True
            await asyncio.to_thread(self._service.stop, log.info)
            leave_text_threads()
            await _end(server, serving)
        if failure is None:
            log.info("stopped")
            return 0
        log.error("%s", failure)
        return 1

    async def _loaded(self) -> bool:
        """Wait for the model; False when a signal came first, or it failed."""
        while self._service.state == "loading" and not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _POLL_S)
        return self._service.state == "ready" and not self._stop.is_set()

    async def _tell_ready(self) -> None:
        with contextlib.suppress(NotReady):  # it has just failed; the end says why
            await asyncio.to_thread(log_start, self._service)
        log.info("listening on %s", self._url)
        if self._on_ready is not None:
            self._on_ready(self._url)


def _leave(code: int) -> int:
    """The exit code; where a thread is still within the tokeniser, the process ends here.

    Python's own end would run llama.cpp's destructors under that thread's feet. All is saved and
    closed, but for the model in memory.
    """
    if text_threads_at_work():
        logging.shutdown()
        os._exit(code)
    return code


def _check_tls(files: TlsFiles) -> None:
    """Raise ConfigError for files that HTTPS can't be spoken with, rather than fail later."""

    def no_password() -> str:
        raise ConfigError(
            f"--ssl-key-file: {files.key} is encrypted; decrypt it with: openssl pkey -in FILE"
        )

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key, no_password)
    except (ssl.SSLError, OSError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"--ssl-key-file, --ssl-cert-file: {files.key} and {files.certificate} are no key and "
            f"its certificate in PEM ({why})"
        ) from error


def _uvicorn_config(service: Door) -> uvicorn.Config:
    serve = service.settings.serve
    return uvicorn.Config(
        create_app(service),
        loop="asyncio",
        http=timed_protocol(serve.timeout_s),
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        ssl_keyfile=None if serve.tls is None else serve.tls.key,
        ssl_certfile=None if serve.tls is None else serve.tls.certificate,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
    )


async def _end(server: _QuietServer, serving: asyncio.Task[None]) -> None:
    """Let uvicorn close its connections; a client that does not read is cut, and a request that
    still works on text, or waits for a grammar's trial, is left behind.
    """
    done, _ = await asyncio.wait([serving], timeout=_CLOSE_S)
    if not done:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait([serving], timeout=_CLOSE_S)
        server.force_exit = True
    await serving

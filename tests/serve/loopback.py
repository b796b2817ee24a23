"""An application on a real loopback socket, in a thread."""

import asyncio
import contextlib
import threading

import uvicorn

from spillcache.config import ServeConfig
from spillcache.serve.listen_socket import bind_socket


@contextlib.contextmanager
def served(app):
    """The URL under which ``app`` answers within the block."""
    sock = bind_socket(ServeConfig(port=0))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        sock.close()
        assert not thread.is_alive()

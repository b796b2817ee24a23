import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from care_tools import BLUE, RECORD, RED, config, put
from certificate import written

from spillcache.cli import server_counters
from spillcache.metrics import Metrics
from spillcache.store.block_store import BlockStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Server:
    """Answers as a server of ours would: what ``health`` says, and real metrics."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.health: dict[str, Any] = {"status": "ok", "cache": {"disk": {"on": True}}}
        self.code = 200
        self.key = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_health = self.path == "/health"
                body = json.dumps(outer.health).encode() if is_health else outer.metrics.render()
                key = self.headers.get("Authorization", "").removeprefix("Bearer ")
                is_open = is_health or key == outer.key
                self.send_response(outer.code if is_health else 200 if is_open else 401)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.thread.join()
    running.http.server_close()


def test_json_has_all_of_it(cli: Any, directory: Path) -> None:
    with BlockStore.open(config(directory, min_free_bytes=5, max_age_s=864000.0)) as store:
        put(store, RED, 3)
        put(store, BLUE, 1)
        store.invalidate(BLUE.id, "x")
        report = json.loads(cli("status", str(directory), "--json").out)
        assert report["writers"] == [os.getpid()]
    assert report["path"] == str(directory)
    assert report["store_id"] == store.store_id.hex()
    assert report["quota_bytes"] == 1 << 30
    assert 0 < report["used_bytes"] < 10 << 20
    assert report["free_bytes"] > 0
    assert (report["min_free_bytes"], report["max_age_s"]) == (5, 864000.0)
    assert (report["objects"], report["segments"]) == (4, 1)
    assert (report["namespaces"], report["hidden_namespaces"]) == (2, 1)
    assert report["raw_bytes"] == report["stored_bytes"] == 4000
    assert report["quarantined"] == 0
    assert "server" not in report


def test_people_get_sentences(cli: Any, directory: Path) -> None:
    with BlockStore.open(config(directory, max_age_s=864000.0)) as store:
        put(store, RED, 3)
        store.invalidate(RED.id, "x")
        out = cli("status", str(directory)).out
        assert f"written by process {os.getpid()}\n" in out
    (directory / "quarantine" / RECORD).write_bytes(b"x")
    out = cli("status", str(directory)).out
    assert re.search(r": \d\.\d MiB of 1\.0 GiB \(\d%\)\n", out) or "KiB of 1.0 GiB (0%)" in out
    assert "holds: 3 objects in 1 namespace (1 hidden), 1 segment, 2.9 KiB for 2.9 KiB" in out
    assert "what is not used for 10 days goes\n" in out
    assert "quarantine: 1 damaged record" in out
    assert "no process that runs now has written to it\n" in out


def test_a_server_is_asked(cli: Any, directory: Path, server: Server) -> None:
    BlockStore.open(config(directory)).close()
    out = cli("status", str(directory), "--url", server.url).out
    assert (
        f"{server.url}: ok; disk tier on\nno prompt was answered yet\n"
        "to disk: 0 blocks (0 B), 0 are only in RAM so far\n"
    ) in out
    for source, count in (("live", 10), ("ram", 20), ("disk", 1000), ("computed", 970)):
        server.metrics.prompt_tokens.labels(source).inc(count)
    server.metrics.restored_bytes.labels("disk").inc(12345678)
    server.metrics.spilled_bytes.inc(77)
    server.metrics.spilled_blocks.inc(6)
    server.metrics.unsaved_blocks.set(3)
    server.metrics.restored_tokens.labels("disk").inc(1064)
    server.health["cache"]["disk"] = {"on": False, "reason": "it failed"}
    words = ("status", str(directory), "--url", f"{server.url}/")
    out = cli(*words).out
    assert "disk tier off: it failed\n" in out
    assert "prompt tokens: 10 live, 20 ram, 1,000 disk, 970 computed; 51.5% reused\n" in out
    assert "restored tokens: 0 ram, 1,064 disk\n" in out
    assert "to disk: 6 blocks (77 B), 3 are only in RAM so far\n" in out
    server.metrics.refused_tokens.labels("disk", "KV_SNAPSHOT_CORRUPT").inc(64)
    server.metrics.dropped_blocks.labels("disk", "short").inc(4)
    server.metrics.dropped_blocks.labels("ram", "full").inc(2)
    server.metrics.condemned_blocks.inc(9)
    out = cli(*words).out
    assert "1,064 disk; refused: 64 disk KV_SNAPSHOT_CORRUPT\n" in out
    assert "3 are only in RAM so far; dropped: 2 ram full, 4 disk short\n" in out
    assert "failed in use and deleted: 9 blocks\n" in out
    report = json.loads(cli(*words, "--json").out)["server"]
    assert report["hit_ratio"] == 0.515
    assert report["restored_bytes_disk"] == 12345678
    assert report["spilled_bytes"] == 77
    assert report["restored_tokens"] == {"ram": 0, "disk": 1064}
    assert report["refused_tokens"] == {"ram": {}, "disk": {"KV_SNAPSHOT_CORRUPT": 64}}
    assert report["dropped_blocks"] == {"ram": {"full": 2}, "disk": {"short": 4}}
    assert (report["spilled_blocks"], report["unsaved_blocks"]) == (6, 3)
    assert report["condemned_blocks"] == 9
    server.code, server.health = 503, {"error": {"message": "Loading model"}}
    assert "Loading model; disk tier off: not said" in cli(*words).out


def test_a_servers_write_limit_is_said(cli: Any, directory: Path, server: Server) -> None:
    BlockStore.open(config(directory)).close()
    words = ("status", str(directory), "--url", server.url)
    limit = {"bytes_day": 2 << 30, "written_bytes": 1 << 30, "reached": False}
    server.health["cache"]["disk"] = {"on": True, "write_limit": limit}
    assert "written within a day: 1.0 GiB of 2.0 GiB\n" in cli(*words).out
    limit["reached"] = True
    assert "of 2.0 GiB; nothing more is written for now\n" in cli(*words).out


def test_a_server_with_a_key(cli: Any, directory: Path, server: Server) -> None:
    BlockStore.open(config(directory)).close()
    server.key = "secret"
    server.metrics.prompt_tokens.labels("disk").inc(5)
    ended = cli("status", str(directory), "--url", server.url)
    assert ended.code == 2
    assert "give it with --api-key" in ended.err
    words = ("--url", server.url, "--api-key", "secret")
    assert "5 disk" in cli("status", str(directory), *words).out


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("localhost:1", 2, "is not a URL"),
        ("ftp://x", 2, "is not a URL"),
        ("http://127.0.0.1:0", 2, "is not a URL"),
        ("http://127.0.0.1:1", 1, "nothing listens at http://127.0.0.1:1 (connection refused)"),
    ],
)
def test_what_is_no_server(cli: Any, directory: Path, url: str, code: int, says: str) -> None:
    BlockStore.open(config(directory)).close()
    ended = cli("status", str(directory), "--url", url)
    assert ended.code == code
    assert ended.err.startswith("spillcache: error: --url: ")
    assert says in ended.err


def test_a_server_that_dawdles(cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BlockStore.open(config(directory)).close()
    monkeypatch.setattr(server_counters, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = cli(
            "status", str(directory), "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
    assert (ended.code, "does not answer within 0.05 s" in ended.err) == (1, True)


def test_a_certificate_of_ones_own(cli: Any, directory: Path, server: Server) -> None:
    BlockStore.open(config(directory)).close()
    files = written(directory.parent)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    words = ("status", str(directory), "--url", f"https://localhost:{server.http.server_port}")
    ended = cli(*words)
    assert ended.code == 1
    assert "is not trusted (self-signed certificate); if it is your own, give it with" in ended.err
    assert cli(*words, "--cacert", str(files.certificate)).code == 0
    ended = cli(*words, "--cacert", str(directory / "none"))
    assert (ended.code, "--cacert: " in ended.err) == (2, True)
    ended = cli(*words, "--cacert", str(directory / "spillcache.json"))
    assert (ended.code, "holds no certificate in PEM" in ended.err) == (2, True)


def test_an_answer_that_is_not_ours(cli: Any, directory: Path, server: Server) -> None:
    BlockStore.open(config(directory)).close()
    server.metrics.render = lambda: b"\xff\xfe"  # type: ignore[method-assign]
    assert cli("status", str(directory), "--url", server.url).code == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:bad/", "http://a b", "http://[", "ftp://x"])
def test_a_url_that_is_none(cli: Any, directory: Path, url: str) -> None:
    BlockStore.open(config(directory)).close()
    ended = cli("status", str(directory), "--url", url)
    assert ended.code == 2
    assert ended.err.startswith(f"spillcache: error: --url: {url}") or repr(url) in ended.err

"""The server as a process: ready, loading, failing, stopping, and stopping at once."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fake_service import wait_until
from server_script import make_service, settings

from spillcache.config import ServeConfig
from spillcache.errors import ConfigError
from spillcache.serve import server as server_module
from spillcache.serve.listen_socket import bind_socket
from spillcache.serve.server import run_server
from spillcache.serve.server_log import log_to_stderr

SCRIPT = Path(__file__).with_name("server_script.py")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d spillcache: (.*)")
STREAM = {"messages": [{"role": "user", "content": "hello"}], "stream": True}


def said(err):
    """The lines of log without date and name; every line must have them."""
    return [LINE.fullmatch(line)[1] for line in err.splitlines()]


def next_said(process):
    return said(process.stderr.readline())[0]


@pytest.fixture(autouse=True)
def _logs():
    with log_to_stderr("info"):
        yield


class Visitor(threading.Thread):
    """Does something with a ready server from another thread, then signals this process."""

    def __init__(self, visit=lambda url: None, number=signal.SIGTERM):
        super().__init__(daemon=True)
        self.visit, self.number, self.url, self.result = visit, number, "", None

    def __call__(self, url):
        self.url = url
        self.start()

    def run(self):
        try:
            self.result = self.visit(self.url)
        finally:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_it_in_order(capfd, number):
    before = signal.getsignal(number)
    visitor = Visitor(lambda url: httpx.get(f"{url}/health"), number)
    assert run_server(settings(), on_ready=visitor, make_service=make_service("quick")) == 0
    assert signal.getsignal(number) == before
    visitor.join(5)
    assert visitor.result.status_code == 200
    assert "server" not in visitor.result.headers
    assert said(capfd.readouterr().err) == [
        "loading tiny-fake.gguf",
        "a fake (1000 B): context 4,096 tokens, 2 slots; no disk cache; no self-test",
        "warning: the model has no chat template; the built-in chatml is used, and answers to "
        "chats may be poor (--chat-template names another)",
        f"listening on {visitor.url}",
        "saving 1 of 2",
        "saving 2 of 2",
        "stopped",
    ]


def test_a_running_stream_ends_properly(capfd):
    service = make_service("quick", hold_at=2)(settings())
    lines = []

    def read(url):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=STREAM) as response:
            lines.extend(response.iter_lines())

    def visit(url):
        reader = threading.Thread(target=read, args=(url,))
        reader.start()
        assert wait_until(lambda: len(lines) >= 4)  # the head and the first piece
        return reader

    visitor = Visitor(visit)
    assert run_server(settings(), on_ready=visitor, make_service=lambda _: service) == 0
    visitor.result.join(5)
    assert lines[-2:] == ["data: [DONE]", ""]
    capfd.readouterr()


def test_a_client_that_does_not_read_is_cut(monkeypatch, capfd):
    monkeypatch.setattr(server_module, "_CLOSE_S", 0.3)
    service = make_service("quick", texts=["x" * 1_000_000] * 50)(settings())
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def visit(url):
        host, port = url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        body = b'{"prompt": "x", "stream": true}'
        head = b"POST /completions HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert wait_until(lambda: service.requests)

    start = time.monotonic()
    assert run_server(settings(), on_ready=Visitor(visit), make_service=lambda _: service) == 0
    assert time.monotonic() - start < 5
    client.close()
    capfd.readouterr()


def test_work_on_a_text_that_takes_long_is_left_behind(monkeypatch, capfd):
    monkeypatch.setattr(server_module, "_CLOSE_S", 0.3)
    ended: list[int] = []
    monkeypatch.setattr(server_module.os, "_exit", ended.append)
    service = make_service("quick")(settings())
    began, go = threading.Event(), threading.Event()

    def tokenize(*_, **__):
        began.set()
        assert go.wait(30)
        return [1]

    def visit(url):
        monkeypatch.setattr(service.engine, "tokenize", tokenize)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/completions", json={"prompt": "x"}, timeout=0.2)
        assert began.wait(5)

    start = time.monotonic()
    assert run_server(settings(), on_ready=Visitor(visit), make_service=lambda _: service) == 0
    assert time.monotonic() - start < 10
    assert ended == [0], "at once, for the thread is still in there"
    go.set()
    assert said(capfd.readouterr().err)[-1] == "stopped"


def test_a_model_that_can_not_be_loaded(capfd):
    assert run_server(settings(), make_service=make_service("failing")) == 1
    lines = said(capfd.readouterr().err)
    assert lines == ["loading tiny-fake.gguf", *lines[1:-1], "error: no such file: model.gguf"]
    assert not any("listening" in line for line in lines)


def test_while_loading_it_answers_503_and_stops_on_a_signal(capfd):
    port = _free_port()
    url = f"http://127.0.0.1:{port}"

    def visit(_):
        wait_until(lambda: _status(f"{url}/health") == 503)
        response = httpx.get(f"{url}/health")
        asked = httpx.post(f"{url}/v1/chat/completions", json=STREAM)
        return response, asked

    visitor = Visitor(visit)
    visitor.start()
    assert run_server(settings(port), make_service=make_service("loading")) == 0
    visitor.join(5)
    response, asked = visitor.result
    assert response.json()["error"]["message"] == "Loading model"
    assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
    assert "listening" not in capfd.readouterr().err


def test_a_signal_before_anything_has_begun():
    service = make_service("quick")(settings())
    with bind_socket(ServeConfig(port=0)) as sock:
        run = server_module._Run(service, sock, None)
        with run.signals_handled():
            os.kill(os.getpid(), signal.SIGTERM)
            assert asyncio.run(run.serve()) == 0
    assert service.state == "loading"


def test_off_the_main_thread_it_runs_without_signals(capfd):
    codes = []
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(
        target=lambda: codes.append(run_server(settings(), make_service=make_service("failing")))
    )
    thread.start()
    thread.join(10)
    assert codes == [1]
    assert signal.getsignal(signal.SIGTERM) == before
    capfd.readouterr()


def test_a_port_in_use():
    with bind_socket(ServeConfig(port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            run_server(settings(port), make_service=make_service("quick"))


def test_an_error_of_the_http_server_is_raised(monkeypatch, capfd):
    async def broken(self, sockets):
        raise RuntimeError("no server today")

    monkeypatch.setattr(server_module._QuietServer, "serve", broken)
    with pytest.raises(RuntimeError, match="no server today"):
        run_server(settings(), make_service=make_service("quick"))
    capfd.readouterr()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(number):
    port = _free_port()
    command = [sys.executable, str(SCRIPT), "stubborn", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert next_said(process) == "loading tiny-fake.gguf"
            while (line := next_said(process)) != f"listening on http://127.0.0.1:{port}":
                assert "listening" not in line
            process.send_signal(number)
            assert next_said(process) == "saving 1 of 2"
            process.send_signal(number)
            start = time.monotonic()
            assert process.wait(10) == 128 + number
            assert time.monotonic() - start < 2
            assert said(process.stderr.read()) == ["stopped at once"]
        finally:
            process.kill()


def test_a_process_exits_0_on_sigterm():
    command = [sys.executable, str(SCRIPT), "quick", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not next_said(process).startswith("listening on http://127.0.0.1:"):
                continue
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert process.stderr.read().endswith(" spillcache: stopped\n")
        finally:
            process.kill()


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/tokenize"])
def test_it_ends_although_the_tokeniser_does_not_come_back(path):
    command = [sys.executable, str(SCRIPT), "stuck", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "listening on" not in (line := process.stderr.readline()):
                assert line
            url = line.split()[-1]
            asked = {"prompt": "long", "content": "long"}
            with ThreadPoolExecutor() as pool:
                answer = pool.submit(httpx.post, url + path, json=asked, timeout=60)
                assert process.stderr.readline() == "tokenising\n"
                process.send_signal(signal.SIGTERM)
                assert answer.result(60).status_code == 503
                assert answer.result().json()["error"]["message"].startswith("the server is stop")
            assert process.wait(60) == 0
            assert said(process.stderr.read()) == ["saving 1 of 2", "saving 2 of 2", "stopped"]
        finally:
            process.kill()


def _free_port():
    with bind_socket(ServeConfig(port=0)) as sock:
        return sock.getsockname()[1]


def _status(url):
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None

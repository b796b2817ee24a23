"""The real server on a tiny model, as users run it: a process, OpenAI's client, and restarts."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time

import openai
import pytest
from fake_service import wait_until
from server_process import Server

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 24}]
GREEDY = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
ENDLESS = {"messages": HELLO, "stream": True, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server(gguf_model, tmp_path_factory):
    running = Server(gguf_model("llama"), tmp_path_factory.mktemp("log") / "stderr", "-np", "2")
    yield running
    running.kill()


@contextlib.contextmanager
def running(*arguments):
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.kill()


def test_chat_and_its_stream_say_the_same(server):
    whole = server.ai.chat.completions.create(model="x", messages=HELLO, **GREEDY)
    chunks = list(
        server.ai.chat.completions.create(
            model="x",
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 12
    assert whole.usage.prompt_tokens == chunks[-1].usage.prompt_tokens
    timings = chunks[-1].timings
    assert timings["cache_n"] + timings["prompt_n"] == whole.usage.prompt_tokens
    assert timings["predicted_ms"] > 0


def test_completions_by_text_and_by_tokens(server):
    text = "Once-upon-a-time"  # the tiny vocabulary has no spaces
    ids = server.http.post("/tokenize", json={"content": text, "add_special": True}).json()
    by_text = server.ai.completions.create(model="x", prompt=text, **GREEDY)
    by_ids = server.ai.completions.create(model="x", prompt=ids["tokens"], **GREEDY)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids["tokens"])
    tokens = ids["tokens"][1:]
    assert server.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}


def test_a_prompt_asked_again_is_reused(server):
    first = server.ai.chat.completions.create(model="x", messages=LONG, **GREEDY)
    again = server.ai.chat.completions.create(model="x", messages=LONG, **GREEDY)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 64
    assert again.timings["cache"]["live"] == again.timings["cache_n"]


def test_a_stop_string_is_not_part_of_the_answer(server):
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    full = server.http.post("/completions", json=body).json()["choices"][0]["text"]
    stop = full[3:6]
    cut = server.http.post("/completions", json={**body, "stop": [stop]}).json()["choices"][0]
    assert cut["text"] == full[: full.index(stop)]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(server, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        server.ai.completions.create(model="x", prompt="x" * 5000, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"


def test_bad_requests_leave_the_server_as_it_was(server):
    for body in (
        b"{",
        b'{"messages": []}',
        b'{"messages": [{"role": "narrator", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "5"}',
    ):
        response = server.http.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert server.http.post("/v1/completions", json={"prompt": ""}).status_code == 400
    assert server.http.get("/health").json()["status"] == "ok"


def test_a_client_that_leaves_frees_its_slot(server):
    with server.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.metric("spillcache_requests_active") == 1
        lines.close()
    assert wait_until(lambda: server.metric("spillcache_requests_active") == 0)


def test_two_at_once(server):
    answers = {}

    def ask(text):
        messages = [{"role": "user", "content": text}]
        answers[text] = server.ai.chat.completions.create(model="x", messages=messages, **GREEDY)

    threads = [threading.Thread(target=ask, args=(f"question {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [a.usage.completion_tokens for a in answers.values()] == [12] * 4


def test_a_restart_answers_from_disk(gguf_model, tmp_path):
    flags = ("--cache-disk", str(tmp_path / "cache"), "--cache-disk-min-free", "0")
    arguments = (gguf_model("llama"), tmp_path / "stderr", *flags)

    def ask(server):
        answer = server.ai.chat.completions.create(model="x", messages=LONG, **GREEDY)
        return answer.choices[0].message.content, answer.usage, answer.timings

    with running(*arguments) as server:
        cold_text, cold_usage, _ = ask(server)
        assert cold_usage.prompt_tokens_details.cached_tokens == 0
        assert server.stop() == 0
    with running(*arguments) as server:
        text, usage, timings = ask(server)
        assert server.http.get("/health").json()["cache"]["disk"]["on"] is True
        assert server.stop() == 0
        log = server.log.read_text()
        assert f"disk cache {tmp_path / 'cache'}, " in log
        assert re.search(r"answered: [\d,]+ prompt tokens \([\d,]+ disk, \d+ computed\)", log)
        assert log.endswith(" spillcache: stopped\n")
        assert "quick brown" not in log
    assert text == cold_text
    assert usage.prompt_tokens == cold_usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 64
    assert timings["cache"]["disk"] == timings["cache_n"]
    assert timings["restored_bytes"] > 0


def test_what_was_flushed_outlives_a_kill(gguf_model, tmp_path):
    flags = ("--cache-disk", str(tmp_path / "cache"), "--cache-disk-min-free", "0")
    arguments = (gguf_model("llama"), tmp_path / "stderr", *flags, "--cache-restore", "always")
    with running(*arguments) as server:
        cold = server.ai.chat.completions.create(model="x", messages=LONG, **GREEDY)
        flushed = server.http.post("/cache/flush").json()
        assert flushed["durable"]
        assert flushed["blocks"] >= cold.usage.prompt_tokens // 64
        assert server.metric("spillcache_unsaved_blocks") == 0
        assert server.metric("spillcache_disk_up") == 1
        server.kill()
    with running(*arguments) as server:
        warm = server.ai.chat.completions.create(model="x", messages=LONG, **GREEDY)
        assert warm.timings["cache"]["disk"] >= warm.usage.prompt_tokens - 64
        assert warm.timings["restored"]["disk"] >= warm.timings["cache"]["disk"]
        assert warm.choices[0].message.content == cold.choices[0].message.content


def test_sigterm_within_a_stream(gguf_model, tmp_path):
    """The answer goes on within the drain time; then it is cut, by an error and not by a reset."""
    with running(gguf_model("llama", n_ctx=1 << 20), tmp_path / "stderr", "-c", "65536") as server:
        with server.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            rest = [line for line in lines if line]
        assert time.monotonic() - start < 15
        assert rest[-1] == "data: [DONE]" or "SERVER_NOT_READY" in rest[-1]
        assert server.process.wait(30) == 0


@pytest.mark.parametrize("content", [None, b"this is not a model"])
def test_a_model_that_is_none(tmp_path, content):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "spillcache", "serve", "-m", str(path), "--port", "0"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("spillcache: error: ")


def test_what_requests_say_of_the_cache_holds_across_a_restart(gguf_model, tmp_path):
    """Nothing of ``cache_store: false`` and ``cache_prompt: false``, nor of a prompt under
    ``--cache-min-tokens``.
    """
    asked = {
        "kept": (300, {}),
        "not stored": (300, {"cache_store": False}),
        "not cached": (300, {"cache_prompt": False}),
        "short": (127, {}),
        "just long enough": (129, {}),
    }
    bodies = {
        name: {"prompt": [2, 100 + i, *range(10, tokens + 8)], "max_tokens": 1, "temperature": 0}
        for i, (name, (tokens, _)) in enumerate(asked.items())
    }

    def found(server, name, **extra):
        timings = server.http.post("/v1/completions", json=bodies[name] | extra).json()["timings"]
        return timings["cache"], timings["cache_decision"]

    arguments = (gguf_model("llama"), tmp_path / "log", "--cache-disk", str(tmp_path / "d"))
    with running(*arguments) as server:
        for name, (_, extra) in asked.items():
            assert found(server, name, **extra)[0] == {"live": 0, "ram": 0, "disk": 0}
        assert server.stop() == 0
    with running(*arguments) as server:
        off = found(server, "kept", cache_prompt=False)
        assert off == ({"live": 0, "ram": 0, "disk": 0}, "off")
    with running(*arguments) as server:
        disk = {name: found(server, name, cache_store=False)[0]["disk"] for name in asked}
    assert disk == {
        "kept": 256, "not stored": 0, "not cached": 0, "short": 0, "just long enough": 128,
    }  # fmt: skip

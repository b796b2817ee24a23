"""The doctor's look at the engine: its library, a model's self-test, and a restart for real."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_server import BenchServer
from spillcache.cli.doctor_report import Finding
from spillcache.cli.doctor_speed import workplace
from spillcache.config import EngineConfig
from spillcache.errors import SpillcacheError

_CONTEXT_TOKENS = 8192
_PROMPT_TOKENS = 640
_ANSWER_TOKENS = 16


def look_at_library() -> Iterator[Finding]:
    """The llama.cpp library, and what it computes with."""
    from spillcache.engine.llama_library import library  # noqa: PLC0415 — an extra

    try:
        found = library()
    except SpillcacheError as error:
        yield Finding("engine", "bad", str(error), "pip install 'spillcache[llama]'")
        return
    yield Finding("engine", "ok", f"llama-cpp-python {found.version}: {found.devices}")
    listed = "; ".join(map(str, found.backends)) or "this library does not list them"
    yield Finding("backends", "ok", listed)
    if found.api.llama_supports_gpu_offload():
        yield Finding("GPU", "ok", "the library can use one; offload layers with -ngl")
    else:
        yield Finding("GPU", "ok", "the library was built without; it computes on the CPU")


def look_at_model(model: Path) -> Iterator[Finding]:
    """Whether state that this engine gives out can be given back, on this very model."""
    from spillcache.engine.llama_engine import LlamaEngine  # noqa: PLC0415 — an extra

    try:
        config = EngineConfig(model=model, context_tokens=_CONTEXT_TOKENS)
        with closing(LlamaEngine(config)) as engine:
            parts = ", ".join(part.name.lower() for part in sorted(engine.geometry.parts))
            window = engine.geometry.window_blocks
            verdict = engine.self_test()
    except SpillcacheError as error:
        yield Finding("model", "bad", str(error), "give a model that this library loads")
        return
    text = f"{model.name}: state has {parts}" + (f", windows of {window} blocks" if window else "")
    yield Finding("model", "ok", text)
    if verdict.passed:
        yield Finding("self-test", "ok", verdict.detail)
    else:
        todo = "no prompt of this model is cached with this library; try another version of it"
        yield Finding("self-test", "bad", verdict.detail, todo)


def look_at_restart(path: Path, model: Path, serve_flags: list[str]) -> Iterator[Finding]:
    """A real server saves a prompt, stops, starts again, and must find it on disk."""
    with workplace(path) as work:
        flags = ["--model", str(model), "--cache-disk", str(work / "cache")]
        flags += ["--cache-disk-size", "1GiB", "--cache-disk-min-free", "0"]
        flags += ["--cache-namespace", f"doctor-{uuid.uuid4()}", "--cache-restore", "always"]
        flags += ["--ctx-size", str(_PROMPT_TOKENS + 512), *serve_flags]
        try:
            yield _restart(flags, work / "server.log")
        except SpillcacheError as error:
            yield Finding("restart", "bad", str(error), "read the server's last words above")


def _restart(flags: list[str], log: Path) -> Finding:
    with BenchServer(flags, log) as server:
        prompt = PromptMaker(server.client.tokenize).prompt(_PROMPT_TOKENS)
        cold = server.client.complete(prompt, _ANSWER_TOKENS)
        server.stop()
    with BenchServer(flags, log) as server:
        warm = server.client.complete(prompt, _ANSWER_TOKENS)
        server.stop()
    text = (
        f"{warm.cached_tokens} of {_PROMPT_TOKENS} tokens came from disk; first token after "
        f"{cold.ttft_ms:.0f} ms cold, {warm.ttft_ms:.0f} ms after a restart"
    )
    if not warm.cached_tokens:
        return Finding("restart", "bad", text, "see the server's log with --log-level debug")
    if (warm.tokens, warm.text) != (cold.tokens, cold.text):
        return Finding("restart", "bad", f"{text}; another answer", "please report this")
    return Finding("restart", "ok", f"{text}; the same answer")

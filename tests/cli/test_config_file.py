"""``--config``: every flag by its long name, below the command line and variables."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import typer

from spillcache.cli.main import app
from spillcache.config import GIB, MIB, Settings


@pytest.fixture
def config(tmp_path: Path, model: str) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "serve.toml"
        path.write_text(f'model = "{model}"\n{text}')
        path.chmod(0o600)
        return str(path)

    return write


def test_all_kinds_of_values(cli: Any, config: Any, served: list[Settings], tmp_path: Path) -> None:
    path = config(f"""
        ctx-size = 2048
        no-mmap = true
        swa-full = false
        temperature = 0.5
        cache-ram = 64
        api-key = ["one", "two"]
        allowed-hosts = "a.example, b.example"
        cache-isolation = "api-key"
        cache-disk = "{tmp_path}/cache"
        cache-disk-size = "2GiB"
        cache-spill-on = ["idle", "flush"]
        queue-limit = 5
        timeout = 12.5
        log-format = "json"
        """)
    ended = cli("serve", "--config", path)
    assert (ended.code, ended.err) == (7, "")
    (settings,) = served
    assert settings.engine.context_tokens == 2048
    assert not settings.engine.mmap
    assert not settings.engine.swa_full
    assert settings.serve.defaults.temperature == 0.5
    assert settings.cache.ram_bytes == 64 * MIB
    assert settings.serve.api_keys == ("one", "two")
    assert settings.serve.allowed_hosts == ("a.example", "b.example")
    assert settings.serve.isolation == "api-key"
    assert settings.store is not None
    assert settings.store.quota_bytes == 2 * GIB
    assert settings.cache.spill_on == {"idle", "flush"}
    assert (settings.serve.queue_limit, settings.serve.timeout_s) == (5, 12.5)


def test_the_command_line_wins_over_variables_and_those_over_the_file(
    cli: Any, config: Any, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config('ctx-size = 1\nparallel = 1\nport = 1\napi-key = "file"')
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "2")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "2")
    monkeypatch.setenv("LLAMA_API_KEY", "a b,c")
    assert cli("serve", "--config", path, "-c", "3").code == 7
    (settings,) = served
    assert settings.engine.context_tokens == 3
    assert settings.engine.slots == 2
    assert settings.serve.port == 1
    assert settings.serve.api_keys == ("a b", "c")


def test_every_flag_may_stand_in_it(cli: Any, config: Any, served: list[Settings]) -> None:
    """Whatever becomes of the value, the key is known."""
    command: Any = typer.main.get_command(app)
    names = [
        name.removeprefix("--")
        for option in command.commands["serve"].params
        for name in option.opts
        if name.startswith("--") and option.name not in ("help", "config", "model")
    ]
    assert len(names) > 40
    for name in names:
        assert "no such key" not in cli("serve", "--config", config(f"{name} = 1")).err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ctx-siz = 1", "ctx-siz: no such key; did you mean ctx-size?"),
        ("ctx_size = 1", "ctx_size: no such key; did you mean ctx-size?"),
        ("quux = 1", "quux: no such key; keys are the long names of serve's flags"),
        ('config = "x"', "config: no such key"),
        ("help = true", "help: no such key"),
        ('mmproj = "x"', "mmproj is not supported: only text is served"),
        ("no-mmap = 1", "no-mmap: true or false is wanted"),
        ("port = true", "port: a value is wanted"),
        ("port = {}", "port: a text, a number, true, false, or a list of these is wanted"),
        ("port = [[1]]", "port: a text, a number"),
        ('port = "x"', "--port"),
        ("port = 99999", "--port"),
        ("port =", "is no TOML"),
        ('log-format = "xml"', "--log-format"),
    ],
)
def test_what_it_may_not_hold(
    cli: Any, config: Any, served: list[Settings], text: str, says: str
) -> None:
    ended = cli("serve", "--config", config(text))
    assert (ended.code, served) == (2, [])
    assert says in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), (b"\xff", "is no TOML")])
def test_a_file_that_is_none(cli: Any, tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    ended = cli("serve", "--config", str(path))
    assert ended.code == 2
    assert says in ended.err


def test_flags_that_mean_nothing_here_are_named(
    cli: Any, config: Any, served: list[Settings]
) -> None:
    ended = cli("serve", "-nocb", "--config", config("warmup = false"))
    assert ended.code == 7
    assert "ignored, for they mean nothing here: -nocb, warmup" in ended.err


def test_keys_in_a_file_that_others_may_read(
    cli: Any, config: Any, served: list[Settings], caplog: pytest.LogCaptureFixture
) -> None:
    path = config('api-key = "x"')
    Path(path).chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert cli("serve", "--config", path).code == 7
    assert f"others may read {path}" in caplog.text
    Path(config("port = 1")).chmod(0o644)
    caplog.clear()
    assert cli("serve", "--config", path).code == 7
    assert caplog.text == ""


def test_isolation_needs_keys(cli: Any, model: str, served: list[Settings]) -> None:
    ended = cli("serve", "-m", model, "--cache-isolation", "api-key")
    assert (ended.code, served) == (2, [])
    assert "--cache-isolation api-key needs API keys" in ended.err


def test_tenants_have_no_slot_files(
    cli: Any, model: str, served: list[Settings], tmp_path: Path
) -> None:
    flags = ["--api-key", "a,b", "--cache-isolation", "api-key", "--slot-save-path", str(tmp_path)]
    ended = cli("serve", "-m", model, *flags)
    assert (ended.code, served) == (2, [])
    assert "slots are no tenant's own" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--allowed-hosts http://x", "--allowed-hosts: 'http://x' is no name or address"),
        ("--allowed-origins chat.example", "--allowed-origins: 'chat.example' is no origin"),
        ("--allowed-origins https://a/b", "is no origin; write for example https://chat.example"),
        ("--api-key=", "--api-key: there is no key in it"),
        ("--queue-limit 0", "--queue-limit"),
        ("--timeout 0", "--timeout"),
    ],
)
def test_flags_that_nobody_can_mean(
    cli: Any, model: str, served: list[Settings], words: str, says: str
) -> None:
    ended = cli("serve", "-m", model, *words.split())
    assert (ended.code, served) == (2, [])
    assert says in ended.err


def test_hosts_and_origins(
    cli: Any, model: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "")
    line = "--allowed-hosts a,b:80 --allowed-hosts [::1] --allowed-hosts *"
    line += " --allowed-origins HTTPS://Chat.example/,chrome-extension://abc,*"
    assert cli("serve", "-m", model, *line.split()).code == 7
    serve = served[0].serve
    assert serve.allowed_hosts == ("a", "b:80", "[::1]", "*")
    assert serve.allowed_origins == ("https://chat.example", "chrome-extension://abc", "*")
    assert serve.api_keys == ()


def test_what_is_said_is_json_if_asked_for(cli: Any, model: str, served: list[Settings]) -> None:
    ended = cli("serve", "-m", model, "-nocb", "--log-format", "json")
    entry = json.loads(ended.err)
    assert entry["level"] == "warning"
    assert entry["message"].endswith("-nocb")

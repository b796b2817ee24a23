from pathlib import Path
from typing import Any

import pytest

from spillcache.config import GIB, MIB, NO_LIMIT_BYTES, RequestDefaults, Settings


def test_defaults(cli: Any, model: str, served: list[Settings]) -> None:
    ended = cli("serve", "-m", model)
    assert (ended.code, ended.err) == (7, "")
    (settings,) = served
    assert settings.engine.model == Path(model)
    assert settings.engine.context_tokens == 0
    assert settings.engine.ubatch_tokens == 512
    assert settings.engine.mmap
    assert (settings.serve.host, settings.serve.port) == ("127.0.0.1", 8080)
    assert settings.serve.api_keys == ()
    assert settings.cache.ram_bytes == 8192 * MIB
    assert settings.cache.spill_on == {"evict", "idle", "shutdown", "flush"}
    assert settings.store is None


def test_short_flags_are_llama_servers(cli: Any, model: str, served: list[Settings]) -> None:
    line = "-c 4096 -ub 256 -np 3 -t 5 -ngl 7 -ctk bf16 -ctv q8_0 -fa on -a me -cram 64"
    assert cli("serve", "-m", model, *line.split()).code == 7
    engine = served[0].engine
    assert (engine.context_tokens, engine.ubatch_tokens, engine.slots) == (4096, 256, 3)
    assert (engine.threads, engine.gpu_layers) == (5, 7)
    assert (engine.type_k, engine.type_v, engine.flash_attention) == ("bf16", "q8_0", "on")
    assert served[0].serve.alias == "me"
    assert served[0].cache.ram_bytes == 64 * MIB


def test_long_flags(cli: Any, model: str, served: list[Settings], tmp_path: Path) -> None:
    line = (
        "--ctx-size 8192 --ubatch-size 128 --parallel 2 --threads 1 --n-gpu-layers 99 "
        "--cache-type-k f32 --cache-type-v f16 --flash-attn off --swa-full --no-mmap "
        "--chat-template chatml --host ::1 --port 0 --api-key secret --alias name "
        "--log-level debug --cache-ram 0 --cache-min-tokens 64 --cache-namespace blue "
        "--cache-disk-size 2GiB --cache-disk-min-free 512M --cache-disk-codec zstd "
        "--cache-max-age 30d --cache-spill-on shutdown,flush --cache-restore always "
        "--cache-disk-write-limit 200GiB/day --cache-disk-throttle 5M"
    )
    disk = tmp_path / "cache"
    assert cli("serve", "--model", model, "--cache-disk", str(disk), *line.split()).code == 7
    settings = served[0]
    assert settings.engine.gpu_layers == 99
    assert settings.engine.swa_full
    assert not settings.engine.mmap
    assert settings.engine.chat_template == "chatml"
    assert settings.engine.namespace_tag == "blue"
    assert settings.serve.api_keys == ("secret",)
    assert (settings.serve.host, settings.serve.port) == ("::1", 0)
    assert (settings.cache.ram_bytes, settings.cache.min_tokens) == (0, 64)
    assert settings.cache.spill_on == {"shutdown", "flush"}
    assert settings.store is not None
    assert settings.store.path == disk
    assert settings.store.quota_bytes == 2 * GIB
    assert settings.store.min_free_bytes == 512 * MIB
    assert settings.store.codec == "zstd"
    assert settings.store.max_age_s == 30 * 86400
    assert settings.store.throttle_bytes_s == 5 * MIB
    assert settings.cache.restore == "always"
    assert settings.cache.write_limit_bytes_day == 200 * GIB


def test_a_disk_without_more_keeps_what_the_store_has(
    cli: Any, model: str, served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("serve", "-m", model, "--cache-disk", "~/cache")
    store = served[0].store
    assert store is not None
    assert (store.path, store.quota_bytes, store.codec) == (tmp_path / "cache", None, "auto")
    assert store.min_free_bytes == 4 * GIB
    assert store.max_age_s is None
    assert not store.path.exists()


def test_variables_are_llama_servers_and_flags_win(
    cli: Any, model: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", model)
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1024")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "4")
    monkeypatch.setenv("LLAMA_API_KEY", "from the environment")
    monkeypatch.setenv("SPILLCACHE_DISK", "/disk")
    assert cli("serve", "-np", "2").code == 7
    assert served[0].engine.model == Path(model)
    assert served[0].engine.context_tokens == 1024
    assert served[0].engine.slots == 2
    assert served[0].store is not None
    assert served[0].store.path == Path("/disk")
    assert served[0].serve.api_keys == ("from the environment",)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-ub 100", "--ubatch-size: 100 is not a multiple of 64; write 64 or 128"),
        ("-ub 0", "--ubatch-size: 0 is not a multiple of 64; write 64"),
        ("-ub 63", "write 64"),
        ("--cache-spill-on evict,never", "write some of evict,idle,shutdown,flush"),
        ("--cache-spill-on=", "--cache-spill-on: '' is not known"),
        ("-ngl some", "--n-gpu-layers: 'some' is not a number of layers; or write all"),
        ("-cram -2", "--cache-ram: '-2' is not a number of MiB; or write a size, as 2GiB"),
        ("-cram 1.5", "--cache-ram: '1.5' is not a number of MiB"),
        ("--cache-ram=", "--cache-ram: '' is not a number of MiB"),
        ("--top-p 0", "--top-p: 0 leaves no token; write more than 0, up to 1"),
        ("-n 0", "--n-predict: 0 leaves no answer"),
        ("-cram much", "--cache-ram: 'much' is not a size"),
        ("-ctv q8_0 -fa off", "--cache-type-v: q8_0 needs flash attention"),
        ("--cache-disk-size 1GiB", "--cache-disk-size needs --cache-disk"),
        ("--cache-disk-min-free 1GiB", "--cache-disk-min-free needs --cache-disk"),
        ("--cache-disk-codec raw", "--cache-disk-codec needs --cache-disk"),
        ("--cache-max-age 1d", "--cache-max-age needs --cache-disk"),
        ("--cache-disk-throttle 5M", "--cache-disk-throttle needs --cache-disk"),
        ("--cache-disk d --cache-disk-throttle 0", "--cache-disk-throttle: 0 would never end"),
        ("--cache-disk-write-limit 1G/day", "--cache-disk-write-limit needs --cache-disk"),
        ("--cache-disk d --cache-disk-write-limit 1G/week", "is not per day"),
        ("--cache-disk d --cache-disk-write-limit much", "'much' is not a size"),
        ("--cache-disk d --cache-max-age old", "--cache-max-age: 'old' is not an age"),
        ("--cache-disk d --cache-disk-size big", "--cache-disk-size: 'big' is not a size"),
        ("--cache-disk d --cache-disk-min-free -1", "--cache-disk-min-free: '-1' is not a size"),
    ],
)
def test_what_can_not_be_meant_is_said(
    cli: Any, model: str, served: list[Settings], words: str, says: str
) -> None:
    ended = cli("serve", "-m", model, *words.split())
    assert ended.code == 2
    assert says in ended.err
    assert not served


@pytest.mark.parametrize(
    ("words", "ram_bytes"),
    [
        ("-cram 64", 64 * MIB),
        ("-cram -1", NO_LIMIT_BYTES),
        ("--cache-ram 2GiB", 2 * GIB),
        ("--cache-ram=512M", 512 * MIB),
        ("-cram " + "9" * 30, NO_LIMIT_BYTES),
    ],
)
def test_ram_in_mib_or_as_a_size(
    cli: Any, model: str, served: list[Settings], words: str, ram_bytes: int
) -> None:
    assert cli("serve", "-m", model, *words.split()).code == 7
    assert served[0].cache.ram_bytes == ram_bytes


@pytest.mark.parametrize("words", ["-ngl all", "-ngl auto", "-ngl -1", "--gpu-layers=ALL"])
def test_all_layers(cli: Any, model: str, served: list[Settings], words: str) -> None:
    assert cli("serve", "-m", model, *words.split()).code == 7
    assert served[0].engine.gpu_layers > 1000


def test_defaults_of_requests(cli: Any, model: str, served: list[Settings]) -> None:
    line = "--temperature 0 --top-k 5 --top-p 0.5 --min-p 0.1 -s 7 --predict 9"
    assert cli("serve", "-m", model, *line.split()).code == 7
    assert cli("serve", "-m", model, "--seed", "-1", "-n", "-1").code == 7
    assert served[0].serve.defaults == RequestDefaults(0.0, 5, 0.5, 0.1, 7, 9)
    assert served[1].serve.defaults == RequestDefaults(seed=-1)


def test_flags_that_mean_nothing_here_are_told_of_in_a_line(
    cli: Any, model: str, served: list[Settings]
) -> None:
    line = "-b 2048 -c 512 --jinja --metrics -tb 2 -sps=3 --no-webui"
    ended = cli("serve", "-m", model, *line.split())
    assert ended.code == 7
    assert served[0].engine.context_tokens == 512
    assert served[0].engine.threads == 0
    assert ended.err.count("\n") == 1
    assert ended.err.endswith(
        " spillcache: warning: ignored, for they mean nothing here: "
        "-b 2048, --jinja, --metrics, -tb 2, -sps=3, --no-webui\n"
    )


def test_a_bad_model_is_said_before_anything_starts(
    cli: Any, served: list[Settings], tmp_path: Path
) -> None:
    ended = cli("serve", "-m", str(tmp_path / "none.gguf"))
    assert (ended.code, served) == (1, [])
    assert ended.err.startswith("spillcache: error: no such model: ")


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ("--host 0.0.0.0", True),
        ("--host 0.0.0.0 --api-key k", False),
        ("--host ::1", False),
    ],
)
def test_an_open_server_gets_a_warning(
    cli: Any, model: str, served: list[Settings], words: str, warned: bool
) -> None:
    ended = cli("serve", "-m", model, *words.split())
    assert ended.code == 7
    assert ("warning" in ended.err) == warned


@pytest.mark.parametrize("kind", ["a file", "a file above", "somebody else's files"])
def test_a_directory_that_can_not_hold_a_cache_is_said_at_once(
    cli: Any, model: str, tmp_path: Path, kind: str
) -> None:
    disk = tmp_path / "cache"
    if kind == "a file":
        disk.write_text("mine")
    elif kind == "a file above":
        disk.write_text("mine")
        disk = disk / "below"
    else:
        disk.mkdir()
        (disk / "letter.txt").write_text("mine")
    ended = cli("serve", "-m", model, "--cache-disk", str(disk))
    assert ended.code == 1
    assert ended.err.startswith("spillcache: error: ")
    assert ended.err.count("\n") == 1
    assert str(disk) in ended.err


def test_a_quota_under_the_minimum_is_said_at_once(cli: Any, model: str, tmp_path: Path) -> None:
    ended = cli(
        "serve", "-m", model, "--cache-disk", str(tmp_path / "c"), "--cache-disk-size", "1M"
    )
    assert ended.code == 2
    assert "--cache-disk-size" in ended.err


def test_adapters(cli: Any, model: str, served: list[Settings], tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.gguf", "b.gguf", "c:1,5.gguf")]
    for name in names:
        Path(name).write_bytes(b"GGUF")
    a, b, c = names
    line = ["--lora-scaled", f"{a}:0.5,{b}:-2", "--lora", f"{a},{b}", "--lora", c]
    assert cli("serve", "-m", model, *line).code == 7
    found = [(file.path.name, file.scale) for file in served[0].engine.adapters]
    assert found == [
        ("a.gguf", 1.0), ("b.gguf", 1.0), ("c:1,5.gguf", 1.0), ("a.gguf", 0.5), ("b.gguf", -2.0),
    ]  # fmt: skip
    assert cli("serve", "-m", model, *line, "--lora-init-without-apply").code == 7
    assert [file.scale for file in served[1].engine.adapters] == [0.0] * 5


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--lora", "none.gguf", "there is no file none.gguf"),
        ("--lora-scaled", "none.gguf:0.5", "there is no file none.gguf"),
        ("--lora-scaled", "x.gguf", "not FILE:SCALE"),
        ("--lora-scaled", "x.gguf:much", "not FILE:SCALE"),
        ("--lora-scaled", "x.gguf:nan", "out of reason"),
        ("--lora-scaled", "x.gguf:1e9", "out of reason"),
    ],
)
def test_adapters_that_can_not_be_meant(
    cli: Any, model: str, served: list[Settings], flag: str, value: str, says: str
) -> None:
    ended = cli("serve", "-m", model, flag, value)
    assert ended.code == 2
    assert says in ended.err
    assert not served

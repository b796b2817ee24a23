"""llama-server's variables mean what their flags do, also where that is nothing, or a refusal."""

from typing import Any

import pytest

from spillcache.cli.llama_flags import REFUSED
from spillcache.cli.llama_variables import _FLAGS, ignored_variables
from spillcache.config import Settings
from spillcache.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MMPROJ", "x.gguf", "--mmproj is not supported: only text is served"),
        ("STATIC_PATH", "/x", "--path is not supported: put a proxy before the server"),
        ("RERANKING", "1", "--reranking is not supported: reranking is not served"),
        ("THINK", "none", "--reasoning-format is not supported: thoughts come as"),
    ],
)
def test_variables_of_refused_flags(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ignored_variables({f"LLAMA_ARG_{name}": value}, ())
    assert str(caught.value).startswith(f"LLAMA_ARG_{name} is set, and {says}")
    assert str(caught.value).endswith("; unset the variable")


def test_what_asks_for_nothing_is_ignored() -> None:
    given = {"RERANKING": "off", "THINK": "auto", "BATCH": "512", "ODD": "x", "MODEL": "m"}
    environment = {f"LLAMA_ARG_{name}": value for name, value in given.items()} | {"PATH": "/"}
    assert ignored_variables(environment, {"LLAMA_ARG_MODEL"}) == [
        "LLAMA_ARG_BATCH",
        "LLAMA_ARG_ODD",
        "LLAMA_ARG_RERANKING",
        "LLAMA_ARG_THINK",
    ]


def test_odd_names_lead_to_flags_that_are_refused() -> None:
    assert set(_FLAGS.values()) <= set(REFUSED)


def test_serve_says_so(
    cli: Any, model: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_BATCH", "2048")
    monkeypatch.setenv("LLAMA_ARG_PORT", "1234")
    ended = cli("serve", "-m", model)
    assert ended.code == 7
    assert "ignored, for they mean nothing here: LLAMA_ARG_BATCH" in ended.err
    assert served[0].serve.port == 1234
    monkeypatch.setenv("LLAMA_ARG_MODEL_DRAFT", "x")
    ended = cli("serve", "-m", model)
    assert (ended.code, "there is no speculative decoding" in ended.err) == (2, True)


@pytest.mark.parametrize(
    "words", [("--reasoning-format", "auto"), ("--reasoning-format=deepseek",), ("-rea", "auto"),
              ("--reasoning-budget", "-1")],
)  # fmt: skip
def test_values_that_ask_for_what_is_so(
    cli: Any, model: str, served: list[Settings], words: tuple[str, ...]
) -> None:
    ended = cli("serve", "-m", model, *words, "--port", "1234")
    assert ended.code == 7
    assert f"ignored, for they mean nothing here: {' '.join(words)}" in ended.err
    assert served[0].serve.port == 1234


@pytest.mark.parametrize(
    "words", [("--reasoning-format", "none"), ("--reasoning-format",), ("--mmproj", "auto")]
)
def test_other_values_are_refused(cli: Any, model: str, words: tuple[str, ...]) -> None:
    ended = cli("serve", "-m", model, *words)
    assert (ended.code, f"{words[0]} is not supported" in ended.err) == (2, True)


def test_the_same_in_a_file(cli: Any, model: str, served: list[Settings], tmp_path: Any) -> None:
    file = tmp_path / "x.toml"
    file.write_text('reasoning-format = "auto"\nport = 1234\n')
    ended = cli("serve", "-m", model, "--config", str(file))
    assert "mean nothing here: reasoning-format" in ended.err
    assert served[0].serve.port == 1234
    file.write_text('reasoning-format = "none"\n')
    assert cli("serve", "-m", model, "--config", str(file)).code == 2


def test_keys_and_slot_folders_come_from_variables_too(
    cli: Any, model: str, served: list[Settings], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose keys were passed over would be open to all."""
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    monkeypatch.setenv("LLAMA_ARG_API_KEY_FILE", str(keys))
    monkeypatch.setenv("LLAMA_ARG_SLOT_SAVE_PATH", str(tmp_path / "slots"))
    assert cli("serve", "-m", model).err == ""
    [settings] = served
    assert settings.serve.api_keys == ("one", "two")
    assert settings.serve.slot_files is not None
    assert settings.serve.slot_files.path == tmp_path / "slots"

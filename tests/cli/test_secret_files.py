"""Keys from words and files, and who may read those."""

import logging
from pathlib import Path

import pytest

from spillcache.cli.secret_files import api_keys, tls_files, warn_if_exposed
from spillcache.config import TlsFiles
from spillcache.errors import ConfigError


def test_words_may_hold_several_and_the_file_has_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the team\n\n  third \nfourth,with a comma\nfirst\n")
    keys = api_keys(["first, second", ","], file)
    assert keys == ("first", "second", "third", "fourth,with a comma")
    assert api_keys([], None) == ()


@pytest.mark.parametrize("words", [[""], [","], [" ", ""]])
def test_an_empty_key_is_no_open_server(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--api-key: there is no key in it"):
        api_keys(words, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no key; write one a line"),
        (b"# nothing\n\n", "holds no key"),
        (b"\xff\xfe", "is no text"),
        (None, "No such file"),
    ],
)
def test_a_file_without_keys_is_no_open_server(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--api-key-file: .*{says}"):
        api_keys([], file)


def test_a_directory_or_a_device_holds_no_keys(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="--api-key-file: "):
            api_keys([], path)


def test_a_key_without_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.touch()
    assert tls_files(None, None) is None
    assert tls_files(file, file) == TlsFiles(file, file)
    with pytest.raises(ConfigError, match="--ssl-cert-file is missing"):
        tls_files(file, None)
    with pytest.raises(ConfigError, match="--ssl-key-file is missing"):
        tls_files(None, file)
    with pytest.raises(ConfigError, match=r"--ssl-cert-file: .*No such file"):
        tls_files(file, tmp_path / "none")


def test_who_may_read_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for path, mode in ((own, 0o600), (shared, 0o640)):
        path.touch()
        path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        warn_if_exposed([own, None, shared])
    (said,) = caplog.messages
    assert said == f"others may read {shared}; protect it with: chmod 600 {shared}"

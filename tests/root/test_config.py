import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillcache.config import (
    GIB,
    KIB,
    MIB,
    EngineConfig,
    Settings,
    format_age,
    format_size,
    parse_age,
    parse_size,
)
from spillcache.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512b", 512),
        ("1k", KIB),
        ("1KiB", KIB),
        ("1 KB", KIB),
        ("64MiB", 64 * MIB),
        ("64GiB", 64 * GIB),
        ("64G", 64 * GIB),
        ("1.5g", 3 * GIB // 2),
        ("2TiB", 2048 * GIB),
        ("  7m ", 7 * MIB),
    ],
)
def test_sizes_people_write(text: str, size: int) -> None:
    assert parse_size(text, "--size") == size


@pytest.mark.parametrize(
    "text", ["", "big", "-1", "1e9", "1..5G", "G", "10 PiB", "1GiB2", "0x10", "1,5G", "inf"]
)
def test_anything_else_is_an_error_that_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--cache-disk-size: .*64GiB"):
        parse_size(text, "--cache-disk-size")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2592000), ("12h", 43200), ("90 min", 5400), ("5S", 5), ("2w", 1209600), ("1.5", 1.5)],
)
def test_ages_people_write(text: str, seconds: float) -> None:
    assert parse_age(text, "--age") == seconds


@pytest.mark.parametrize("text", ["", "old", "-1d", "0", "0d", "1 month", "d", "1d2", "inf"])
def test_ages_that_can_not_be_meant(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--cache-max-age: .*30d"):
        parse_age(text, "--cache-max-age")


@given(st.integers(0, 2**50))
def test_a_count_of_bytes_is_itself(count: int) -> None:
    assert parse_size(str(count), "--size") == count


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (1536 * MIB, "1.5 GiB"),
        (5000 * GIB, "4.9 TiB"),
        (-3 * MIB, "-3.0 MiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


def test_settings_are_frozen_and_write_nothing_by_default() -> None:
    settings = Settings(engine=EngineConfig(model=Path("model.gguf")))
    assert settings.store is None
    assert settings.serve.host == "127.0.0.1"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.store = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(20, "20 s"), (90, "1.5 min"), (7200, "2 h"), (864000, "10 days"), (0.5, "0.5 s")],
)
def test_ages_for_people(seconds: float, text: str) -> None:
    assert format_age(seconds) == text

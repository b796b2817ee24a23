"""The flags about slots and sessions."""

from pathlib import Path

import pytest

from spillcache.cli.slot_flags import header_names, slot_files
from spillcache.config import GIB, SlotFilesConfig
from spillcache.errors import ConfigError


def test_slot_files_have_a_directory_and_a_minimum() -> None:
    assert slot_files(None, None) is None
    assert slot_files(Path("d"), None) == SlotFilesConfig(Path("d"), 4 * GIB)
    assert slot_files(Path("d"), "0") == SlotFilesConfig(Path("d"), 0)
    assert slot_files(Path("d"), "1GiB") == SlotFilesConfig(Path("d"), GIB)


@pytest.mark.parametrize(("path", "free"), [(None, "1GiB"), (Path("d"), "much")])
def test_what_can_not_be_meant_is_said(path: Path | None, free: str) -> None:
    with pytest.raises(ConfigError, match="--slot-save-min-free"):
        slot_files(path, free)


def test_names_of_headers() -> None:
    assert header_names("") == header_names(" ") == ()
    wanted = ("x-session-id", "session_id")
    assert header_names("X-Session-Id, session_id,x-session-id") == wanted


@pytest.mark.parametrize("text", ["a b", "a:", ",", "x,,y", "authorization", "Cookie", "ü"])
def test_what_names_no_conversation_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--cache-session-headers"):
        header_names(text)

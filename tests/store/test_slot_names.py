"""Which names slot files may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillcache.errors import SlotFileInvalid
from spillcache.store.slot_names import check_name

BAD = [
    "", ".", "..", "../x", "a/b", "a\\b", "C:x", "a:b", "x" * 256, "ü" * 128, "a.", "a ", " ",
    "a\nb", "a\0", "a\x7f", "a\x9fb", "CON", "con", "NUL.txt", "nul .txt", "aux.tar.gz", "COM1",
    "lpt9.bin", "COM¹", "CONIN$", "PRN ", "a*", "a?", '"', "<", ">", "|", "\udc80",
    ".spillcache-1-2",
]  # fmt: skip
GOOD = [
    "a",
    "chat-1.slot",
    "x" * 255,
    "ü" * 127,
    ".hidden",
    "console",
    "com",
    "COM10",
    "nul_",
    "a b",
]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_plain_file_everywhere_is_refused(name: str) -> None:
    with pytest.raises(SlotFileInvalid, match="filename") as caught:
        check_name(name)
    assert (caught.value.status, caught.value.kind, caught.value.param) == (
        400,
        "invalid",
        "filename",
    )


@pytest.mark.parametrize("name", GOOD)
def test_plain_names_are_taken_as_they_are(name: str) -> None:
    assert check_name(name) == name


@given(st.text(max_size=300))
def test_any_text_is_refused_or_names_a_file_of_the_folder(name: str) -> None:
    try:
        check_name(name)
    except SlotFileInvalid:
        return
    assert name
    assert not set(name) & set("/\\:\0")
    assert name not in (".", "..")
    assert len(name.encode()) <= 255

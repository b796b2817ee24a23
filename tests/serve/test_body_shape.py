"""What a body is made of is counted without parsing it, and bounded."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillcache.errors import BodyTooLarge
from spillcache.serve import body_shape
from spillcache.serve.body_shape import (
    CONTAINERS_MAX,
    ITEMS_MAX,
    STRINGS_MAX,
    BodyShape,
    shape_of,
)

TEXT = st.text(st.sampled_from('ab"\\,[{é'))
VALUE = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def counted(value):
    """Containers, strings and commas of a parsed value."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = list(value) if isinstance(value, list) else [*value, *value.values()]
    parts = [counted(one) for one in inner]
    return (
        1 + sum(part[0] for part in parts),
        sum(part[1] for part in parts),
        max(len(value) - 1, 0) + sum(part[2] for part in parts),
    )


@settings(max_examples=200, deadline=None)
@given(VALUE, st.booleans(), st.integers(1, 9))
def test_it_counts_what_a_parser_would_make(value, ascii_only, step):
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_shape, "_STEP_BYTES", step)
        shape = shape_of(raw)
    assert (shape.containers, shape.strings, shape.items) == counted(value)
    assert shape.raw_bytes == len(raw)


@pytest.mark.parametrize("raw", [b"", b'"', b"\\", b'\\"', b'[["', b"\xff\x00"])
def test_what_is_no_json_is_counted_somehow(raw):
    assert shape_of(raw).raw_bytes == len(raw)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((CONTAINERS_MAX + 1, 0, 0), "32,769 objects and lists, and a request may have 32,768"),
        ((0, STRINGS_MAX + 1, 0), "262,145 texts and names"),
        ((0, 0, ITEMS_MAX + 1), "2,097,153 items"),
    ],
)
def test_bounds(shape, says):
    BodyShape(CONTAINERS_MAX, STRINGS_MAX, ITEMS_MAX, 1).check()
    with pytest.raises(BodyTooLarge, match=says):
        BodyShape(*shape, 1).check()


def test_a_million_token_ids_are_no_more_than_a_request_may_have():
    shape = shape_of(b'{"prompt": [' + b"11," * 1_000_000 + b"11]}")
    shape.check()
    assert shape == BodyShape(2, 1, 1_000_000, 3_000_016)
    assert shape.parsed_bytes > 40_000_000
